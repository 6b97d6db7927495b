"""SumTree: numbers in [0, ∞) whose sums make drawing in proportion to them cost O(log n). Vectorised, float64.

Every node has 16 children, which is what NumPy likes best: few levels, each a gather and a small matrix product. A node
is always summed from its children, never moved by differences, so that no error builds up.
"""

from __future__ import annotations

import numpy as np

FAN, SHIFT = 16, 4
TOP = 256
"""Nodes that are left when no further level pays; these are searched at once."""
_BEFORE = np.triu(np.ones((FAN, FAN)), 1)
"""children `[N, 16]` @ this = the sum of the children before each."""


class SumTree:
    """`size` numbers, all 0 at first. Any size.

    Args:
        size: how many.

    Attributes:
        leaves: the numbers, `[size]`; change them through `set` only.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._levels: list[np.ndarray] = []
        count = size
        while not self._levels or count > TOP:
            count = -(-count // FAN)
            self._levels.append(np.zeros((count, FAN)))
        self._top = np.zeros(count)
        self._cumulated = np.zeros(count)
        self._flat = [level.reshape(-1) for level in self._levels[1:]]
        self.leaves = self._levels[0].reshape(-1)[:size]
        self._changed: list[np.ndarray] = []
        self._count = 0  # of entries in `_changed`
        # Memory that `find` works in, for one number of draws.
        self._row, self._before, self._passed = np.arange(0), np.empty(0), np.empty(0, bool)

    def set(self, index: np.ndarray, value: np.ndarray | float) -> None:
        """Exchange the numbers at `index` `[N]`; where one comes twice, the last value stays."""
        self.leaves[index] = value
        if self._count <= self.size // FAN:
            self._changed.append(index)
        self._count += len(index)

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        self._settle()
        return float(self._cumulated[-1])

    def find(self, mass: np.ndarray) -> np.ndarray:
        """Which number the running sum reaches at `mass` `[N]` in [0, total): i with Σ_{j<i} x_j ≤ mass < Σ_{j≤i} x_j.

        Rounding may give a neighbour of it, in the worst case one that is 0.
        """
        self._settle()
        node = self._cumulated.searchsorted(mass, side="right")
        np.minimum(node, len(self._top) - 1, out=node)
        mass = mass - (self._cumulated.take(node) - self._top.take(node))
        if len(mass) != len(self._row):
            self._row = np.arange(0, len(mass) * FAN, FAN)
            self._before, self._passed = np.empty((len(mass), FAN)), np.empty((len(mass), FAN), bool)
        row, before, passed = self._row, self._before, self._passed
        for level in reversed(self._levels):
            np.dot(level.take(node, axis=0), _BEFORE, out=before)
            np.less_equal(before, mass[:, None], out=passed)
            child = (passed.argmin(axis=1) - 1) & (FAN - 1)  # the last where sums stay ≤ mass
            mass = mass - before.reshape(-1).take(row + child)
            node = (node << SHIFT) + child
        return np.minimum(node, self.size - 1)

    def restore(self, leaves: np.ndarray, start: int = 0) -> None:
        """Take over numbers from `start` on; all others are 0."""
        self.leaves[:] = 0
        self.leaves[start : start + len(leaves)] = leaves
        self._count = self.size

    def _settle(self) -> None:
        """Sum again what lies above changed numbers."""
        if not self._count:
            return
        *below, last = self._levels
        if self._count > self.size // FAN:
            for level, above in zip(below, self._flat, strict=True):
                above[: len(level)] = _sums(level)
        else:
            changed = self._changed
            index = changed[0] if len(changed) == 1 else np.concatenate(changed)
            for level, above in zip(below, self._flat, strict=True):
                index = index >> SHIFT
                above[index] = _sums(level.take(index, axis=0))
        self._changed, self._count = [], 0
        np.add.accumulate(_sums(last, self._top), out=self._cumulated)


def _sums(children: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """`[N, 16]` → `[N]`. Each row is added in the same order for any N: a tree made anew equals one that grew."""
    sums: np.ndarray = np.einsum("ij->i", children, out=out)
    return sums
