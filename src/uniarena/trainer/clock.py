"""Where a run stands, in the unit that it is counted in: environment steps, or updates where none is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uniarena.config.errors import counted


def clock_of(counts: Mapping[str, Any]) -> int:
    """The clock of a row of `metrics.jsonl`, or of the counters of a checkpoint."""
    return int(counts.get("env_steps") or counts.get("updates") or 0)


def spelled(clock: int, units: str) -> str:
    """`1 update`, `2,000 env steps`.

    Args:
        units: in the plural.
    """
    return counted(clock, units[:-1], units)
