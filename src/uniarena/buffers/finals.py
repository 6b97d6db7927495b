"""FinalStore: the true last observations of episodes, kept beside the ring, whose rows go on with the next episode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uniarena.buffers.frames import Frames
from uniarena.buffers.layout import RowLayout, view
from uniarena.buffers.memory import Memory

FIRST_SIZE = 64


class FinalStore:
    """Observations in numbered places; the store doubles when it is full, and places are used again.

    Args:
        layout: of rows; places hold the part that is the observation.
        stacked: leaves of which only the newest frame is kept.
        memory: where arrays come from.

    Attributes:
        table: `[places, obs_bytes]`.
        frames: per stacked leaf, `[places, *frame_shape]`.
    """

    def __init__(self, layout: RowLayout, stacked: Sequence[Frames], memory: Memory) -> None:
        self._layout, self._stacked, self._memory = layout, stacked, memory
        self.table = memory.zeros("finals", (FIRST_SIZE, layout.obs_bytes), np.uint8)
        self.frames = [
            memory.zeros(f"finals-{k}", (FIRST_SIZE, *each.frame_shape), each.dtype)
            for k, each in enumerate(stacked)
        ]
        self._packed = [k for k, leaf in enumerate(layout.leaves["obs"]) if leaf.offset >= 0]
        self.clear()

    def clear(self) -> None:
        """Forget everything; the memory stays."""
        self._free: list[int] = []
        self._top = 0
        self._bind()

    @property
    def used(self) -> int:
        """Observations that are kept."""
        return self._top - len(self._free)

    def put(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """Keep observations, given as leaves `[K, …]` in the order of the observation's → their places `[K]`."""
        count = len(leaves[0])
        places = self._take(count)
        for k, target in zip(self._packed, self._views, strict=True):
            target[places] = leaves[k]
        for frames, target in zip(self._stacked, self.frames, strict=True):
            target[places] = frames.newest(leaves[frames.index])
        return places

    def put_rows(self, table: np.ndarray, frames: Sequence[np.ndarray]) -> np.ndarray:
        """Keep observations given as they are stored here → their places `[K]`."""
        places = self._take(len(table))
        self.table[places] = table
        for target, given in zip(self.frames, frames, strict=True):
            target[places] = given
        return places

    def release(self, places: np.ndarray) -> None:
        """These places may be used again."""
        self._free.extend(places.tolist())

    def _take(self, count: int) -> np.ndarray:
        reused = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = count - len(reused)
        if self._top + fresh > len(self.table):
            self._grow(max(2 * len(self.table), self._top + fresh))
        places = np.array(reused + list(range(self._top, self._top + fresh)), np.int32)
        self._top += fresh
        return places

    def _grow(self, size: int) -> None:
        self.table = self._memory.grown(self.table, "finals", size)
        self.frames = [self._memory.grown(each, f"finals-{k}", size) for k, each in enumerate(self.frames)]
        self._bind()

    def _bind(self) -> None:
        leaves = [self._layout.leaves["obs"][k] for k in self._packed]
        self._views = [view(leaf, self.table, len(self.table)) for leaf in leaves]
