"""Where observations say that an episode ended, though no flag does.

With explicit next observations an end is where they differ from the next row's observation: certain. Without, it is
where the observation jumps: a guess, which is why what it finds is left out and never learned from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from uniarena.batch import Tree, tree_leaves
from uniarena.data.columns import BLOCK, Column

LOOKED_AT = 20_000
"""Steps from which the usual size of a change is taken."""
USUAL = 95.0
"""Percentile of a change that is still usual."""


def breaks(obs: Tree, next_obs: Tree, ends: np.ndarray, spots: int = 0) -> np.ndarray:
    """`[N]` bool: rows, not among `ends`, whose next observation is not the observation of the row after them.

    Entries that are NaN or infinite in either are not compared: a value that was lost is no end of an episode.

    Args:
        spots: look at so many parts only, spread over the data; 0: at all of it.
    """
    found = np.zeros(len(ends), bool)
    for before, after in zip(tree_leaves(obs), tree_leaves(next_obs), strict=True):
        spans = _spans(before)
        for start, stop in spans[:: max(1, len(spans) // spots)] if spots else spans:
            stop = min(stop, len(ends) - 1)
            if stop > start:
                following, given = before.read(start + 1, stop + 1), after.read(start, stop)
                differs = following.astype(given.dtype, copy=False) != given
                if given.dtype.kind == "f":  # a damaged entry says nothing; the others of its row do
                    differs &= np.isfinite(given) & np.isfinite(following)
                found[start:stop] |= differs.any(axis=tuple(range(1, differs.ndim)))
    return found & ~ends


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


def jumps(obs: Tree, ends: np.ndarray, factor: float) -> tuple[np.ndarray, bool]:
    """`[N]` bool: rows, not among `ends`, after which the observation changes by much more than it usually does.

    An entry's usual change is the 95th percentile of |o' − o|; entries that usually stay still say nothing. A row jumps
    where the root mean square of the changes, each in its usual size, is above `factor`.

    Returns:
        the rows, and whether any entry changes at all so that there was something to compare.
    """
    columns = [column for column in tree_leaves(obs) if column.dtype.kind in "fiu"]
    scales = [_usual(column, ends) for column in columns]
    entries = sum(int(np.count_nonzero(scale)) for scale in scales)
    if not entries:
        return np.zeros(len(ends), bool), False
    total = np.zeros(len(ends))
    for column, scale in zip(columns, scales, strict=True):
        moving = scale > 0
        for start, stop in _spans(column):
            stop = min(stop, len(ends) - 1)
            if stop > start and moving.any():
                change = _changes(column, start, stop)[:, moving] / scale[moving]
                with np.errstate(over="ignore"):
                    total[start:stop] += np.nan_to_num(change**2, nan=0.0).sum(axis=1)
    return (np.sqrt(total / entries) > factor) & ~ends, True


def _usual(column: Column, ends: np.ndarray) -> np.ndarray:
    """`[entries]` the usual change of each."""
    pieces = []
    count = len(ends) - 1
    size = max(1, min(LOOKED_AT, BLOCK // max(1, column.nbytes // max(1, len(column)))))
    spots = np.unique(np.linspace(0, max(0, count - size), max(1, min(8, -(-count // size)))).astype(int))
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


def _spans(column: Any) -> list[tuple[int, int]]:
    size = max(1, BLOCK // max(1, column.nbytes // max(1, len(column))))
    return [(start, min(len(column), start + size)) for start in range(0, len(column), size)]
