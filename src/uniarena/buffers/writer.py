"""RowWriter: the way into a ring's rows, and the observation that its next chunk should start with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from uniarena.buffers.chunk import Chunk, ChunkReader, as_array, equal_bits
from uniarena.buffers.frames import Frames
from uniarena.buffers.layout import RowLayout, view

Newest = Callable[[np.ndarray], np.ndarray]


class RowWriter:
    """Views `[rows, B, …]` of every leaf, through which rows are written.

    Args:
        layout: of a row.
        stacked: leaves that are kept as frames.
        table, frames: the ring's memory, `[places, …]`.
        columns: B.
    """

    def __init__(
        self,
        layout: RowLayout,
        stacked: Sequence[Frames],
        table: np.ndarray,
        frames: Sequence[np.ndarray],
        columns: int,
    ) -> None:
        self.layout, self.reader = layout, ChunkReader(layout)
        places = len(table)

        def grid(array: np.ndarray) -> np.ndarray:
            return array.reshape(places // columns, columns, *array.shape[1:])

        self._fields = [
            (name, [(leaf.path, grid(view(leaf, table, places))) for leaf in layout.leaves[name]])
            for name in layout.fields
        ]
        kept = {each.index: (grid(array), each.newest) for each, array in zip(stacked, frames, strict=True)}
        self._obs: list[tuple[str, np.ndarray, Newest | None]] = [
            (leaf.path, *kept[k]) if k in kept else (leaf.path, grid(view(leaf, table, places)), None)
            for k, leaf in enumerate(layout.leaves["obs"])
        ]
        self._simple = layout.bare["obs"] and not stacked  # one array, kept as it is
        self._open: list[bytes] = []

    def continues(self, rows: Mapping[str, Any]) -> bool:
        """Whether a chunk starts with the open observation, in every column."""
        obs = rows["obs"]
        if self._simple:
            return self.reader.array("obs", obs)[0].tobytes() == self._open[0]
        for leaf, (_, _, newest), before in zip(
            self.layout.flatten("obs", obs), self._obs, self._open, strict=True
        ):
            array = as_array(leaf)[0]
            if (array if newest is None else newest(array)).tobytes() != before:
                return False
        return True

    def same_start(self, chunk: Chunk, row: int) -> np.ndarray:
        """`[B]` columns in which a chunk starts with the observation that is open at `row`."""
        same = np.ones(len(chunk.last_first), bool)
        for leaf, (_, grid, newest) in zip(chunk.obs, self._obs, strict=True):
            given = leaf[0] if newest is None else newest(leaf[0])
            same &= equal_bits(given.astype(grid.dtype, copy=False), grid[row])
        return same

    def put_plain(self, at: slice, rows: Mapping[str, Any], last: Any) -> None:
        """Write a chunk whose first observation is there already."""
        array_of = self.reader.array
        if at.stop - at.start > 1:
            behind = slice(at.start + 1, at.stop)
            for leaf, (_, grid, newest) in zip(
                self.layout.flatten("obs", rows["obs"]), self._obs, strict=True
            ):
                array = as_array(leaf)[1:]
                grid[behind] = array if newest is None else newest(array)
        for name, grids in self._fields:
            leaves = self.layout.flatten(name, rows[name])
            for (path, grid), leaf in zip(grids, leaves, strict=True):
                grid[at] = array_of(path, leaf)
        self.put_open(at.stop, last)

    def put(self, rows: Any, chunk: Chunk, first_obs: bool) -> None:
        """Write a chunk at the index `rows`; without `first_obs` its first observation is there already."""
        if first_obs or chunk.steps > 1:
            for leaf, (_, grid, newest) in zip(chunk.obs, self._obs, strict=True):
                grid[rows] = leaf if newest is None else newest(leaf)
        grids = [grid for _, group in self._fields for _, grid in group]
        for grid, leaf in zip(grids, chunk.fields, strict=True):
            grid[rows] = leaf

    def put_open(self, row: int, last: Any) -> None:
        """Write the observation `[B, …]` that the next chunk should start with: a tree, or its leaves as a list."""
        if self._simple and not isinstance(last, list):
            grid, array = self._obs[0][1], as_array(last)
            grid[row] = array
            self._open = [array.tobytes() if array.dtype == grid.dtype else grid[row].tobytes()]
            return
        leaves = last if isinstance(last, list) else self.layout.flatten("obs", last)
        found = []
        for leaf, (_, grid, newest) in zip(leaves, self._obs, strict=True):
            array = as_array(leaf)
            array = array if newest is None else newest(array)
            grid[row] = array
            found.append(array.tobytes() if array.dtype == grid.dtype else grid[row].tobytes())
        self._open = found

    def reopen(self, row: int) -> None:
        """The observation at `row` is the open one again."""
        self._open = [grid[row].tobytes() for _, grid, _ in self._obs]
