"""Tables for people, by rich, as plain text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

WIDTH = 110


def table(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> str:
    """A table whose columns but the first are numbers, which stand right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    found = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(head):
        found.add_column(name, justify="right" if index else "left")
    for row in rows:
        found.add_row(*row)
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    console.print(found)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def tuning(found: Any) -> str:
    """What `uniarena tune-sampling` says: steps/s of each way and number, what does not exist, what to write."""
    counts = sorted({row.num_envs for row in found.rows})
    names = list(dict.fromkeys(row.mode for row in found.rows if row.rate is not None))
    lines = []
    for name in names:
        cells = []
        for count in counts:
            same = [row for row in found.rows if row.mode == name and row.num_envs == count and row.rate]
            best = max(same, key=lambda row: row.per_second, default=None)
            note = "" if best is None or best.processes is None else f" ({best.processes} processes)"
            cells.append("" if best is None else f"{best.per_second:,.0f}{note}")
        lines.append([name, *cells])
    head = ["steps/s", *(f"{count} env{'s' if count > 1 else ''}" for count in counts)]
    text = [table(head, lines, f"{found.env_id} with random actions")]
    absent = {row.mode: row.why for row in found.rows if row.why}
    text += [f"no {mode}: {why}" for mode, why in absent.items()]
    return "\n".join([*text, "", *found.advice.reasons, "", "write:", found.advice.yaml()])
