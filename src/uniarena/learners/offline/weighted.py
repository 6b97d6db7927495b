"""Advantage-weighted cloning: actions of the data, those that were better than usual the more; IQL and AWAC.

IQL: Kostrikov et al. 2021 (arXiv:2110.06169), eq. 5 to 7: the baseline is an expectile of Q over the data's actions, so
that no other action is ever valued. AWAC: Nair et al. 2020 (arXiv:2006.09359), algorithm 1: the baseline is what the
policy itself would earn. Deviations: the weight is bounded in AWAC too, as in IQL; one action is drawn for the policy's
value (discrete actions: its expectation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from uniarena.batch import Batch, Tree
from uniarena.config import Between, config
from uniarena.learners.base import Learner, Update
from uniarena.learners.off_policy.actor_critic import (
    ActorCriticConfig,
    Positive,
    Turns,
    build_part_optimizer,
    draw_subset,
    named,
)
from uniarena.ops.actor_critic import clip_target, critic_loss, expected_soft_terms, reduce_members
from uniarena.ops.offline import advantage_weight, expectile_loss
from uniarena.ops.statistics import Metrics
from uniarena.ops.td import of_action, td_target
from uniarena.optim import Minimize
from uniarena.optim.past_targets import build_targets
from uniarena.values.cloning import build_weighted_model


@config
class WeightedConfig(ActorCriticConfig):
    """The defaults are IQL's on locomotion."""

    baseline: Literal["expectile", "policy"] = (
        "expectile"  # of the advantage: V of IQL, or the policy's own value
    )
    expectile: Annotated[float, Between(0, 1, above=True)] = (
        0.7  # of the Q of the data's actions; 0.5: the mean
    )
    advantage_scale: Positive = 3.0  # in the exponent of the weights: 1/temperature, in units of return
    largest_weight: Annotated[float, Between(1)] = 100.0  # of an action


class Weighted(Learner):
    """Critics, a baseline, and a policy cloned from the data with weights exp(scale · advantage)."""

    Config: ClassVar[type] = WeightedConfig
    build_model: ClassVar[Callable[..., Any]] = staticmethod(build_weighted_model)
    default_parts: ClassVar[dict[str, dict[str, Any]]] = {
        "explorer": {"type": "sample"},
        "buffer": {"type": "replay"},
    }
    model: Any  # an ActorQModel

    def __init__(self, model: Any, cfg: WeightedConfig, minimize: Minimize, rng: torch.Generator) -> None:
        super().__init__(model, cfg, minimize, rng)
        self.turns = Turns(cfg)
        self.target = build_targets(model.q, cfg.tau, cfg.target_update_updates or 1, cfg.n_targets)
        self.value_optimizer = build_part_optimizer("q", model.q, cfg)
        self.policy_optimizer = build_part_optimizer("policy", model.policy, cfg, cfg.policy_learning_rate)
        self.baseline_optimizer = None if model.v is None else build_part_optimizer("value", model.v, cfg)

    def update(self, batch: Batch) -> Update:
        inputs = self.model.policy.inputs
        batch = batch.replace(inputs=inputs(batch.obs), next_inputs=inputs(batch.next_obs))
        for_values, for_policy = self.turns.next()
        metrics: Metrics = {"learning_rate": self.value_optimizer.rate}
        priority = None
        if for_values and self.baseline_optimizer is not None:
            found = self.minimize(self.baseline_loss, batch, self.baseline_optimizer)
            metrics |= {f"baseline_{name}": value for name, value in found.items()}
        if for_policy:
            metrics |= named("policy", self.minimize(self.policy_loss, batch, self.policy_optimizer))
        if for_values:
            found = self.minimize(self.value_loss, batch, self.value_optimizer)
            priority = found.pop("surprise")
            metrics |= named("value", found) | {"td_error": priority.mean()}
        self.target.update()
        return Update(metrics, priority)

    def q_of(self, critics: Any, inputs: Tree, action: Tree, subset: Tensor | None = None) -> Tensor:
        """`[E, N]` of the actions of rows."""
        if self.model.scale is None:
            return of_action(critics(inputs, None, self.rng, subset).movedim(0, -1), action).t()
        q: Tensor = critics(inputs, self.model.scale(action), self.rng, subset)
        return q

    def value_of_policy(self, critics: Any, inputs: Tree, obs: Tree, subset: Tensor | None = None) -> Tensor:
        """`[N]`: Q of what the policy does."""
        dist, reduction = self.model.dist(inputs, obs), self.cfg.target_reduce
        if self.model.scale is None:
            q = reduce_members(critics(inputs, None, self.rng, subset), reduction)
            return expected_soft_terms(q, dist.log_p)[0]
        limit = self.model.scale.limit
        action = self.model.scale(dist.sample(self.rng)).clamp(-limit, limit)  # as the environment clips it
        return reduce_members(critics(inputs, action, self.rng, subset), reduction)

    def baseline_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """V fitted to an expectile of the target critics' Q of the data's actions."""
        subset = draw_subset(self.cfg, self.rng, self.model.q)
        q = reduce_members(self.q_of(self.target, batch.inputs, batch.action, subset), self.cfg.target_reduce)
        value = self.model.v(batch.inputs)
        loss = expectile_loss(q - value, self.cfg.expectile)
        return (loss * batch.get("weight", 1.0)).mean(), {"value": value.detach().mean()}

    def value_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Every critic regressed on r + d · V(s')."""
        with torch.no_grad():
            if self.model.v is not None:
                following = self.model.v(batch.next_inputs)
            else:
                subset = draw_subset(self.cfg, self.rng, self.model.q)
                following = self.value_of_policy(self.target, batch.next_inputs, batch.next_obs, subset)
            target = td_target(batch.reward, batch.discount, following)
            target = clip_target(target, self.cfg.target_clip)
        q = self.q_of(self.model.q, batch.inputs, batch.action)
        loss, surprise = critic_loss(q, target, batch.get("weight"), self.cfg.td_clip)
        return loss, {"q": q.detach().mean(), "target": target.mean(), "surprise": surprise}

    def policy_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """−weight · log π(a|s) of the data's actions."""
        with torch.no_grad():
            advantage = self.advantage(batch)
            weight = advantage_weight(advantage, self.cfg.advantage_scale, self.cfg.largest_weight)
        log_prob = self.model.dist(batch.inputs, batch.obs).log_prob(batch.action)
        metrics = {
            "advantage": advantage.mean(),
            "weight": weight.mean(),
            "log_prob": log_prob.mean().detach(),
        }
        return -(weight * log_prob).mean(), metrics

    def advantage(self, batch: Batch) -> Tensor:
        """`[N]`: how much better the data's action is than the baseline."""
        model, reduction = self.model, self.cfg.policy_reduce
        if model.v is not None:
            q = self.q_of(self.target, batch.inputs, batch.action)
            return reduce_members(q, reduction) - model.v(batch.inputs)
        q = self.q_of(model.q, batch.inputs, batch.action)
        return reduce_members(q, reduction) - self.value_of_policy(model.q, batch.inputs, batch.obs)
