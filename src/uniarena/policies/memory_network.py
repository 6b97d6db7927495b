"""The built-in policy with memory: encoder → memory → towers."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from uniarena.batch import Tree
from uniarena.nets.encoders import Encoder
from uniarena.nets.memory import Memory
from uniarena.nets.tower import Tower
from uniarena.policies.network import NetworkOutput


class Trunk(nn.Module):
    """Encoder and memory: observations → features that know of the rows before."""

    def __init__(self, encoder: Encoder, memory: Memory) -> None:
        super().__init__()
        self.encoder, self.memory = encoder, memory

    @property
    def out_dim(self) -> int:
        """Width of the features."""
        return self.memory.out_dim

    def forward(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, Tree]:
        """A row `[N, …]` or a sequence `[T, N, …]` of observations → its features and the state after it."""
        features: tuple[Tensor, Tree] = self.memory(self.encoder(obs), state, is_first)
        return features


class Judge(NamedTuple):
    """The value's own way through a `MemoryNetwork`; `trunk` is None where the policy's serves both."""

    tower: Tower
    trunk: Trunk | None = None


class MemoryNetwork(nn.Module):
    """A policy tower on a trunk with memory, and a value tower on the same trunk or on one of its own.

    With a trunk of its own the value remembers for itself. Whoever acts carries its state along, so that a value of the
    middle of an episode, or of its last observation, is that of the history that was.

    Args:
        trunk: of the policy.
        actor: its tower.
        judge: of the value; None: there is no value.
    """

    def __init__(self, trunk: Trunk, actor: Tower, judge: Judge | None = None) -> None:
        super().__init__()
        self.trunk, self.actor = trunk, actor
        self.critic = None if judge is None else judge.tower
        self.critic_trunk = None if judge is None else judge.trunk

    @property
    def gives_value(self) -> bool:
        """Whether the output holds a value."""
        return self.critic is not None

    def forward(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> NetworkOutput:
        features, other, state = self._features(obs, state, is_first)
        value = None if self.critic is None else self.critic(other).squeeze(-1)
        return NetworkOutput(self.actor(features), value, state)

    def params(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, Tree]:
        """Parameters and the state after the row: the value tower is not run."""
        features, _, state = self._features(obs, state, is_first)
        return self.actor(features), state

    def value(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> Tensor:
        """Values alone: nothing of the policy but a shared trunk is run."""
        assert self.critic is not None
        if self.critic_trunk is None:
            features = self.trunk(obs, state, is_first)[0]
        else:
            features = self.critic_trunk(obs, None if state is None else state["value"], is_first)[0]
        return self.critic(features).squeeze(-1)

    def initial_state(self, count: int) -> Tree:
        """The state of `count` fresh columns: the memory's, or with two of them `{policy, value}`."""
        own = self.trunk.memory.initial_state(count)
        if self.critic_trunk is None:
            return own
        return {"policy": own, "value": self.critic_trunk.memory.initial_state(count)}

    def _features(
        self, obs: Tree, state: Tree | None, is_first: Tensor | None
    ) -> tuple[Tensor, Tensor, Tree]:
        """Features for the policy and for the value, and the state after the row."""
        if self.critic_trunk is None:
            features, state = self.trunk(obs, state, is_first)
            return features, features, state
        before = {"policy": None, "value": None} if state is None else state
        features, own = self.trunk(obs, before["policy"], is_first)
        other, judged = self.critic_trunk(obs, before["value"], is_first)
        return features, other, {"policy": own, "value": judged}
