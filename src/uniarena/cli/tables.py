"""Tables for people, by rich, as plain text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

WIDTH = 110


def table(head: Sequence[str], rows: Sequence[Sequence[str]], title: str, left: Sequence[int] = (0,)) -> str:
    """A table; columns that are not in `left` are numbers and stand right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    found = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(head):
        found.add_column(name, justify="left" if index in left else "right")
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


def profile(done: Any) -> str:
    """What `uniarena profile` says: shares of the time, sides, floors, advice."""
    from uniarena.analysis.profile import BUSY, PHASES

    found = done.found
    rows = [
        [phase, f"{found.share(phase):.1%}", f"{1e6 * seconds / found.steps:,.1f}", PHASES[phase]]
        for phase, seconds in found.seconds.items()
    ]
    title = f"{found.steps:,} {found.unit.replace('_', ' ')} at {found.steps_per_second:,.0f} a second"
    text = [table(["part", "share", "µs/step", "what"], rows, title, (0, 3))]
    busy = ", ".join(f"{side.name} {side.busy:.0%}" for side in found.sides)
    text.append(f"busy: {busy} (goal for the busiest: {BUSY:.0%}); {found.threads} torch thread(s)")
    if found.producer:
        text.append(
            "the producer: " + ", ".join(f"{name} {share:.0%}" for name, share in found.producer.items())
        )
    for name, rate in found.floors.items():
        text.append(
            f"{name} alone: {rate:,.0f} steps/s, of which the run has {found.steps_per_second / rate:.0%}"
        )
    busy_machine = ": other programs want its cores, so shares hold better than rates" if done.crowded else ""
    text.append(
        f"the stopwatch itself took {found.overhead:.2%}; load of the machine {done.load:.1f}{busy_machine}"
    )
    text.append(f"\n{found.advice}")
    text.append(
        f"wrote {done.file}" + (f", {done.picture}" if done.picture else "; its picture needs uniarena[plot]")
    )
    return "\n".join(text)
