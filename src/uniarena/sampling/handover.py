"""A rollout from one process to another: rows stay where they were written, small and rare things go beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout, Tree, tree_map
from uniarena.sampling.shared import MappedMemory, Place, SharedMemory

PARTS = ("rows", "start", "last")


class Outbox:
    """The sending side of one buffer: what of a rollout is not in shared memory yet is copied there.

    Args:
        memory: the shared memory.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._copies: dict[str, Tensor] = {}  # by path in the rollout, of what lies elsewhere
        self._seen: dict[
            str, tuple[Tensor | None, list[Any]]
        ] = {}  # by path: what lies there itself, and where
        self._told: Any = None

    def pack(self, rollout: Rollout) -> tuple[Any, dict[str, Any]]:
        """Where everything lies (None: as the last time), and what is sent itself."""
        used: set[str] = set()
        places = {name: self._places(getattr(rollout, name), name, used) for name in PARTS}
        for path in self._seen.keys() - used:
            del self._seen[path]
            self._copies.pop(path, None)
        layout = {"shape": rollout.rows.shape, "has_final_obs": rollout.has_final_obs, **places}
        known, self._told = self._told == layout, layout
        beside = {name: _plain(getattr(rollout, name)) for name in ("ended", "lost")}
        return (None if known else layout), beside

    def _places(self, batch: Batch, path: str, used: set[str]) -> dict[str, Tree]:
        return {name: self._tree(tree, f"{path}.{name}", used) for name, tree in batch.fields.items()}

    def _tree(self, tree: Tree, path: str, used: set[str]) -> Any:
        if isinstance(tree, dict):
            return {key: self._tree(child, f"{path}.{key}", used) for key, child in tree.items()}
        if isinstance(tree, tuple):
            return tuple([self._tree(child, f"{path}.{index}", used) for index, child in enumerate(tree)])
        used.add(path)
        before, place = self._seen.get(path, (None, []))
        if before is tree:
            return place
        copy = self._copies.get(path)
        if copy is None or copy.shape != tree.shape or copy.dtype != tree.dtype:
            found = self._memory.place(tree)
            self._copies.pop(path, None)
            if found is None:
                copy = self._copies[path] = self._memory.allocate(tuple(tree.shape), tree.dtype)
                found = self._memory.place(copy)
                self._seen[path] = None, [found]
            else:
                copy = None
                self._seen[path] = tree, [found]
        if copy is not None:
            copy.copy_(tree)
        return self._seen[path][1]  # a list, so that no tree takes a place for one of its own tuples


class Inbox:
    """The receiving side of one buffer.

    Args:
        memory: the shared memory, mapped.
    """

    def __init__(self, memory: MappedMemory) -> None:
        self._memory = memory
        self._layout: dict[str, Any] = {}
        self._parts: list[Batch] = []
        self._version = torch.zeros(1, 1, dtype=torch.int64)

    def unpack(self, layout: Any, beside: dict[str, Any], version: int) -> Rollout:
        """The rollout, on the memory that it was written into."""
        if layout is not None:
            self._layout = layout
            shape = layout["shape"]
            self._parts = [
                Batch(shape if name == "rows" else shape[1:], _each_field(layout[name], self._memory.tensor))
                for name in PARTS
            ]
            versions = {"policy_version": self._version.expand(shape)}
            self._parts[0] = Batch(shape, {**self._parts[0].fields, **versions})
        rows, start, last = self._parts
        self._version.fill_(version)
        ended, lost = _tensors(beside["ended"]), _tensors(beside["lost"])
        return Rollout(rows, start, last, ended, self._layout["has_final_obs"], lost)

    @property
    def blocks(self) -> set[int]:
        """Numbers of the blocks that are in use."""
        found: set[int] = set()
        for name in PARTS:
            _each_field(self._layout.get(name, {}), lambda place: found.add(place.block))
        return found


def _each_field(fields: dict[str, Any], fn: Callable[[Place], Any]) -> dict[str, Any]:
    return {name: _each(tree, fn) for name, tree in fields.items()}


def _each(tree: Any, fn: Callable[[Place], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _each(child, fn) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple([_each(child, fn) for child in tree])
    return fn(tree[0])


def _plain(batch: Batch | None) -> Any:
    """A small batch as arrays, which are quicker to send than tensors."""
    if batch is None:
        return None
    return batch.shape, {
        name: tree_map(lambda leaf: leaf.numpy(), tree) for name, tree in batch.fields.items()
    }


def _tensors(sent: Any) -> Batch | None:
    if sent is None:
        return None
    shape, fields = sent
    return Batch(shape, {name: tree_map(_own, tree) for name, tree in fields.items()})


def _own(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array)
