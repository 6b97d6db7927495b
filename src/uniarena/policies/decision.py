"""Policies asked for a return: what was wanted, seen and done so far → what to do now."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional as F

from uniarena.batch import Tree, tree_leaves
from uniarena.config import ConfigError
from uniarena.envs.spaces import MASK, describe
from uniarena.nets.encoders import Encoder
from uniarena.nets.memory import Memory
from uniarena.nets.tower import Tower
from uniarena.policies.action_scale import ActionScale
from uniarena.policies.frozen import FrozenPolicy
from uniarena.policies.network import NetworkOutput
from uniarena.policies.noise import Generator
from uniarena.policies.policy import Policy


class ActionCode(nn.Module):
    """Actions as numbers that a network takes: scaled by their bounds, or one of n.

    Args:
        space: Box, Dict and Tuple of Boxes, or Discrete.

    Attributes:
        width: A, how many numbers.

    Raises:
        ConfigError: another kind of action.
    """

    def __init__(self, space: Space[Any]) -> None:
        super().__init__()
        self.scale = None
        if isinstance(space, spaces.Discrete):
            self.width = int(space.n)
        elif isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
            raise ConfigError(
                f"this learner is for Box and Discrete actions; the action space is {describe(space)}.",
                path="learner.type",
                hint="use bc, which takes every space.",
            )
        else:
            self.scale = ActionScale(space)
            self.width = self.scale.dims

    def forward(self, action: Tree) -> Tensor:
        """`[N, …]` → `[N, A]`."""
        if self.scale is None:
            return F.one_hot(action.long(), self.width).float()
        return self.scale(action)


class DecisionNetwork(nn.Module):
    """Every row is one token, made of its return-to-go, its observation and the action before it.

    A state holds `return_to_go [B]` of the row before, its `reward [B]`, which whoever steps the environment puts
    there, its `action [B, A]`, and the `memory`. A row that begins an episode is asked for `target`.

    Args:
        encoder: of (normalised) observations.
        memory: over tokens; built for features of width F + 1 + A.
        actor: from what it gives to the head's parameters.
        code: of actions.
        target: the return that an episode is to have; None: the largest that was seen in the data.

    Attributes:
        code: as given.
        largest: 0-d, the largest return-to-go seen; `magnitude`: the largest |return-to-go|, their unit.
    """

    gives_value = False
    largest: Tensor
    magnitude: Tensor

    def __init__(
        self, encoder: Encoder, memory: Memory, actor: Tower, code: ActionCode, target: float | None
    ) -> None:
        super().__init__()
        self.encoder, self.memory, self.actor, self.code, self._wanted = encoder, memory, actor, code, target
        self.register_buffer("largest", torch.tensor(-torch.inf))
        self.register_buffer("magnitude", torch.tensor(0.0))

    @property
    def target(self) -> Tensor:
        """0-d: what the first row of an episode is asked for."""
        if self._wanted is not None:
            return torch.full_like(self.largest, self._wanted)
        return self.largest.nan_to_num(neginf=0.0)

    @torch.no_grad()
    def look(self, return_to_go: Tensor) -> None:
        """Take in the returns of data, any shape."""
        self.largest.copy_(torch.maximum(self.largest, return_to_go.max()))
        self.magnitude.copy_(torch.maximum(self.magnitude, return_to_go.abs().max()))

    def token(self, obs: Tree, return_to_go: Tensor, action: Tensor) -> Tensor:
        """Features of observations `[…, *leaf]`, returns `[…]`, and codes of the actions before, `[…, A]`."""
        unit = torch.where(self.magnitude > 0.0, self.magnitude, 1.0)
        return torch.cat([self.encoder(obs), (return_to_go / unit).unsqueeze(-1), action], dim=-1)

    def sequence(self, obs: Tree, return_to_go: Tensor, action: Tensor, is_first: Tensor) -> Tensor:
        """Parameters `[T, N, P]` of sequences that begin without memory; arguments are `[T, N, …]`."""
        features, _ = self.memory(self.token(obs, return_to_go, action), None, is_first)
        params: Tensor = self.actor(features)
        return params

    def params(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, Tree]:
        """Parameters `[B, P]` of one row, and the state after it, whose `action` is for the caller to fill in."""
        rows = len(tree_leaves(obs)[0])
        state = self.initial_state(rows) if state is None else state
        fresh = (
            torch.zeros(rows, dtype=torch.bool, device=self.largest.device) if is_first is None else is_first
        )
        rest = torch.where(fresh, self.target, state["return_to_go"] - state["reward"])
        action = torch.where(fresh[:, None], 0.0, state["action"])
        features, memory = self.memory(self.token(obs, rest, action), state["memory"], fresh)
        after = {"return_to_go": rest, "reward": torch.zeros_like(rest), "action": action, "memory": memory}
        return self.actor(features), after

    def forward(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> NetworkOutput:
        params, state = self.params(obs, state, is_first)
        return NetworkOutput(params, None, state)

    def initial_state(self, count: int) -> Tree:
        """The state before the first row of `count` episodes."""
        zeros = torch.zeros(count, device=self.largest.device)
        return {
            "return_to_go": self.target.expand(count).clone(),
            "reward": zeros,
            "action": zeros[:, None].expand(count, self.code.width).clone(),
            "memory": self.memory.initial_state(count),
        }


class DecisionPolicy(Policy):
    """The policy of a `DecisionNetwork`."""

    def frozen(self) -> FrozenDecision:
        return FrozenDecision(self.network, self.head, self.normalizer)


class FrozenDecision(FrozenPolicy):
    """Remembers the actions that it gives."""

    def sample(
        self,
        obs: Tree,
        state: Tree | None = None,
        is_first: Tensor | None = None,
        noise: Tree | None = None,
        generator: Generator = None,
    ) -> tuple[Tree, Tree | None]:
        params, state = self.params(obs, state, is_first)
        return self._done(self.head.sample(params, noise, _mask(obs), generator), state)

    def mode(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tree, Tree | None]:
        params, state = self.params(obs, state, is_first)
        return self._done(self.head.mode(params, _mask(obs)), state)

    def _done(self, action: Tree, state: Any) -> tuple[Tree, Tree]:
        network: Any = self.network
        return action, {**state, "action": network.code(action)}


def told(state: Tree | None, reward: Any) -> Tree | None:
    """The state of a policy that must know what its last action earned, `[B]`; that of any other as it is."""
    if not (isinstance(state, dict) and "reward" in state):
        return state
    return {**state, "reward": torch.as_tensor(reward).to(state["reward"])}


def _mask(obs: Tree) -> Tensor | None:
    return obs.get(MASK) if isinstance(obs, dict) else None
