"""BufferSpec: what a replay buffer must know of the run to lay out its memory and to sum its returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from uniarena.batch import Tree
from uniarena.buffers.frames import StackedLeaf
from uniarena.config import ConfigError

GoalReward = Callable[[Any, Any, Mapping[str, Any]], tuple[Any, Any]]
"""(achieved `[N, …]`, desired `[N, …]`, stored extra fields `[N, …]`) → (reward `[N]`, terminated `[N]` bool). Pure."""


@dataclass(frozen=True)
class BufferSpec:
    """Handed over at assembly.

    Attributes:
        observation_space, policy_space: of one row; the action space is the policy's own (Discrete from 0).
        columns: B, how many environments feed the buffer side by side.
        gamma: discount of one step.
        batch_size: rows in a sample.
        device: where samples go.
        n_step: steps summed into one reward at most.
        stacks: leaves of the observation that are stacks of frames; see `frames.find_stacks`.
        goal_reward: recomputes the reward for another goal; see `her.goal_reward_of`.
        successors: say of which rows they are known, and give every step's of a window; see `ReplayBuffer.sample`.
        extra: further fields of a row to keep and to sample, name → space of one row (`bonus`, `log_prob`, `state`).
        action_space: the environment's own, which data from elsewhere is read by; None: the data must say it.
        asked: what a learner asks for beside each transition (`Learner.records`): `next_action`, `return_to_go`.
    """

    observation_space: Space[Any]
    policy_space: Space[Any]
    columns: int = 1
    gamma: float = 0.99
    batch_size: int = 256
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    n_step: int = 1
    stacks: tuple[StackedLeaf, ...] = ()
    goal_reward: GoalReward | None = None
    successors: bool = False
    extra: Mapping[str, Space[Any]] = field(default_factory=dict)
    action_space: Space[Any] | None = None
    asked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("columns", "batch_size", "n_step"):
            if getattr(self, name) < 1:
                raise ValueError(f"BufferSpec.{name} is {getattr(self, name)}; expected 1 or more.")


def stored_state(initial: Tree | None, buffer: Any, stored: bool) -> dict[str, Space[Any]]:
    """The extra field `state` of a run whose networks have memory; nothing where they have none, or it is not stored.

    Args:
        initial: the state of one column, `[1, …]`; None without memory.
        buffer: class of the buffer.
        stored: whether the state of every row is to be kept.

    Raises:
        ConfigError: networks with memory, and a buffer that gives single rows.
    """
    if initial is None:
        return {}
    if not getattr(buffer, "gives_sequences", False):
        raise ConfigError(
            f"networks with memory learn from sequences, and {buffer.__name__} gives single rows.",
            path="agent.buffer.type",
            hint="write agent.buffer: {type: sequence}, or remove agent.memory.",
        )
    return {"state": _space_of(initial)} if stored else {}


def _space_of(tree: Tree) -> Space[Any]:
    """The space of one column's state `[1, …]`."""
    if isinstance(tree, dict):
        return spaces.Dict([(key, _space_of(child)) for key, child in tree.items()])
    if isinstance(tree, tuple):
        return spaces.Tuple([_space_of(child) for child in tree])
    return spaces.Box(-np.inf, np.inf, tuple(tree.shape[1:]), np.float32)
