"""A network with memory, as a user writes it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Gru(nn.Module):
    """obs `[N, obs_dim]`, state `[N, width]` → (action parameters, value `[N, 1]`, next state)."""

    def __init__(self, obs_dim: int, act_dim: int, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.cell = nn.GRUCell(obs_dim, width)
        self.action, self.critic = nn.Linear(width, act_dim), nn.Linear(width, 1)

    def initial_state(self, count: int) -> Tensor:
        return torch.zeros(count, self.width)

    def forward(self, obs: Tensor, state: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.cell(obs, state)
        return self.action(hidden), self.critic(hidden), hidden
