"""What critics estimate of the return, and how it is fitted: its expectation, or quantiles of it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from uniarena.batch import Batch
from uniarena.learners.off_policy.actor_critic import ActorCriticConfig
from uniarena.ops.actor_critic import (
    clip_target,
    critic_loss,
    quantile_critic_loss,
    reduce_members,
    soft_value,
    truncated_mixture,
)
from uniarena.ops.td import td_target


class Estimate(ABC):
    """Meaning of the critics' outputs.

    Args:
        cfg: how members are reduced, and what is clipped.
    """

    def __init__(self, cfg: ActorCriticConfig) -> None:
        self.cfg = cfg

    @abstractmethod
    def value(self, q: Tensor) -> Tensor:
        """`[E, N, …]` → `[N]`: what the policy maximises."""

    @abstractmethod
    def target(self, q: Tensor, log_prob: Tensor, alpha: Tensor, batch: Batch) -> Tensor:
        """What all critics are regressed on, from `q [E, N, …]` and `log_prob [N]` of the policy's next action."""

    @abstractmethod
    def fit(self, q: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss, and the surprise `[N]` of each row."""


class Expectation(Estimate):
    """One number: E of the return. `q [E, N]`, targets `[N]`."""

    def value(self, q: Tensor) -> Tensor:
        return reduce_members(q, self.cfg.policy_reduce)

    def target(self, q: Tensor, log_prob: Tensor, alpha: Tensor, batch: Batch) -> Tensor:
        value = soft_value(reduce_members(q, self.cfg.target_reduce), log_prob, alpha)
        return clip_target(td_target(batch.reward, batch.discount, value), self.cfg.target_clip)

    def fit(self, q: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        return critic_loss(q, target, weight, self.cfg.td_clip)


class TruncatedQuantiles(Estimate):
    """M quantiles of the return, the largest left out of targets. `q [E, N, M]`, targets `[N, K]` samples.

    Kuznetsov et al. 2020 (arXiv:2005.04269), algorithm 1.

    Args:
        drop: quantiles left out for each critic.
    """

    def __init__(self, cfg: ActorCriticConfig, drop: int) -> None:
        super().__init__(cfg)
        self.drop = drop

    def value(self, q: Tensor) -> Tensor:
        return reduce_members(q.mean(-1), self.cfg.policy_reduce)

    def target(self, q: Tensor, log_prob: Tensor, alpha: Tensor, batch: Batch) -> Tensor:
        value = soft_value(truncated_mixture(q, self.drop), log_prob[:, None], alpha)
        target = td_target(batch.reward[:, None], batch.discount[:, None], value)
        return clip_target(target, self.cfg.target_clip)

    def fit(self, q: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        return quantile_critic_loss(q, target, weight, self.cfg.td_clip or 1.0)
