"""Deterministic actor-critic with twin critics: TD3, of which DDPG, and of data alone TD3+BC and ReBRAC, are presets.

TD3: Fujimoto et al. 2018 (arXiv:1802.09477), algorithm 1. DDPG: Lillicrap et al. 2016 (arXiv:1509.02971), algorithm 1.
TD3+BC: Fujimoto & Gu 2021 (arXiv:2106.06860), eq. 3 to 5. ReBRAC: Tarasov et al. 2023 (arXiv:2305.09836), eq. 3 and 4.
Deviation: warm-up by uniform actions, DDPG too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from uniarena.batch import Batch
from uniarena.config import Between, config
from uniarena.learners.base import Learner, Update
from uniarena.learners.off_policy.actor_critic import (
    ActorCriticConfig,
    Turns,
    build_part_optimizer,
    draw_subset,
    named,
    policy_subset,
)
from uniarena.nets.precision import as_target
from uniarena.ops.actor_critic import clip_target, critic_loss, reduce_members, smoothing_noise
from uniarena.ops.offline import action_distance, q_scale
from uniarena.ops.statistics import Metrics
from uniarena.ops.td import td_target
from uniarena.optim import Derived, LearningRate, Minimize
from uniarena.optim.past_targets import build_targets
from uniarena.optim.schedules import ScheduleConfig, make_schedule
from uniarena.optim.targets import Target
from uniarena.values.actor_q_model import build_deterministic_actor_q
from uniarena.values.critic_backprop import critic_backprop


@config
class TD3Config(ActorCriticConfig):
    """The paper's supplement C, with the network and batch of the authors' later code."""

    learning_rate: LearningRate = 1e-3
    policy_delay: Annotated[int, Between(1)] = 2
    policy_reduce: Literal["min", "mean", "first"] = "first"
    target_noise: Annotated[float, Between(0)] = 0.2  # smooths target actions; in half widths of the bounds
    target_noise_clip: Annotated[float, Between(0)] = 0.5  # largest such noise
    q_weight: Annotated[float, Between(0, above=True)] | None = (
        None  # of Q in the policy's loss, in units of its mean magnitude; null: Q as it is
    )
    behaviour_weight: Annotated[float | ScheduleConfig, Between(0)] = (
        0.0  # of the distance to the data's actions, in that loss; or its schedule
    )
    behaviour_target_weight: Annotated[float, Between(0)] = (
        0.0  # of the distance to the data's next action, in targets
    )


class TD3(Learner):
    """A deterministic policy, its critics, and targets of both, from replayed rows."""

    Config: ClassVar[type] = TD3Config
    build_model: ClassVar[Callable[..., Any]] = staticmethod(build_deterministic_actor_q)
    default_parts: ClassVar[dict[str, dict[str, Any]]] = {
        "explorer": {"type": "gaussian_noise"},
        "buffer": {"type": "replay"},
    }
    model: Any  # an ActorQModel

    def __init__(self, model: Any, cfg: TD3Config, minimize: Minimize, rng: torch.Generator) -> None:
        super().__init__(model, cfg, minimize, rng)
        if cfg.behaviour_target_weight > 0.0:
            self.records = ("next_action",)  # type: ignore[misc]
        self.turns, self._by_hand = Turns(cfg), critic_backprop(model.q)
        self._behaviour = make_schedule(cfg.behaviour_weight, "learner.behaviour_weight")
        interval = cfg.target_update_updates or cfg.policy_delay
        self.q_target = build_targets(model.q, cfg.tau, interval, cfg.n_targets)
        self.policy_target = Target(model.policy.network, cfg.tau, interval)
        self.value_optimizer = build_part_optimizer("q", model.q, cfg)
        self.policy_optimizer = build_part_optimizer("policy", model.policy, cfg, cfg.policy_learning_rate)

    def update(self, batch: Batch) -> Update:
        inputs = self.model.policy.inputs
        batch = batch.replace(inputs=inputs(batch.obs), next_inputs=inputs(batch.next_obs))
        for_values, for_policy = self.turns.next()
        metrics: Metrics = {
            "learning_rate": self.value_optimizer.rate,
        }
        priority = None
        if for_values:
            found = self.minimize(self.value_loss, batch, self.value_optimizer)
            priority = found.pop("surprise")
            metrics |= named("value", found) | {"td_error": priority.mean()}
        if for_policy:
            metrics |= named("policy", self.minimize(self.policy_loss, batch, self.policy_optimizer))
        self.q_target.update()
        self.policy_target.update()
        return Update(metrics, priority)

    def value_loss(self, batch: Batch) -> tuple[Tensor | Derived, Metrics]:
        """Every critic regressed on the smoothed target."""
        target, model, weight = self.value_target(batch), self.model, batch.get("weight")
        action, by_hand = model.scale(batch.action), self._by_hand
        if by_hand is not None and by_hand.able:
            return by_hand.loss(batch.inputs, action, target, weight, self.cfg.td_clip)
        q = model.q(batch.inputs, action, self.rng)
        loss, surprise = critic_loss(q, target, weight, self.cfg.td_clip)
        return loss, {"q": q.detach().mean(), "target": target.mean(), "surprise": surprise}

    @as_target
    def value_target(self, batch: Batch) -> Tensor:
        """`[N]`: r + d · Q(s', π(s') + clipped noise), of the target networks."""
        cfg, head = self.cfg, self.model.policy.head
        action = self.model.scale(head.dist(self.policy_target(batch.next_inputs).params).mode())
        if cfg.target_noise > 0.0:
            noise = torch.randn(action.shape, generator=self.rng, device=self.rng.device).to(action.device)
            action = (action + smoothing_noise(noise, cfg.target_noise, cfg.target_noise_clip)).clamp(
                -1.0, 1.0
            )
        subset = draw_subset(cfg, self.rng, self.model.q)
        q = reduce_members(self.q_target(batch.next_inputs, action, self.rng, subset), cfg.target_reduce)
        if cfg.behaviour_target_weight > 0.0:
            distance = action_distance(action, self.model.scale(batch.require("followed").next_action))
            q = q - cfg.behaviour_target_weight * torch.where(batch.followed, distance, 0.0)
        return clip_target(td_target(batch.reward, batch.discount, q), cfg.target_clip)

    def policy_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """−Q of the policy's own actions, with critics that receive no gradient, and their distance to the data's."""
        model, cfg = self.model, self.cfg
        action = model.scale(model.dist(batch.inputs, batch.obs).rsample())
        with model.q.frozen():
            q = model.q(batch.inputs, action, self.rng, policy_subset(cfg, model.q))
        q = reduce_members(q, cfg.policy_reduce)
        loss = -q.mean() if cfg.q_weight is None else -q_scale(q, cfg.q_weight) * q.mean()
        weight = self._behaviour(self.progress)
        if weight == 0.0:
            return loss, {}
        distance = action_distance(action, model.scale(batch.action)).mean()
        return loss + weight * distance, {"behaviour_distance": distance.detach()}
