"""Soft actor-critic, for continuous and discrete actions; REDQ, DroQ, TQC and CQL are presets of it.

Haarnoja et al. 2018 (arXiv:1812.05905), algorithm 1; discrete actions: Christodoulou 2019 (arXiv:1910.07207).
Deviations: log-probs are of actions scaled to [−1, 1], so that neither α nor the entropy target depends on the units
of the bounds; α is kept within bounds; with n-step returns the entropy of the steps between is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from uniarena.batch import Batch, Tree
from uniarena.learners.base import Learner, Update
from uniarena.learners.off_policy.actor_critic import (
    Turns,
    build_part_optimizer,
    draw_noise,
    draw_subset,
    named,
    policy_subset,
    with_modes,
)
from uniarena.learners.off_policy.estimates import Expectation
from uniarena.learners.off_policy.sac_config import SACConfig
from uniarena.learners.off_policy.temperature import build_temperature
from uniarena.learners.offline.conservative import Conservative
from uniarena.nets.inference import eval_mode
from uniarena.nets.precision import as_target
from uniarena.ops.actor_critic import Reduction, expected_soft_terms, reduce_members, soft_value
from uniarena.ops.statistics import Metrics
from uniarena.ops.td import of_action
from uniarena.optim import Derived, Minimize
from uniarena.optim.past_targets import build_targets
from uniarena.values.actor_q_model import build_actor_q
from uniarena.values.critic_backprop import critic_backprop, policy_backprop


class SAC(Learner):
    """Policy, critics and temperature from replayed rows."""

    Config: ClassVar[type] = SACConfig
    build_model: ClassVar[Callable[..., Any]] = staticmethod(build_actor_q)
    default_parts: ClassVar[dict[str, dict[str, Any]]] = {
        "explorer": {"type": "sample"},
        "buffer": {"type": "replay"},
    }
    model: Any  # an ActorQModel

    def __init__(self, model: Any, cfg: SACConfig, minimize: Minimize, rng: torch.Generator) -> None:
        super().__init__(model, cfg, minimize, rng)
        self.target = build_targets(model.q, cfg.tau, cfg.target_update_updates or 1, cfg.n_targets)
        self.turns = Turns(cfg)
        self.temperature, self.estimate = build_temperature(model, cfg), cfg.estimate()
        self.value_optimizer = build_part_optimizer("q", model.q, cfg)
        self.policy_optimizer = build_part_optimizer("policy", model.policy, cfg, cfg.policy_learning_rate)
        self.alpha_optimizer = self.temperature.optimizer
        self.conservative = None if cfg.conservative is None else Conservative(cfg.conservative, model)
        self.conservative_optimizer = None if self.conservative is None else self.conservative.optimizer
        self._moded = with_modes(model.policy.network)
        plain = type(self.estimate) is Expectation and model.scale is not None
        self._by_hand = critic_backprop(model.q) if plain and self.conservative is None else None
        self._policy_by_hand = (
            policy_backprop(model) if plain and policy_subset(cfg, model.q) is None else None
        )

    def update(self, batch: Batch) -> Update:
        inputs = self.model.policy.inputs
        batch = batch.replace(inputs=inputs(batch.obs), next_inputs=inputs(batch.next_obs))
        for_values, for_policy = self.turns.next()
        metrics: Metrics = {"learning_rate": self.value_optimizer.rate}
        priority = None
        if for_values:
            found = self.minimize(self.value_loss, batch, self.value_optimizer)
            priority = found.pop("surprise")
            metrics |= named("value", found) | {"td_error": priority.mean()}
            if self.conservative is not None:
                self.conservative.update(self.minimize, found["conservative_gap"])
        if for_policy:
            found = self.minimize(self.policy_loss, batch, self.policy_optimizer)
            log_prob = found.pop("log_prob")
            metrics |= named("policy", found)
            metrics |= self.temperature.update(self.minimize, log_prob, self.model.policy.mask(batch.obs))
        self.target.update()
        return Update(metrics, priority)

    def value_loss(self, batch: Batch) -> tuple[Tensor | Derived, Metrics]:
        """Every critic fitted to the soft target."""
        target, model, by_hand = self.value_target(batch), self.model, self._by_hand
        if by_hand is not None and by_hand.able:
            action, weight = model.scale(batch.action), batch.get("weight")
            return by_hand.loss(batch.inputs, action, target, weight, self.cfg.td_clip)
        if model.scale is None:
            q = of_action(model.q(batch.inputs, generator=self.rng).movedim(0, -1), batch.action).t()
        else:
            q = model.q(batch.inputs, model.scale(batch.action), self.rng)
        loss, surprise = self.estimate.fit(q, target, batch.get("weight"))
        metrics = {"q": q.detach().mean(), "target": target.mean(), "surprise": surprise}
        if self.conservative is None:
            return loss, metrics
        penalty, more = self.conservative.penalty(batch, q, self.rng, self.progress)
        return loss + penalty, metrics | more

    @as_target
    def value_target(self, batch: Batch) -> Tensor:
        """r + d · V(s'), V from the target critics, or from a random subset of them; `[N]`, or `[N, K]` samples."""
        with eval_mode(*self._moded):
            dist = self.model.dist(batch.next_inputs, batch.next_obs)
        subset = draw_subset(self.cfg, self.rng, self.model.q)
        q, log_prob = self.terms(dist, self.target, batch.next_inputs, self.cfg.target_reduce, subset)
        return self.estimate.target(q, log_prob, self.temperature.alpha, batch)

    def policy_loss(self, batch: Batch) -> tuple[Tensor | Derived, Metrics]:
        """−V of the policy's own actions, with critics that receive no gradient."""
        model, reduction, by_hand = self.model, self.cfg.policy_reduce, self._policy_by_hand
        if by_hand is not None and by_hand.able:
            loss, log_prob = by_hand.loss(batch.inputs, self.draw, self.temperature.alpha, reduction)
            return loss, {"log_prob": log_prob}
        dist = model.dist(batch.inputs, batch.obs)
        with model.q.frozen():
            subset = policy_subset(self.cfg, model.q)
            q, log_prob = self.terms(dist, model.q, batch.inputs, reduction, subset)
        value = soft_value(self.estimate.value(q), log_prob, self.temperature.alpha)
        return -value.mean(), {"log_prob": log_prob.detach()}

    def terms(
        self, dist: Any, critics: Any, inputs: Tree, reduction: Reduction, subset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """`q [E, N, …]` and `log_prob [N]` of one action drawn for each row.

        Where actions are discrete, their expectations over all actions, after the members have been reduced: `[1, N]`
        and `[N]`.
        """
        scale = self.model.scale
        if scale is None:
            q = reduce_members(critics(inputs, None, self.rng, subset), reduction)
            value, log_prob = expected_soft_terms(q, dist.log_p)
            return value[None], log_prob
        action, log_prob = self.draw(dist, inputs)
        return critics(inputs, action, self.rng, subset), log_prob

    def draw(self, dist: Any, inputs: Tree) -> tuple[Tensor, Tensor]:
        """An action for each row, scaled `[N, D]`, and its log-prob `[N]`."""
        scale, noise = self.model.scale, draw_noise(self.model.policy.head, inputs, self.rng)
        action, log_prob = dist.rsample_with_log_prob(self.rng, noise)
        return scale(action), log_prob + scale.log_half
