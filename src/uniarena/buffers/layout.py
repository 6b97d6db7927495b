"""RowLayout: the fields of a row packed into bytes, so that one gather from one table reads whole transitions.

Measured for 256 transitions with 17-dim observations: one gather from a table takes 15 µs, one from each field 30 µs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from uniarena.batch import Tree, tree_unflatten
from uniarena.buffers.frames import Frames
from uniarena.buffers.spec import BufferSpec
from uniarena.envs.spaces import leaf_spaces, storage_space
from uniarena.envs.storage import allocate


class Leaf(NamedTuple):
    """One array of a row.

    Attributes:
        path: where it stands, such as `obs.sensors.pos`.
        shape, dtype: of one row.
        offset: its first byte in the row; -1 where it is kept elsewhere (stacked frames).
        strides: of its own axes.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class RowLayout:
    """Where every leaf of `obs`, `action` and the extra fields lies in a row of bytes; the observation comes first.

    Args:
        spaces: field → space of one row, `obs` first.
        elsewhere: paths (`obs.cam`) that are not packed.

    Attributes:
        leaves: field → its leaves in the order of `batch.tree_leaves`.
        fields: names of what is not the observation; `others`: its leaves.
        row_bytes, obs_bytes: length of a row, and of the part that is the observation.
    """

    def __init__(self, spaces: Mapping[str, Space[Any]], elsewhere: Sequence[str] = ()) -> None:
        self.leaves: dict[str, list[Leaf]] = {}
        self._like: dict[str, Tree] = {}
        self.bare: dict[str, bool] = {}
        offset, self.obs_bytes, widest = 0, 0, 1
        for field, space in spaces.items():
            stored = storage_space(space)
            self._like[field] = allocate(stored)
            self.leaves[field] = leaves = []
            for path, leaf in leaf_spaces(stored):
                dtype = np.dtype(leaf.dtype)
                name = f"{field}.{path}" if path else field
                packed = name not in elsewhere
                if packed:
                    widest = max(widest, dtype.itemsize)
                    offset = _aligned(offset, dtype.itemsize)
                shape = tuple(leaf.shape or ())
                leaves.append(Leaf(name, shape, dtype, offset if packed else -1, _strides(shape, dtype)))
                offset += leaves[-1].nbytes if packed else 0
            self.bare[field] = not isinstance(self._like[field], (dict, tuple))
            if field == "obs":
                offset = self.obs_bytes = _aligned(offset, widest)
        self.row_bytes = _aligned(offset, widest)
        self.fields = tuple(name for name in spaces if name != "obs")
        self.others = [leaf for name in self.fields for leaf in self.leaves[name]]
        stops = list(accumulate(len(self.leaves[name]) for name in self.fields))
        self._groups = list(zip(self.fields, [0, *stops], stops, strict=False))
        self._like["next_obs"], self.bare["next_obs"] = self._like["obs"], self.bare["obs"]

    def packed(self, field: str) -> list[Leaf]:
        """The leaves of a field that lie in the row."""
        return [leaf for leaf in self.leaves[field] if leaf.offset >= 0]

    def grouped(self, leaves: Sequence[Any]) -> list[tuple[str, Sequence[Any]]]:
        """Leaves of all other fields than the observation, one after the other → (field, its leaves)."""
        return [(name, leaves[start:stop]) for name, start, stop in self._groups]

    def flatten(self, field: str, tree: Tree) -> list[Any]:
        """Leaves of a tree in the order of `leaves`, whatever the order of its keys.

        Raises:
            KeyError: a part that the space has is missing.
        """
        return [tree] if self.bare[field] else _flatten(self._like[field], tree)

    def tree(self, field: str, leaves: Sequence[Any]) -> Tree:
        """A tree of the field's structure from its leaves."""
        return leaves[0] if self.bare[field] else tree_unflatten(self._like[field], leaves)

    def describe(self) -> list[list[Any]]:
        """Plain data that two equal layouts share."""
        every = [leaf for leaves in self.leaves.values() for leaf in leaves]
        return [[leaf.path, list(leaf.shape), leaf.dtype.str] for leaf in every]


def view(leaf: Leaf, table: np.ndarray, count: int, start: int = 0) -> np.ndarray:
    """A leaf of the rows `start …` of a byte table `[M, row_bytes]` as `[count, *shape]`, sharing its memory."""
    row = table.strides[0]
    return np.ndarray(
        (count, *leaf.shape), leaf.dtype, table, start * row + leaf.offset, (row, *leaf.strides)
    )


def _flatten(like: Tree, tree: Tree) -> list[Any]:
    if isinstance(like, dict):
        return [leaf for key, child in like.items() for leaf in _flatten(child, tree[key])]
    if isinstance(like, tuple):
        return [leaf for child, part in zip(like, tree, strict=True) for leaf in _flatten(child, part)]
    return [tree]


def _aligned(offset: int, size: int) -> int:
    return -(-offset // size) * size


def _strides(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    strides, step = [], dtype.itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def make_layout(spec: BufferSpec) -> tuple[list[Frames], RowLayout]:
    """The stacked leaves, and where all others lie in a row."""
    paths = {leaf.path: leaf for leaf in spec.stacks}
    fields = {"obs": spec.observation_space, "action": spec.policy_space, **spec.extra}
    layout = RowLayout(fields, [f"obs.{path}" if path else "obs" for path in paths])
    names = [leaf.path.removeprefix("obs").removeprefix(".") for leaf in layout.leaves["obs"]]
    if missing := set(paths) - set(names):
        raise ValueError(
            f"stacked leaves {sorted(missing)} are not in the observation; its leaves are {names}."
        )
    stacked = [
        Frames(paths[name], k, leaf.shape, leaf.dtype)
        for k, (name, leaf) in enumerate(zip(names, layout.leaves["obs"], strict=True))
        if name in paths
    ]
    return stacked, layout
