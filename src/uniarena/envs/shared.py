"""SharedColumns: what the parent and its workers read and write together, in memory that no name outlives."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from gymnasium import Space

from uniarena.batch import Tree, tree_leaves, tree_map
from uniarena.envs.spaces import storage_space
from uniarena.envs.storage import allocate

ALIGNMENT = 64  # a cache line
PENDING, STEPPED, DONE = 0, 1, 2
"""How far a column is: nothing is known yet; its step is known and its reset is due; all is known."""


class SharedColumns:
    """Arrays of B columns over one block of shared memory. It vanishes with the last process that maps it.

    Args:
        observation_space: of one column, as the environment states it.
        action_space: of one column.
        columns: B.
        source: a start-method context of `multiprocessing`, to make the block, or a block that was made.

    Attributes:
        obs, final, action: trees `[B, …]`; observations in storage dtypes, actions in the environment's.
        reward: `[B]` float32; terminated, truncated: `[B]` bool; progress: `[B]` uint8, see `PENDING`.
        block: the memory, which a process is given when it is started.
    """

    def __init__(
        self, observation_space: Space[Any], action_space: Space[Any], columns: int, source: Any
    ) -> None:
        stored = storage_space(observation_space)
        plan: dict[str, Tree] = {
            "obs": allocate(stored, columns),
            "final": allocate(stored, columns),
            "action": allocate(action_space, columns),
            "reward": np.zeros(columns, np.float32),
            "terminated": np.zeros(columns, bool),
            "truncated": np.zeros(columns, bool),
            "progress": np.zeros(columns, np.uint8),
        }
        size = sum(_room(leaf) for leaf in tree_leaves(plan))
        self.block = source.RawArray(ctypes.c_ubyte, size) if hasattr(source, "RawArray") else source
        self._offset = 0
        views: dict[str, Any] = {name: tree_map(self._view, tree) for name, tree in plan.items()}
        self.obs, self.final, self.action = views["obs"], views["final"], views["action"]
        self.reward: np.ndarray = views["reward"]
        self.terminated: np.ndarray = views["terminated"]
        self.truncated: np.ndarray = views["truncated"]
        self.progress: np.ndarray = views["progress"]

    def _view(self, like: np.ndarray) -> np.ndarray:
        view: np.ndarray = np.ndarray(like.shape, like.dtype, buffer=self.block, offset=self._offset)
        self._offset += _room(like)
        return view


def _room(leaf: np.ndarray) -> int:
    return max(1, -(-leaf.nbytes // ALIGNMENT)) * ALIGNMENT
