"""Where figures go. A logger is a class with a `Config` and these methods; the last four are optional:

- `open(run_dir, step)`: at the start, also of a resumed run: continue after `step` environment steps and drop
  whatever an interrupted run wrote beyond it;
- `scalars(step, values)`: figures by name; a second call with the same step adds to that step;
- `close()`;
- `histograms(step, values)`: name → array; `graph(module, example)`; `video(step, name, path)`; `layout(topics)`:
  topic → chart → names of figures that belong together.

`every_iteration = True` asks for a row each iteration; others get the mean over each log interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol

__all__ = ["Logger"]


class Logger(Protocol):
    """What every logger has; see the module's docstring for the optional methods."""

    every_iteration: ClassVar[bool]

    def open(self, run_dir: Path, step: int) -> None:
        """Begin, or continue after `step` environment steps."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write figures at `step` environment steps."""

    def close(self) -> None: ...
