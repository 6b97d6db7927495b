"""Gaussian noise on a policy's deterministic action."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from gymnasium import Space
from torch import Tensor

from uniarena.batch import Batch, Tree
from uniarena.config import ConfigError, config
from uniarena.explorers.base import Explorer, ExplorerConfig
from uniarena.explorers.decay import DecayConfig, ends, value_at
from uniarena.policies.action_scale import ActionScale
from uniarena.policies.frozen import FrozenPolicy
from uniarena.policies.noise import normal


@config
class GaussianNoiseConfig(ExplorerConfig):
    """Fujimoto et al. 2018 (arXiv:1802.09477), section 6.1."""

    sigma: float | DecayConfig = 0.1  # standard deviation, in half widths of each dimension's bounds

    def __post_init__(self) -> None:
        refuse_negative(self.sigma)


class GaussianNoise(Explorer):
    """mode(π(s)) + σ · N(0, 1), independent in every dimension and step, cut to the bounds.

    A dimension without bounds has noise in its own units. Actions on a bound have no density, so there are no
    log-probs.
    """

    Config: ClassVar[type] = GaussianNoiseConfig

    def __init__(self, cfg: Any, policy_space: Space[Any] | None = None, warmup: int = 0) -> None:
        super().__init__(cfg, policy_space, warmup)
        self.scale = action_scale(policy_space, "gaussian_noise")

    @property
    def sigma(self) -> float:
        """The standard deviation of the next chunk."""
        return value_at(self.cfg.sigma, self.env_steps, self.progress)

    def noise(
        self, policy: FrozenPolicy, steps: int, columns: int, generator: torch.Generator
    ) -> Tree | None:
        """`[T, B, D]`, σ included."""
        return normal((steps, columns, self.scale.dims), generator, generator.device).mul_(self.sigma)

    def act(
        self,
        policy: FrozenPolicy,
        obs: Tree,
        state: Tree | None,
        is_first: Tensor | None,
        noise: Tree | None,
        generator: torch.Generator | None,
    ) -> tuple[Tree, Tree | None]:
        action, state = policy.mode(obs, state, is_first)
        if noise is None:
            noise = self.sigma * normal(self.scale(action).shape, generator, self.scale.middle.device)
        return self.scale.perturb(action, noise), state

    def behaviour_log_prob(
        self, policy: FrozenPolicy, rows: Batch, state: Tree | None = None
    ) -> Tensor | None:
        return None


def action_scale(policy_space: Space[Any] | None, who: str) -> ActionScale:
    """The bounds that noise is measured in.

    Raises:
        ConfigError: actions that are not continuous.
    """
    if policy_space is None:
        raise ValueError(f"{who} needs the policy's action space.")
    return ActionScale(policy_space, who, "agent.explorer.type")


def refuse_negative(sigma: float | DecayConfig, path: str = "sigma") -> None:
    """Raises:
    ConfigError: a standard deviation below 0.
    """
    if not all(value >= 0.0 for value in ends(sigma)):
        raise ConfigError(f"got {ends(sigma)}; expected numbers from 0 up.", path=path, hint="0.1 is usual.")
