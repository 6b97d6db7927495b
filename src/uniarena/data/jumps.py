"""Where observations say that an episode ended, though no flag does.

With explicit next observations an end is where they differ from the next row's observation: certain. Without, it is
where the observation jumps: a guess, which is why what it finds is left out and never learned from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from uniarena.batch import Tree, tree_leaves
from uniarena.data.columns import BLOCK, Column

LOOKED_AT = 20_000
"""Steps from which the usual size of a change is taken."""
SAMPLE = BLOCK // 4
"""Bytes of a column from which the usual size of a change is taken at most."""
SPOTS = 8
"""Places that parts of a column are taken from."""
USUAL = 95.0
"""Percentile of a change that is still usual."""


def breaks(obs: Tree, next_obs: Tree, ends: np.ndarray, spots: int = 0) -> np.ndarray:
    """`[N]` bool: rows, not among `ends`, whose next observation is not the observation of the row after them.

    Entries that are NaN or infinite in either are not compared: a value that was lost is no end of an episode.

    Args:
        spots: look at so many parts only, spread over the data; 0: at all of it.
    """
    found = np.zeros(len(ends), bool)
    for before, after in _pairs(obs, next_obs):
        spans = _spans(before)
        for start, stop in spans[:: max(1, len(spans) // spots)] if spots else spans:
            stop = min(stop, len(ends) - 1)
            if stop > start:
                found[start:stop] |= _differ(before.read(start + 1, stop + 1), after.read(start, stop))
    return found & ~ends


def unlike(obs: Tree, next_obs: Tree, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """`[M]` bool: whether the next observation of each of `rows` is another than the observation in `places`."""
    found = np.zeros(len(rows), bool)
    for before, after in _pairs(obs, next_obs):
        found |= _differ(before.take(places), after.take(rows))
    return found


def _pairs(obs: Tree, next_obs: Tree) -> Iterator[tuple[Column, Column]]:
    """Columns to compare. What the file has in half precision is compared as it stands there: rounded twice, by way of
    float32, it may be another number.
    """
    for pair in zip(tree_leaves(obs), tree_leaves(next_obs), strict=True):
        exact = [column if column.wide is None else column.wide for column in pair]
        half = any(column.dtype == np.float16 for column in exact)
        yield (exact[0], exact[1]) if half else pair


def _differ(following: np.ndarray, given: np.ndarray) -> np.ndarray:
    """`[M]` bool: rows that are not equal, as the coarser of both dtypes has them."""
    if following.dtype.kind == given.dtype.kind == "f":
        coarse = min(following.dtype, given.dtype, key=lambda dtype: dtype.itemsize)
        with np.errstate(over="ignore"):
            following, given = following.astype(coarse, copy=False), given.astype(coarse, copy=False)
        differs = following != given  # a damaged entry says nothing; the others of its row do
        differs &= np.isfinite(given) & np.isfinite(following)
    else:
        differs = following.astype(given.dtype, copy=False) != given
    return differs.any(axis=tuple(range(1, differs.ndim)))


def wrapped(obs: Tree, next_obs: Tree, rows: np.ndarray) -> np.ndarray:
    """Of rows `[M]` that end episodes: whether the next observation is, bit for bit, the first of the next episode."""
    inside = np.flatnonzero(rows + 1 < len(tree_leaves(obs)[0]))
    same = np.zeros(len(rows), bool)
    same[inside] = True
    for before, after in zip(tree_leaves(obs), tree_leaves(next_obs), strict=True):
        following, given = before.take(rows[inside] + 1), after.take(rows[inside])
        equal = following == given
        same[inside] &= equal.all(axis=tuple(range(1, equal.ndim)))
    return same


def changes(obs: Tree, ends: np.ndarray, spots: int = 0) -> np.ndarray | None:
    """`[N]` how much the observation changes after each row, in its usual change; NaN where it was not looked at.

    An entry's usual change is the 95th percentile of |o' − o|; entries that usually stay still say nothing. A row's is
    the root mean square over entries.

    Args:
        ends: `[N]` rows whose change is not usual.
        spots: look at so many parts only, spread over the data; 0: at all of it.

    Returns:
        None where no entry changes at all, so that there is nothing to compare.
    """
    columns = [column for column in tree_leaves(obs) if column.dtype.kind in "fiu"]
    scales = [_usual(column, ends) for column in columns]
    entries = sum(int(np.count_nonzero(scale)) for scale in scales)
    if not entries:
        return None
    total = np.zeros(len(ends))
    looked = np.ones(len(ends), bool)
    looked[-1] = False
    for column, scale in zip(columns, scales, strict=True):
        moving = scale > 0
        spans = _spans(column, BLOCK // spots if spots else BLOCK)
        chosen = spans[:: max(1, len(spans) // spots)] if spots else spans
        seen = np.zeros(len(ends), bool)
        for start, stop in chosen:
            stop = min(stop, len(ends) - 1)
            seen[start:stop] = True
            if stop > start and moving.any():
                change = _changes(column, start, stop)[:, moving] / scale[moving]
                with np.errstate(over="ignore"):
                    total[start:stop] += np.nan_to_num(change**2, nan=0.0).sum(axis=1)
        looked &= seen
    return np.where(looked, np.sqrt(total / entries), np.nan)


def _usual(column: Column, ends: np.ndarray) -> np.ndarray:
    """`[entries]` the usual change of each."""
    pieces = []
    count = len(ends) - 1
    size = max(1, min(LOOKED_AT, SAMPLE // SPOTS // max(1, column.nbytes // max(1, len(column)))))
    spots = np.unique(np.linspace(0, max(0, count - size), max(1, min(SPOTS, -(-count // size)))).astype(int))
    for start in spots:
        stop = min(count, int(start) + size)
        if stop > start:
            pieces.append(_changes(column, int(start), stop)[~ends[start:stop]])
    found = np.concatenate(pieces) if pieces else np.zeros((0, 1))
    if not len(found):
        return np.zeros(max(1, int(np.prod(column.row_shape))))
    finite = np.isfinite(found)
    usual = np.zeros(found.shape[1:])
    seen = finite.any(axis=0)  # an entry that never is finite has no usual change
    usual[seen] = np.nanpercentile(np.where(finite, found, np.nan)[:, seen], USUAL, axis=0)
    return usual


def _changes(column: Column, start: int, stop: int) -> np.ndarray:
    """`[stop − start, entries]` of |o' − o|."""
    rows = column.read(start, stop + 1).reshape(stop + 1 - start, -1).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.abs(np.diff(rows, axis=0))


def _spans(column: Any, most: int = BLOCK) -> list[tuple[int, int]]:
    size = max(1, most // max(1, column.nbytes // max(1, len(column))))
    return [(start, min(len(column), start + size)) for start in range(0, len(column), size)]
