"""A batched counter in every form that wrappers meet: NumPy or torch, each autoreset mode, dense or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import Space, spaces

from uniarena.batch import tree_map
from uniarena.envs.actions import ActionMap
from uniarena.envs.protocol import Final, Step

Mode = Literal["same_step", "next_step", "tensor_same_step", "tensor_dense", "tensor_dense_in_place"]
MODES: tuple[Mode, ...] = (
    "same_step",
    "next_step",
    "tensor_same_step",
    "tensor_dense",
    "tensor_dense_in_place",
)


class Columns:
    """All elements of column b's observation are 40·b + 10·episode + step; episodes last `lengths[b]` steps.

    The memory of observations, rewards and flags is reused by every call, as the contract allows.
    """

    has_final_obs = True
    partial_reset = True
    device = torch.device("cpu")
    env_id = "columns"

    def __init__(
        self,
        mode: Mode = "same_step",
        space: Space[Any] | None = None,
        lengths: Sequence[int] = (2, 3, 5),
        action_space: Space[Any] | None = None,
        end: str = "termination",
    ) -> None:
        self.mode, self.tensor, self.end = mode, mode.startswith("tensor"), end
        self.observation_space = space or spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = action_space or spaces.Discrete(2)
        self.action_map = ActionMap(self.action_space)
        self.lengths = np.array(lengths)
        self.num_envs = len(lengths)
        self.t = np.zeros(self.num_envs, np.int64)
        self.episode = np.full(self.num_envs, -1)
        self.pending = np.zeros(self.num_envs, bool)
        self.actions: list[Any] = []
        self.resets: list[Any] = []
        self.closed = False
        self._memory = self._observe()
        self._reward = self._own(np.zeros(self.num_envs, np.float32))

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None, mask: Any | None = None
    ) -> Any:
        chosen = np.ones(self.num_envs, bool) if mask is None else numpy(mask)
        self.resets.append((seed, chosen.copy()))
        self.t[chosen], self.pending[chosen] = 0, False
        self.episode[chosen] += 1
        self._reward[...] = 0
        return self._shown()

    def step(self, action: Any) -> Step:
        self.actions.append(numpy(action))
        resetting = self.pending.copy()
        self.t = np.where(resetting, 0, self.t + 1)
        self.episode += resetting
        ended = ~resetting & (self.t >= self.lengths)
        self._reward[...] = self._own(np.where(resetting, 0, self.t).astype(np.float32))
        true_next = self._observe()
        index = np.flatnonzero(ended)
        final = Final(self._own(index), tree_map(lambda leaf: leaf[index], true_next)) if len(index) else None
        if self.mode == "next_step":
            self.pending, first = ended, resetting
        else:
            self.t[ended] = 0
            self.episode += ended
            first = ended
        obs = self._shown()
        dense = self.mode.startswith("tensor_dense")
        if self.mode == "tensor_dense_in_place" and final is None:
            true_next = obs  # nothing ended: a simulator may hand out one memory as both
        none = np.zeros(self.num_envs, bool)
        flags = (ended, none) if self.end == "termination" else (none, ended)
        return Step(
            obs=obs,
            reward=self._reward,
            terminated=self._own(flags[0].copy()),
            truncated=self._own(flags[1].copy()),
            is_first=self._own(first.copy()),
            valid=~resetting if self.mode == "next_step" else None,
            final=None if dense else final,
            next_obs=true_next if dense else None,
        )

    def close(self) -> None:
        self.closed = True

    def render(self) -> np.ndarray | None:
        return np.full((64, 64, 3), 40 + 10 * self.t[0], np.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {"t": self.t.copy(), "episode": self.episode.copy(), "pending": self.pending.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.t, self.episode, self.pending = (state[key].copy() for key in ("t", "episode", "pending"))

    def get_attr(self, name: str) -> list[Any]:
        return [getattr(self, name)] * self.num_envs

    def set_attr(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return [getattr(self, name)(*args, **kwargs)] * self.num_envs

    def numbers(self, first: int, second: int = 1) -> int:
        """A method to be reached by `call`."""
        return first * second

    def _observe(self) -> Any:
        """Fresh memory."""
        value = 40 * np.arange(self.num_envs) + 10 * np.maximum(self.episode, 0) + self.t

        def leaf(space: Space[Any]) -> Any:
            shape = (self.num_envs, *(space.shape or ()))
            rows = np.broadcast_to(value.reshape(-1, *[1] * (len(shape) - 1)), shape)
            return self._own((rows % 256 if space.dtype == np.uint8 else rows).astype(space.dtype))

        return _map_leaves(leaf, self.observation_space)

    def _shown(self) -> Any:
        def write(memory: Any, fresh: Any) -> Any:
            memory[...] = fresh
            return memory

        return tree_map(write, self._memory, self._observe())

    def _own(self, array: np.ndarray) -> Any:
        return torch.from_numpy(array) if self.tensor else array


def _map_leaves(fn: Any, space: Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _map_leaves(fn, child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_map_leaves(fn, child) for child in space.spaces)
    return fn(space)


def zeros(env: Any) -> Any:
    """Actions that do nothing, `[B, …]`, of the policy's space."""
    space = env.action_map.policy_space
    rows = _map_leaves(lambda leaf: np.zeros((env.num_envs, *(leaf.shape or ())), leaf.dtype), space)
    return tree_map(torch.from_numpy, rows) if env.tensor else rows


def numpy(tree: Any) -> Any:
    """The tree copied into NumPy."""
    return tree_map(
        lambda leaf: leaf.numpy().copy() if isinstance(leaf, torch.Tensor) else np.array(leaf), tree
    )
