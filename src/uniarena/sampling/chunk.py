"""The memory that a chunk of experience is written into, kept from chunk to chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Tree, tree_leaves, tree_map

Allocate = Callable[..., Tensor]
"""`(shape, dtype, device=…)` → zeroed memory."""


def new_memory(shape: tuple[int, ...], dtype: torch.dtype, device: Any = None) -> Tensor:
    """Memory of this process alone."""
    return torch.zeros(shape, dtype=dtype, device=device)


class Chunk:
    """Memory of one chunk: torch tensors, and per leaf what a row is written through (NumPy views on the CPU).

    Args:
        rows: T.
        obs, action: one row of each, trees of `[B, …]`.
        tensor: whether rows are written as tensors.
        memory: gives memory of a shape and dtype.
    """

    def __init__(self, rows: int, obs: Tree, action: Tree, tensor: bool, memory: Allocate) -> None:
        self.rows, self.tensor, self._memory = rows, tensor, memory
        columns = len(tree_leaves(obs)[0])
        self.obs = tree_map(lambda leaf: self._like(rows + 1, leaf), obs)
        self.action = tree_map(lambda leaf: self._like(rows, leaf), action)
        self.reward = memory((rows, columns), torch.float32)
        self.terminated = memory((rows, columns), torch.bool)
        self.truncated = memory((rows, columns), torch.bool)
        self.valid = memory((rows, columns), torch.bool)
        self.is_first = memory((rows + 1, columns), torch.bool)
        self.obs_row = [tree_map(lambda leaf, t=t: leaf[t], self.obs) for t in range(rows + 1)]
        self.is_first_row = list(self.is_first.unbind(0))
        self.obs_views = tree_map(self.writer, self.obs)
        self.write_obs = tree_leaves(self.obs_views)
        self.write_action = [self.writer(leaf) for leaf in tree_leaves(self.action)]
        self.scalars = tuple(
            self.writer(x) for x in (self.reward, self.terminated, self.truncated, self.is_first)
        )
        self.write_valid = self.writer(self.valid)
        self.fields: dict[str, Tree] = {
            "obs": tree_map(lambda leaf: leaf[:-1], self.obs),
            "action": self.action,
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "is_first": self.is_first[:-1],
            "valid": self.valid,
        }
        self.next_obs: Tree | None = None  # dense successors, where the environment gives them
        self.write_info: dict[str, Any] = {}
        self._figures: dict[str, Tensor] = {}

    def dense(self) -> Tree:
        """Memory of the successors."""
        if self.next_obs is None:
            self.next_obs = tree_map(lambda leaf: self._memory(leaf[:-1].shape, leaf.dtype), self.obs)
        return self.next_obs

    def figure(self, info: dict[str, Tensor], name: str) -> Any:
        """What a figure of this chunk is written through; NaN where a column says nothing."""
        if name not in info:
            if name not in self._figures:
                self._figures[name] = self._memory(self.reward.shape, self.reward.dtype)
                self.write_info[name] = self.writer(self._figures[name])
            info[name] = self._figures[name].fill_(torch.nan)
        return self.write_info[name]

    def _like(self, rows: int, leaf: Any) -> Tensor:
        leaf = torch.as_tensor(leaf)
        dtype = torch.float32 if leaf.dtype == torch.float64 else leaf.dtype
        return self._memory((rows, *leaf.shape), dtype)

    def writer(self, storage: Tensor) -> Any:
        """What rows of this memory are written through."""
        return storage if self.tensor else storage.numpy()
