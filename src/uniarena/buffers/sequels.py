"""What came after a row in the data: the next action, and what the rest of the episode paid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from uniarena.buffers.flags import STOP
from uniarena.buffers.layout import view

if TYPE_CHECKING:
    from uniarena.buffers.ring import Ring


def next_actions(ring: Ring, ends: np.ndarray, flags: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The actions taken after rows `[N]`.

    Args:
        ends: places, not wrapped.
        flags: theirs.

    Returns:
        leaves `[N, …]` of the actions, and `[N]` bool: there was one. Where there was none the leaves mean nothing.
    """
    followed = ((flags & STOP) == 0) & (ends < ring.newest_place)
    block = ring.table.take(ends + ring.columns, axis=0, mode="wrap")
    return [view(leaf, block, len(ends)) for leaf in ring.layout.leaves["action"]], followed


def returns_to_go(reward: np.ndarray, stop: np.ndarray, gamma: float) -> np.ndarray:
    """Σ γᵏ·r of each row `[M]` and of those after it, up to the next row where `stop [M]`."""
    rest, found = 0.0, []
    # plain numbers: of a million rows it takes a fraction of a second
    pairs = zip(reward[::-1].astype(np.float64).tolist(), stop[::-1].tolist(), strict=True)
    for own, last in pairs:
        rest = own if last else own + gamma * rest
        found.append(rest)
    return np.array(found[::-1], np.float32)


class ReturnsToGo:
    """Σ γᵏ·r of a row and of all that follow it in its episode, as far as they are stored: nothing is bootstrapped.

    One pass over the ring, which is taken again only where rows came in since.

    Args:
        ring: whose rows.
        gamma: discount of one step.
    """

    def __init__(self, ring: Ring, gamma: float) -> None:
        self._ring, self._gamma, self._known_to = ring, gamma, -1
        self._found = np.zeros(0, np.float32)

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """Of rows `[N]` (places, wrapped here) → `[N]` float32."""
        if self._known_to != self._ring.cursor:
            self._found, self._known_to = self._all(), self._ring.cursor
        return self._found.take(places, mode="wrap")

    def _all(self) -> np.ndarray:
        ring = self._ring
        found = np.zeros((ring.rows, ring.columns), np.float32)
        order = np.arange(ring.oldest, ring.cursor) % ring.rows
        rewards = ring.reward.reshape(found.shape)[order]
        stops = (ring.flags.reshape(found.shape)[order] & STOP) != 0
        for column in range(ring.columns):
            found[order, column] = returns_to_go(rewards[:, column], stops[:, column], self._gamma)
        return found.reshape(-1)
