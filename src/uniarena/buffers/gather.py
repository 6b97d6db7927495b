"""Reading rows of a ring: one gather for what is packed, and one for each stacked leaf."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from uniarena.buffers.flags import FINAL, TERMINATED
from uniarena.buffers.layout import view

if TYPE_CHECKING:
    from uniarena.buffers.ring import Ring

Leaves = list[np.ndarray]


def gather(
    ring: Ring, places: np.ndarray, flags: np.ndarray, last: np.ndarray | None = None
) -> tuple[Leaves, Leaves, Leaves]:
    """Transitions, as new memory.

    Args:
        ring: where they are.
        places: `[N]` rows that observations, actions and extra fields are read from; wrapped.
        flags: `[N]` of the rows whose successors are the next observations.
        last: `[N]` these rows; None: `places`.

    Returns:
        leaves `[N, …]` of the observations, of the next observations, and of the other fields.
    """
    layout, count = ring.layout, len(places)
    ends = places if last is None else last
    where = np.concatenate((places, ends + ring.columns)) if layout.obs_bytes else places
    block = ring.table.take(where, axis=0, mode="wrap")
    final = (flags & FINAL).nonzero()[0]
    kept = ring.final.take(ends[final], mode="wrap") if len(final) else final
    if len(final) and layout.obs_bytes:
        block[count + final, : layout.obs_bytes] = ring.finals.table[kept]
    others = [view(leaf, block, count) for leaf in layout.others]
    if not ring.stacked:
        leaves = layout.leaves["obs"]
        return (
            [view(leaf, block, count) for leaf in leaves],
            [view(leaf, block, count, count) for leaf in leaves],
            others,
        )
    stacks = iter(
        [_stacks(ring, k, (places, ends), (final, kept), last is None) for k in range(len(ring.stacked))]
    )
    obs, next_obs = [], []
    for leaf in layout.leaves["obs"]:
        before, after = (
            (view(leaf, block, count), view(leaf, block, count, count)) if leaf.offset >= 0 else next(stacks)
        )
        obs.append(before)
        next_obs.append(after)
    return obs, next_obs, others


def known(flags: np.ndarray) -> np.ndarray:
    """Of which rows `[M]` with these flags `gather` gives the true successor: not where an end's was lost."""
    return (flags & TERMINATED == 0) | (flags & FINAL != 0)


def successors(ring: Ring, index: int, places: np.ndarray) -> np.ndarray:
    """One packed leaf (by its place among the observation's) of the observations after rows `[M]` → `[M, …]`."""
    leaf = ring.layout.leaves["obs"][index]
    column = view(leaf, ring.table, ring.places)
    found = column[(places + ring.columns) % ring.places]
    final = np.flatnonzero(ring.flags.take(places, mode="wrap") & FINAL)
    if len(final):
        kept = view(leaf, ring.finals.table, len(ring.finals.table))
        found[final] = kept[ring.final.take(places[final], mode="wrap")]
    return found


def _stacks(
    ring: Ring,
    k: int,
    rows: tuple[np.ndarray, np.ndarray],
    finals: tuple[np.ndarray, np.ndarray],
    shared: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Stacks of a leaf at rows `[N]` and after other rows `[N]`; where these are the same, frames are read once."""
    frames, (places, ends) = ring.stacked[k], rows
    depth = frames.leaf.frames
    after = _frames(ring, k, ends, 1, depth + 1 if shared else depth)
    after[finals[0], -1] = ring.finals.frames[k][finals[1]]
    before = after[:, :-1] if shared else _frames(ring, k, places, 0, depth)
    return frames.assemble(before), frames.assemble(after[:, 1:] if shared else after)


def _frames(ring: Ring, k: int, places: np.ndarray, ahead: int, depth: int) -> np.ndarray:
    """`[N, depth, *frame_shape]`: the frames up to `ahead` rows after each, none from before its episode."""
    frames = ring.stacked[k]
    back, blank = frames.steps_back(ring.age.take(places, mode="wrap") + ahead, depth)
    where = (places + ahead * ring.columns)[:, None] - back * ring.columns
    found = ring.frames[k].take(where.ravel(), axis=0, mode="wrap").reshape(*where.shape, *frames.frame_shape)
    if blank is not None:
        found[blank] = 0
    return found
