"""Ornstein–Uhlenbeck noise: Gaussian noise that is correlated over the steps of an episode."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import torch
from gymnasium import Space
from torch import Tensor

from uniarena.batch import Batch, Tree
from uniarena.config import Between, ConfigError, config
from uniarena.explorers.base import Explorer, ExplorerConfig
from uniarena.explorers.decay import DecayConfig, value_at
from uniarena.explorers.gaussian_noise import action_scale, refuse_negative
from uniarena.policies.frozen import FrozenPolicy
from uniarena.policies.noise import normal


@config
class OrnsteinUhlenbeckConfig(ExplorerConfig):
    """Lillicrap et al. 2016 (arXiv:1509.02971), section 7."""

    sigma: float | DecayConfig = 0.2  # of each step's part, in half widths of each dimension's bounds
    theta: Annotated[float, Between(0, above=True)] = 0.15  # rate of return to 0
    dt: Annotated[float, Between(0, above=True)] = 1.0  # duration of a step

    def __post_init__(self) -> None:
        refuse_negative(self.sigma)
        if self.theta * self.dt >= 2.0:
            raise ConfigError(
                f"theta · dt is {self.theta * self.dt}; from 2 on the noise grows without bound.",
                path="theta",
            )


class OrnsteinUhlenbeck(Explorer):
    """mode(π(s)) + x, cut to the bounds, with x ← x − θ x dt + σ √dt · N(0, 1) and x = 0 where an episode begins.

    x `[B, D]` is the state that `act` takes and gives, so the sampler keeps and saves it, column by column. Policies
    with memory have a state of their own and are refused.
    """

    Config: ClassVar[type] = OrnsteinUhlenbeckConfig

    def __init__(self, cfg: Any, policy_space: Space[Any] | None = None, warmup: int = 0) -> None:
        super().__init__(cfg, policy_space, warmup)
        self.scale = action_scale(policy_space, "ornstein_uhlenbeck")

    @property
    def sigma(self) -> float:
        """The standard deviation of the next chunk's steps."""
        return value_at(self.cfg.sigma, self.env_steps, self.progress)

    def noise(
        self, policy: FrozenPolicy, steps: int, columns: int, generator: torch.Generator
    ) -> Tree | None:
        """`[T, B, D]`: σ √dt · N(0, 1)."""
        noise = normal((steps, columns, self.scale.dims), generator, generator.device)
        return noise.mul_(self.sigma * math.sqrt(self.cfg.dt))

    def act(
        self,
        policy: FrozenPolicy,
        obs: Tree,
        state: Tree | None,
        is_first: Tensor | None,
        noise: Tree | None,
        generator: torch.Generator | None,
    ) -> tuple[Tree, Tree | None]:
        action, memory = policy.mode(obs)
        if memory is not None:
            raise ConfigError(
                "ornstein_uhlenbeck keeps its noise where this policy keeps its memory.",
                path="agent.explorer.type",
                hint="use gaussian_noise.",
            )
        if not isinstance(noise, Tensor):
            row = self.scale(action)
            noise = self.sigma * math.sqrt(self.cfg.dt) * normal(row.shape, generator, row.device)
        x = noise
        if isinstance(state, Tensor):
            before = state if is_first is None else torch.where(is_first[:, None], 0.0, state)
            x = torch.add(noise, before, alpha=1.0 - self.cfg.theta * self.cfg.dt)
        return self.scale.perturb(action, x), x

    def behaviour_log_prob(
        self, policy: FrozenPolicy, rows: Batch, state: Tree | None = None
    ) -> Tensor | None:
        return None
