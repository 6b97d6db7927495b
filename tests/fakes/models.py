"""Networks as users write them: right ones of every form, and wrong ones that must be answered by name."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn


class RecurrentToy(nn.Module):
    """h' = tanh(W·[obs, h]); parameters and value are linear in h'. The state is {"h": [N, width]}."""

    def __init__(self, obs_dim: int, act_dim: int, width: int = 8, values: bool = True) -> None:
        super().__init__()
        self.width = width
        self.cell = nn.Linear(obs_dim + width, width)
        self.action = nn.Linear(width, act_dim)
        self.critic = nn.Linear(width, 1) if values else None

    def initial_state(self, count: int) -> dict[str, Tensor]:
        return {"h": torch.full((count, self.width), 0.5)}

    def forward(self, obs: Tensor, state: dict[str, Tensor], is_first: Tensor) -> tuple[Any, ...]:
        hidden = torch.tanh(self.cell(torch.cat([obs, state["h"]], dim=-1)))
        value = None if self.critic is None else self.critic(hidden)
        return self.action(hidden), value, {"h": hidden}


class ParamsOnly(nn.Module):
    """`factor`·act_dim outputs, no value."""

    def __init__(self, obs_dim: int, act_dim: int, factor: int = 1) -> None:
        super().__init__()
        self.layer = nn.Linear(obs_dim, factor * act_dim)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs)


class SameMemory(ParamsOnly):
    """Without gradients it writes every answer into the same memory, as captured graphs do."""

    def forward(self, obs: Tensor) -> Tensor:
        out = super().forward(obs)
        if torch.is_grad_enabled():
            return out
        memory = self.__dict__.get("memory")
        if memory is None or memory.shape != out.shape:
            memory = self.__dict__["memory"] = torch.empty_like(out)
        return memory.copy_(out)


class DictReader(nn.Module):
    """Takes the spaces themselves and reads the observation by key; remembers what it was built with."""

    def __init__(self, observation_space: spaces.Dict, action_space: spaces.Space, act_dim: int) -> None:
        super().__init__()
        self.observation_space, self.action_space = observation_space, action_space
        self.layer = nn.Linear(observation_space["pos"].shape[0], act_dim + 1)
        self.embed = nn.Embedding(4, act_dim + 1)
        self.seen: Any = None

    def forward(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        self.seen = {key: leaf.dtype for key, leaf in obs.items()}
        out = self.layer(obs["pos"]) + self.embed(obs["task"])
        return out[:, :1], out[:, 1:]


class Swapped(nn.Module):
    """Returns (parameters, value): the wrong way round."""

    def __init__(self, obs_dim: int, act_dim: int) -> None:
        super().__init__()
        self.action, self.critic = nn.Linear(obs_dim, act_dim), nn.Linear(obs_dim, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.action(obs), self.critic(obs)


class ValueOnly(nn.Module):
    """V(s) `[N, width]`; only width 1 is right. `flat` gives `[N]`."""

    def __init__(self, obs_dim: int, width: int = 1, flat: bool = False) -> None:
        super().__init__()
        self.layer, self.flat = nn.Linear(obs_dim, width), flat

    def forward(self, obs: Tensor) -> Tensor:
        value = self.layer(obs)
        return value.squeeze(-1) if self.flat else value


class DropoutNet(nn.Module):
    """Random in training mode, so that acting in it shows."""

    def __init__(self, obs_dim: int, act_dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(obs_dim, 32), nn.Dropout(0.5), nn.Linear(32, act_dim))

    def forward(self, obs: Tensor) -> Tensor:
        return self.layers(obs)


class Float64Net(nn.Module):
    """Parameters in float64, as a module built from NumPy arrays has them."""

    def __init__(self, obs_dim: int, act_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(obs_dim, act_dim, dtype=torch.float64))

    def forward(self, obs: Tensor) -> Tensor:
        return obs @ self.weight


def not_a_module(obs_dim: int) -> int:
    return obs_dim
