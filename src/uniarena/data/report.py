"""The audit for people: as text, as Markdown, and as one HTML page that needs nothing else."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from uniarena.config.errors import counted
from uniarena.data.errors import DataError
from uniarena.data.writing import told

WIDTH = 40
"""Characters of a histogram's longest bar."""


def text(found: dict[str, Any]) -> str:
    """The report on a terminal."""
    parts = [f"{found['path']} ({found['format']}, {_bytes(found['bytes'])})"]
    for title, lines in sections(found):
        parts += ["", title, *(f"  {line}" for line in lines)]
    return "\n".join(parts)


def write(found: dict[str, Any], path: Path) -> Path:
    """Write a page: HTML, or Markdown where the name ends in `.md`.

    Raises:
        DataError: another ending, or the page cannot be written.
    """
    kinds = {".html": _html, ".htm": _html, ".md": _markdown}
    if path.suffix.lower() not in kinds:
        raise DataError("a page is HTML or Markdown", path, "name it .html or .md")
    page = kinds[path.suffix.lower()](found)
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    return path


def sections(found: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """(title, lines) of every part of the report."""
    warnings = [f"- {warning}" for warning in found["warnings"]] or ["none"]
    return [
        ("Warnings", warnings),
        ("What it holds", _contents(found)),
        ("Flags", _flags(found)),
        ("Returns", [_summary(found["returns"]), *bars(found["return_histogram"])]),
        ("Lengths", [_summary(found["lengths"]), *bars(found["length_histogram"])]),
        ("Observations", _leaves(found, "observations")),
        ("Actions", _leaves(found, "actions")),
    ]


def _contents(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{counted(found['transitions'], 'transition', 'transitions')} in "
        f"{counted(found['episodes'], 'episode', 'episodes')}, of {counted(found['steps'], 'step', 'steps')}",
        f"observations {found['observation_space']}, actions {found['action_space']}",
        f"environment {found['env'] or 'not named in the file'}",
        f"sum of rewards {found['reward_sum']:.6g}; of all steps before anything was left out "
        f"{found['reward_sum_before']:.6g}",
        f"reward: {_summary(found['reward'])}",
        f"copies: {counted(found['duplicates']['transitions'], 'transition', 'transitions')}"
        + (
            ""
            if found["duplicates"]["episodes"] is None
            else f", {counted(found['duplicates']['episodes'], 'episode', 'episodes')}"
        ),
    ]
    lines += [f"from: {name}: {_short(value)}" for name, value in found["origin"].items()]
    return lines


def _flags(found: dict[str, Any]) -> list[str]:
    lines = [f"{name}: {how}" for name, how in found["flags"].items()]
    lines.append(
        f"{counted(found['terminated'], 'transition', 'transitions')} terminated, {found['truncated']:,} truncated, "
        f"{found['both_flags']:,} both"
    )
    lines += [f"concluded for {count:,}: {what}" for what, count in found["inferred"].items()]
    lines += [f"left out {count:,}: {reason}" for reason, count in found["dropped_by_reason"].items()]
    return lines


def _leaves(found: dict[str, Any], kind: str) -> list[str]:
    lines = []
    for leaf in found[kind]:
        low, high = ("?" if leaf[key] is None else f"{leaf[key]:.4g}" for key in ("min", "max"))
        lines.append(f"{leaf['called']} {tuple(leaf['shape']) or 'one number'}: {low} to {high}")
        covered = found["coverage"].get(leaf["name"], {})
        if kind == "actions" and "counts" in covered:
            counts = covered["counts"]
            lines += bars({"edges": list(range(len(counts))), "counts": counts})
        elif kind == "actions" and "classes" in covered:
            lines.append(f"{covered['taken']:,} of {covered['classes']:,} classes taken")
        elif "entries" in leaf and len(leaf["entries"]["min"]) > 1:
            lines += _table(leaf["entries"], covered.get("visited"), found["saturation"].get(leaf["name"]))
    return lines


def _table(
    entries: dict[str, list[float]], visited: list[Any] | None, saturation: list[float] | None
) -> list[str]:
    names = ["low", "min", "mean", "std", "max", "high"]
    head = ["entry", *names, *(["visited"] if visited else []), *(["at bound"] if saturation else [])]
    rows = [head]
    for k in range(len(entries["min"])):
        row = [str(k), *(f"{entries[name][k]:.4g}" for name in names)]
        if visited:
            row.append("" if visited[k] is None else f"{visited[k]:.0%}")
        if saturation:
            row.append(f"{saturation[k]:.1%}")
        rows.append(row)
    widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def bars(histogram: dict[str, list[float]]) -> list[str]:
    """A histogram, one line a bar."""
    edges, counts = histogram["edges"], histogram["counts"]
    most = max(counts, default=0) or 1
    names = [f"{edge:.5g}" for edge in edges[: len(counts)]]
    if len(edges) > len(counts):
        names = [f"{low} … {edges[k + 1]:.5g}" for k, low in enumerate(names)]
    width = max(map(len, names), default=0)
    return [
        f"{name:>{width}} {'█' * round(WIDTH * count / most)} {count:,}"
        for name, count in zip(names, counts, strict=True)
    ]


def _summary(figures: dict[str, Any]) -> str:
    if figures["mean"] is None:
        return "no finite value"
    return (
        f"{figures['min']:.4g} to {figures['max']:.4g}, mean {figures['mean']:.4g} ± {figures['std']:.4g}, "
        f"median {figures['median']:.4g}"
    )


def _short(value: Any) -> str:
    shown = " ".join(str(value).split())
    return shown if len(shown) <= 100 else f"{shown[:99]}…"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def _markdown(found: dict[str, Any]) -> str:
    parts = [f"# Data: `{Path(found['path']).name}`", "", f"{found['format']}, {_bytes(found['bytes'])}"]
    for title, lines in sections(found):
        plain = title == "Warnings"
        body = [line.replace("<", "&lt;") for line in lines] if plain else ["```text", *lines, "```"]
        parts += ["", f"## {title}", "", *body]
    return "\n".join(parts) + "\n"


def _html(found: dict[str, Any]) -> str:
    name = html.escape(Path(found["path"]).name)
    body = [
        f"<h1>{name}</h1>",
        f"<p>{html.escape(found['path'])}: {found['format']}, {_bytes(found['bytes'])}</p>",
    ]
    for title, lines in sections(found):
        body.append(f"<h2>{title}</h2>")
        if title == "Warnings":
            body += ["<ul>", *(f"<li>{html.escape(line.removeprefix('- '))}</li>" for line in lines), "</ul>"]
        else:
            body.append(f"<pre>{html.escape(chr(10).join(lines))}</pre>")
    style = "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}pre{overflow-x:auto}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f"<style>{style}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )
