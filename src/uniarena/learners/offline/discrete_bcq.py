"""Batch-constrained Q-learning for discrete actions: greedy among those that the data's behaviour finds likely.

Fujimoto et al. 2019 (arXiv:1910.01708), algorithm 1. Deviations: Q and the model of the behaviour have networks of
their own; targets move a little with every update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from uniarena.batch import Batch
from uniarena.config import Between, config
from uniarena.learners.base import Learner, Update
from uniarena.learners.off_policy.actor_critic import Positive, named
from uniarena.learners.offline.config import OfflineConfig
from uniarena.ops.actor_critic import critic_loss, reduce_members
from uniarena.ops.statistics import Metrics
from uniarena.ops.td import greedy_action, of_action, td_target
from uniarena.optim import Minimize
from uniarena.optim.targets import Target
from uniarena.values.constrained import build_constrained_q
from uniarena.values.ensemble import EnsembleSpec


@config
class DiscreteBCQConfig(OfflineConfig):
    """Section 5 and the authors' code."""

    tau: Annotated[float, Between(0, 1, above=True)] = (
        0.005  # share of the way that the target moves at every update
    )
    n_critics: Annotated[int, Between(1)] = 1
    policy_reduce: Literal["min", "mean", "first"] = "min"  # of the critics, in choices and targets
    threshold: Annotated[float, Between(0, 1)] = (
        0.3  # least probability of an action that may be taken, relative to
    )
    # the likeliest one's; 0: every action, as in Q-learning; 1: cloning
    logit_weight: Annotated[float, Between(0)] = 0.01  # of the squared logits of the behaviour's model
    td_clip: Positive | None = 1.0  # TD errors beyond it count linearly (Huber); null: squared throughout

    @property
    def critics(self) -> EnsembleSpec:
        """The critics to build."""
        return EnsembleSpec(self.n_critics)

    @property
    def baseline(self) -> None:
        """There is no value of observations alone."""


class DiscreteBCQ(Learner):
    """A model of the data's actions, and critics whose targets are of likely ones."""

    Config: ClassVar[type] = DiscreteBCQConfig
    build_model: ClassVar[Callable[..., Any]] = staticmethod(build_constrained_q)
    default_parts: ClassVar[dict[str, dict[str, Any]]] = {
        "explorer": {"type": "sample"},
        "buffer": {"type": "replay"},
    }
    model: Any  # an ActorQModel whose policy's network is a ConstrainedNetwork

    def __init__(self, model: Any, cfg: DiscreteBCQConfig, minimize: Minimize, rng: torch.Generator) -> None:
        super().__init__(model, cfg, minimize, rng)
        self.target = Target(model.q, cfg.tau)
        self.value_optimizer = cfg.optimizer_of("q", model.q)
        self.policy_optimizer = cfg.optimizer_of("policy", model.policy.network.behaviour)

    def update(self, batch: Batch) -> Update:
        inputs = self.model.policy.inputs
        batch = batch.replace(inputs=inputs(batch.obs), next_inputs=inputs(batch.next_obs))
        found = self.minimize(self.value_loss, batch, self.value_optimizer)
        priority = found.pop("surprise")
        metrics: Metrics = named("value", found) | {"td_error": priority.mean()}
        metrics |= named("policy", self.minimize(self.policy_loss, batch, self.policy_optimizer))
        self.target.update()
        return Update(metrics | {"learning_rate": self.value_optimizer.rate}, priority)

    def value_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Every critic regressed on r + d · Q of the target network, at the action that the policy takes."""
        policy = self.model.policy
        with torch.no_grad():
            chosen = policy.network.params(batch.next_inputs)[0]
            best = greedy_action(chosen, policy.mask(batch.next_obs))
            following = of_action(self.target(batch.next_inputs).movedim(0, -1), best).t()
            target = td_target(
                batch.reward, batch.discount, reduce_members(following, self.cfg.policy_reduce)
            )
        q = of_action(self.model.q(batch.inputs).movedim(0, -1), batch.action).t()
        loss, surprise = critic_loss(q, target, batch.get("weight"), self.cfg.td_clip)
        return loss, {"q": q.detach().mean(), "target": target.mean(), "surprise": surprise}

    def policy_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """−log G(a|s), and the size of the logits."""
        network = self.model.policy.network
        logits, _ = network.behaviour.params(batch.inputs)
        dist = network.head.dist(logits, self.model.policy.mask(batch.obs))
        log_prob = dist.log_prob(batch.action).mean()
        return self.cfg.logit_weight * logits.square().mean() - log_prob, {"log_prob": log_prob.detach()}
