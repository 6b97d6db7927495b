"""Boltzmann exploration: actions with probability softmax(Q / temperature)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from gymnasium import Space
from torch import Tensor

from uniarena.batch import Batch, Tree
from uniarena.config import ConfigError, config
from uniarena.envs.spaces import MASK
from uniarena.explorers.base import Explorer, ExplorerConfig
from uniarena.explorers.decay import DecayConfig, ends, value_at
from uniarena.explorers.epsilon_greedy import refuse_undiscrete
from uniarena.policies.distributions import Categorical
from uniarena.policies.frozen import FrozenPolicy
from uniarena.policies.noise import gumbel


@config
class BoltzmannConfig(ExplorerConfig):
    """Sutton & Barto 2018, eq. 2.11 with Q in place of preferences; temperatures are in units of Q."""

    temperature: float | DecayConfig = DecayConfig(start=1.0, end=0.1)  # a number, or from start to end

    def __post_init__(self) -> None:
        if not all(value > 0.0 for value in ends(self.temperature)):
            raise ConfigError(
                f"got {ends(self.temperature)}; expected temperatures above 0.",
                path="temperature",
                hint="near 0 it is greedy.",
            )


class Boltzmann(Explorer):
    """Samples by the policy's parameters `[B, A]`; the temperature is constant within a chunk."""

    Config: ClassVar[type] = BoltzmannConfig
    has_log_prob: ClassVar[bool] = True

    def __init__(self, cfg: Any, policy_space: Space[Any] | None = None, warmup: int = 0) -> None:
        super().__init__(cfg, policy_space, warmup)
        refuse_undiscrete(policy_space, "boltzmann")

    @property
    def temperature(self) -> float:
        """The temperature of the next chunk."""
        return value_at(self.cfg.temperature, self.env_steps, self.progress)

    def noise(
        self, policy: FrozenPolicy, steps: int, columns: int, generator: torch.Generator
    ) -> Tree | None:
        """`[T, B, A]` standard Gumbel."""
        policy.noise(steps, columns, generator)  # noisy layers redraw theirs
        return gumbel((steps, columns, policy.head.param_dim), generator, generator.device)

    def act(
        self,
        policy: FrozenPolicy,
        obs: Tree,
        state: Tree | None,
        is_first: Tensor | None,
        noise: Tree | None,
        generator: torch.Generator | None,
    ) -> tuple[Tree, Tree | None]:
        q, state = policy.params(obs, state, is_first)
        mask = obs.get(MASK) if isinstance(obs, dict) else None
        return Categorical(q / self.temperature, mask).sample(generator, noise), state

    def behaviour_log_prob(
        self, policy: FrozenPolicy, rows: Batch, state: Tree | None = None
    ) -> Tensor | None:
        """None during the warm-up."""
        if self.warming_up:
            return None
        flat = rows.flatten()
        with torch.no_grad():
            if state is None:
                q, _ = policy.params(flat.obs)
            else:
                q = policy.params(rows.obs, state, rows.is_first)[0].flatten(0, 1)
        mask = flat.obs.get(MASK) if isinstance(flat.obs, dict) else None
        return Categorical(q / self.temperature, mask).log_prob(flat.action).reshape(rows.shape)
