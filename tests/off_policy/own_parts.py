"""A policy module and explorers as users write them, in a file of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from uniarena.config import config
from uniarena.explorers.base import Explorer, ExplorerConfig


class Policy(nn.Module):
    """Means of the actions; a log-std is learned beside them where the learner needs one."""

    def __init__(self, obs_dim: int, act_dim: int, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(nn.Linear(obs_dim, width), nn.ELU(), nn.Linear(width, act_dim))

    def forward(self, obs: Tensor) -> Tensor:
        return self.layers(obs)


@config
class BurstsConfig(ExplorerConfig):
    """Settings of `Bursts`."""

    every: int = 10  # steps of a column from one burst to the next
    size: float = 0.5  # largest change of an action


class Bursts(Explorer):
    """The policy's own choice, and in every so many-th step of a column uniform noise on it. Counts its bursts."""

    Config = BurstsConfig

    def __init__(self, cfg: Any, policy_space: Any = None, warmup: int = 0) -> None:
        super().__init__(cfg, policy_space, warmup)
        self.steps = self.bursts = 0

    def noise(self, policy: Any, steps: int, columns: int, generator: torch.Generator) -> Tensor:
        due = (self.env_steps // columns + torch.arange(steps)) % self.cfg.every == 0
        noise = 2 * torch.rand(steps, columns, *self.policy_space.shape, generator=generator) - 1
        return noise * self.cfg.size * due[:, None, None]

    def act(
        self, policy: Any, obs: Any, state: Any, is_first: Any, noise: Tensor, generator: Any
    ) -> tuple[Tensor, Any]:
        action, state = policy.mode(obs, state, is_first)
        self.steps += len(action)
        self.bursts += int((noise != 0).any(-1).sum())
        return action + noise, state

    def behaviour_log_prob(self, policy: Any, rows: Any) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "bursts": self.bursts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.bursts = state["steps"], state["bursts"]
