"""The weight of the entropy bonus: fixed, scheduled, or adapted so that the policy keeps a wanted entropy."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from uniarena.config import ConfigError
from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.ops.actor_critic import temperature_loss
from uniarena.ops.statistics import Metrics
from uniarena.optim import Derived, Minimize, Optimizer, OptimizerConfig, build_optimizer, make_schedule
from uniarena.policies.heads import CategoricalHead

SHARE = 0.5
"""Default target of discrete actions, as a share of the largest entropy."""


class EntropyBonus(nn.Module):
    """The coefficient, and its optimiser where it is adapted.

    Adapted, its logarithm grows while the policy is less random than wanted: Haarnoja et al. 2018 (arXiv:1812.05905),
    eq. 18, one step a minibatch.

    Args:
        cfg: the learner's.
        head: of the model's policy; None: unknown.

    Attributes:
        optimizer: None where the coefficient is fixed or scheduled.
        wanted: nats, of the whole action.

    Raises:
        ConfigError: the wanted entropy is not given, and has no default here.
    """

    def __init__(self, cfg: PolicyGradientConfig, head: Any = None) -> None:
        super().__init__()
        self.optimizer: Optimizer | None = None
        self.wanted = 0.0
        if cfg.ent_coef != "auto":
            self._schedule = make_schedule(cfg.ent_coef, "learner.ent_coef")
            return
        self.low, self.high = cfg.ent_coef_bounds
        self.log_coef = nn.Parameter(torch.tensor(math.log(cfg.ent_coef_init)))
        self.optimizer = build_optimizer(
            [("temperature.log_ent_coef", self.log_coef)],
            OptimizerConfig(eps=1e-8),
            cfg.ent_coef_learning_rate,
        )
        self.wanted = _wanted(cfg, head)

    def coef(self, progress: float) -> float:
        """The present coefficient."""
        return self._schedule(progress) if self.optimizer is None else math.exp(float(self.log_coef.detach()))

    def update(self, minimize: Minimize, entropy: Tensor) -> None:
        """One step towards the wanted entropy, from the mean `entropy` of a minibatch (0-d)."""
        if self.optimizer is None:
            return
        minimize(self.loss, entropy - self.wanted, self.optimizer)
        with torch.no_grad():
            self.log_coef.clamp_(math.log(self.low), math.log(self.high))

    def loss(self, gap: Tensor) -> tuple[Derived, Metrics]:
        """What the optimiser minimises; `gap` is the entropy minus the wanted one, and the derivative."""
        log_coef = self.log_coef

        def backward() -> None:
            log_coef.grad = gap.to(log_coef.dtype).clone()

        return Derived(temperature_loss(log_coef.detach(), gap), backward), {}


def _wanted(cfg: PolicyGradientConfig, head: Any) -> float:
    if cfg.target_entropy != "auto":
        return float(cfg.target_entropy)
    if isinstance(head, CategoricalHead):
        return SHARE * math.log(head.mask_dim)
    raise ConfigError(
        "ent_coef: auto has a default target for Discrete actions only.",
        path="learner.target_entropy",
        hint="give the entropy to keep, in nats of the whole action; a unit Gaussian has 1.42 a dimension.",
    )
