"""A network of your own: one trunk, a value head, and an action branch that ends in tanh.

Any `torch.nn.Module` can be the agent's network. It is named by import path, its constructor gets what it
asks for by parameter name (`obs_dim`, `act_dim`, `observation_space`, `action_space`) and every further key
of the section:

    agent:
      policy: {network: "examples.shared_trunk:SharedTrunk", width: 64}

`forward` returns `(value [N, 1], action_parameters [N, act_dim])`: means for a Box (a learned log-std is
added), logits for Discrete. The trunk is optimised once, with the gradients of both heads.
"""

from __future__ import annotations

from torch import Tensor, nn


class SharedTrunk(nn.Module):
    """obs `[N, obs_dim]` → (value `[N, 1]`, action parameters `[N, act_dim]` in (−scale, scale)).

    Args:
        obs_dim: width of the flat observation.
        act_dim: number of action parameters.
        width: of the hidden layers.
        scale: the tanh of the action branch is multiplied by it; logits of magnitude 1 could never be
            confident.
    """

    def __init__(self, obs_dim: int, act_dim: int, width: int = 64, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.trunk = nn.Sequential(nn.Linear(obs_dim, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.value = nn.Linear(width, 1)
        self.action = nn.Sequential(nn.Linear(width, act_dim), nn.Tanh())

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(obs)
        return self.value(features), self.scale * self.action(features)
