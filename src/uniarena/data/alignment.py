"""Whether next observations and flags stand in the rows that they belong to, as far as observations tell.

A file can be a row off throughout and still have the right shapes. With explicit next observations that is certain:
they are found again in the observations, only not in the row after. Without them it shows only where episodes begin
with a jump, so that it is said and not refused.
"""

from __future__ import annotations

import numpy as np

from uniarena.batch import tree_leaves
from uniarena.data.columns import Column
from uniarena.data.errors import DataError
from uniarena.data.jumps import unlike
from uniarena.data.source import Source

ROWS = 512
"""Rows that are looked at to find next observations again, spread over the data."""
ENDS = 64
"""Flags that are held against the rows beside them, spread over the data."""
FEWEST = 2
"""Flags of which something can be said where next observations are explicit; without them one more."""
MOST = 0.9
"""Share of the flags beside which an end lies, from which they are misaligned."""
MANY_TIMES = 4.0
"""How much larger the change of the observation beside a flag is than that at it, where it is misaligned."""
MANY = 16
"""Whole numbers of an observation from which two of them are not equal by chance."""
_PLACES = {
    0: "that row's own observation",
    2: "the observation two rows on",
    -1: "the observation of the row before",
}
_CERTAIN = {0: 0.8, 2: 0.5, -1: 0.5}
"""Share of rows from which it is so. An environment may stand still, so most rows must have their own."""


def check_next_observations(source: Source, ends: np.ndarray) -> str:
    """Refuse next observations that are those of another row, where they are not those of the row after.

    At a flag they differ from any row where rows are right and only in another order, as those of environments that
    take turns; where all of them were moved they are found again there too.

    Args:
        ends: `[N]` rows with a flag.

    Returns:
        Words that say what they seem to be, where that may be chance; else none.

    Raises:
        DataError: they are a row off.
    """
    steps = len(source.reward)
    rows = np.linspace(1, steps - 3, min(ROWS, max(0, steps - 3))).astype(np.int64)
    if len(rows) < FEWEST:
        return ""
    flagged = _spread(ends)
    for shift, place in _PLACES.items():
        share = 1.0 - unlike(source.obs, source.next_obs, rows, rows + shift).mean()
        elsewhere = unlike(source.obs, source.next_obs, flagged, flagged + shift).sum()
        if share < _CERTAIN[shift] or 2 * elsewhere > len(flagged):
            continue
        if not any(
            column.dtype.kind == "f" or _numbers(column) >= MANY for column in tree_leaves(source.obs)
        ):
            return f" Those of {share:.0%} of the rows looked at are {place}, which for so few classes may be chance."
        raise DataError(
            f"the steps are misaligned: the next observation of {share:.0%} of the rows looked at is {place}; "
            "expected that of the row after",
            source.path,
            "write the next observations again, each in the row of its step, or have them taken from the row "
            "after: keys: {next_obs: none}. If two environments take turns in the rows, write one after the other",
        )
    return ""


def _numbers(column: Column) -> int:
    return int(np.prod(column.row_shape, dtype=np.int64))


def check_flags(source: Source, ends: np.ndarray) -> None:
    """Refuse flags that are a row off where next observations show where episodes end.

    Args:
        ends: `[N]` rows with a flag.

    Raises:
        DataError: they are.
    """
    rows = _spread(ends)
    if len(rows) < FEWEST:
        return
    breaks = {
        beside: unlike(source.obs, source.next_obs, rows + beside, rows + beside + 1) for beside in (-1, 0, 1)
    }
    alone = ~breaks[0]
    if alone.mean() < MOST:
        return
    for beside, word in ((-1, "late"), (1, "early")):
        if (share := (alone & breaks[beside] & ~breaks[-beside]).mean()) >= MOST:
            raise DataError(
                f"the flags are misaligned, one row {word}: of {share:.0%} of those looked at, the row "
                f"{_beside(beside)} is the one whose next observation is not the row after it",
                source.path,
                "write the flags again, each in the row of the step that ended its episode; or, if the next "
                "observations are wrong, do without them: keys: {next_obs: none}",
            )


def flags_beside_jumps(sizes: np.ndarray, ends: np.ndarray) -> str | None:
    """A sentence where the observation jumps in the rows beside the flags, and at the flags it does not.

    Args:
        sizes: `[N]` change after each row, NaN where it was not looked at.
        ends: `[N]` rows with a flag.
    """
    rows = _spread(ends, len(ends))
    rows = rows[np.isfinite(sizes[rows - 1]) & np.isfinite(sizes[rows]) & np.isfinite(sizes[rows + 1])]
    if len(rows) <= FEWEST:
        return None
    for beside, word in ((-1, "late"), (1, "early")):
        share = (sizes[rows + beside] > MANY_TIMES * np.maximum(sizes[rows], sizes[rows - beside])).mean()
        if share >= MOST:
            return (
                f"The flags seem to be one row {word}: at {share:.0%} of them the observation jumps in the row "
                f"{_beside(beside)} and not at the flag. If so, write them again, each in the row of the step that "
                "ended its episode."
            )
    return None


def _beside(beside: int) -> str:
    return "before" if beside < 0 else "after"


def _spread(ends: np.ndarray, most: int = ENDS) -> np.ndarray:
    """Up to `most` of the rows with a flag, those that have two rows behind and one before."""
    rows = np.flatnonzero(ends[:-2])
    rows = rows[rows >= 1]
    return rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.int64)]
