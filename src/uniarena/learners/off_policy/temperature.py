"""The temperature of maximum-entropy learners: fixed, or adapted so that the policy keeps a wanted entropy."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from uniarena.envs.notices import notice
from uniarena.learners.off_policy.sac_config import SACConfig
from uniarena.ops.actor_critic import temperature_loss
from uniarena.ops.statistics import Metrics
from uniarena.optim import Derived, Minimize, OptimizerConfig, build_optimizer
from uniarena.values.actor_q_model import ActorQModel

DISCRETE_SHARE = 0.5
"""Default target of discrete actions, as a share of the largest entropy that the legal ones allow.

Christodoulou 2019 (arXiv:1910.07207) takes 0.98, nearly uniform. Where one action is better, only an ever growing
temperature keeps a policy there, and Q grows with it; a policy with 0.5 may still prefer one of two actions 9 to 1.
"""


class Temperature(nn.Module):
    """α, and its optimiser where it is adapted.

    Args:
        cfg: the learner's.
        dims: dimensions of continuous actions; None: they are discrete.
        most: the largest entropy that any policy can have, in nats.

    Attributes:
        log_alpha: 0-d.
        optimizer: None where α is fixed.
    """

    def __init__(self, cfg: SACConfig, dims: int | None, most: float) -> None:
        super().__init__()
        self.dims, self.most, adapted = dims, most, cfg.alpha == "auto"
        self.wanted = None if cfg.target_entropy == "auto" else float(cfg.target_entropy)
        first = cfg.alpha_init if cfg.alpha == "auto" else cfg.alpha
        log_alpha = torch.tensor(math.log(first) if first > 0.0 else -math.inf, dtype=torch.float32)
        self.log_alpha = nn.Parameter(log_alpha, requires_grad=adapted)
        self.low, self.high = torch.tensor(cfg.alpha_bounds, dtype=torch.float32).log().tolist()
        rate = cfg.learning_rate if cfg.alpha_learning_rate is None else cfg.alpha_learning_rate
        # Adam whatever the networks have: weight decay, for one, would pull α towards 1.
        alone = [("temperature.log_alpha", self.log_alpha)]
        self.optimizer = build_optimizer(alone, OptimizerConfig(eps=1e-8), rate) if adapted else None
        self._told = False
        if adapted and self.wanted is not None and self.wanted >= most:
            self._tell(f"no policy here has more than {most:.3g} nats")

    @property
    def alpha(self) -> Tensor:
        """0-d, without gradient."""
        return self.log_alpha.detach().exp()

    def target(self, legal: Tensor | None = None) -> Tensor | float:
        """The wanted entropy; `[N]` where rows differ in their `legal [N, A]` discrete actions."""
        if self.wanted is not None:
            return self.wanted
        if self.dims is not None:
            return -float(self.dims)
        if legal is None:
            return DISCRETE_SHARE * self.most
        count = legal.bool().sum(-1)
        return DISCRETE_SHARE * torch.where(count > 0, count, legal.shape[-1]).log()

    def update(self, minimize: Minimize, log_prob: Tensor, legal: Tensor | None = None) -> Metrics:
        """One step towards the wanted entropy.

        Args:
            log_prob: `[N]`, negative entropies, or samples of them.
            legal: `[N, A]` mask of discrete actions.
        """
        entropy = -log_prob.mean()
        metrics = {"alpha": self.alpha, "entropy": entropy}
        if self.optimizer is None:
            return metrics
        target = self.target(legal)
        gap = entropy - (target if isinstance(target, float) else target.mean())
        minimize(self.loss, gap, self.optimizer)
        with torch.no_grad():
            self.log_alpha.clamp_(self.low, self.high)
        if not self._told and float(self.log_alpha.detach()) >= self.high and float(gap) < 0.0:
            self._tell(
                f"the policy has {float(entropy):.3g} nats at the largest alpha, {math.exp(self.high):g}"
            )
        return metrics

    def loss(self, gap: Tensor) -> tuple[Derived, Metrics]:
        """What α's optimiser minimises; `gap` is the mean entropy minus the mean target, and the derivative."""
        log_alpha = self.log_alpha

        def backward() -> None:
            log_alpha.grad = gap.clone() if log_alpha.grad is None else log_alpha.grad + gap

        return Derived(temperature_loss(log_alpha.detach(), gap), backward), {}

    def _tell(self, why: str) -> None:
        self._told = True
        wanted = "its default" if self.wanted is None else f"{self.wanted:g} nats"
        notice(
            f"learner.target_entropy ({wanted}) cannot be reached: {why}. alpha stays within alpha_bounds; set a lower "
            "target_entropy, or a fixed alpha."
        )


def build_temperature(model: ActorQModel, cfg: SACConfig) -> Temperature:
    """The temperature for a model's actions."""
    if model.scale is None:
        return Temperature(cfg, None, math.log(model.policy.head.mask_dim))
    most = math.inf if model.scale.unbounded else model.scale.dims * math.log(2.0)
    return Temperature(cfg, model.scale.dims, most)
