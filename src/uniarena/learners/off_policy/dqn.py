"""Deep Q-learning: one learner, whose options make the whole family.

DQN: Mnih et al. 2015 (Nature 518:529). Double: van Hasselt et al. 2016 (arXiv:1509.06461). Dueling: Wang et al. 2016
(arXiv:1511.06581). Noisy layers: Fortunato et al. 2018 (arXiv:1706.10295). C51: Bellemare et al. 2017
(arXiv:1707.06887). QR-DQN and IQN: Dabney et al. 2018 (arXiv:1710.10044, arXiv:1806.06923). All together: Hessel et al.
2018 (arXiv:1710.02298). Conservative: Kumar et al. 2020 (arXiv:2006.04779), eq. 4. n-step returns and priorities are
the buffer's: they reach the loss as `discount` and `weight`.

Deviations: a time limit bootstraps, only termination does not; both networks draw their noise once per update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from uniarena.batch import Batch, Tree
from uniarena.config import ConfigError
from uniarena.learners.base import Learner, Update
from uniarena.learners.off_policy.dqn_config import DQNConfig
from uniarena.learners.off_policy.sequences import Sequences
from uniarena.nets.noisy import noisy_layers, redraw
from uniarena.ops.offline import log_sum
from uniarena.ops.statistics import Metrics
from uniarena.ops.td import greedy_action, of_action
from uniarena.optim import Derived, Minimize, build_optimizer, make_schedule
from uniarena.optim.past_targets import build_targets
from uniarena.optim.targets import Target
from uniarena.values.past_q import fast_targets
from uniarena.values.q_backprop import plain_target, q_backprop
from uniarena.values.q_model import FastQ, QModel, build_q_model


class DQN(Learner):
    """Fits Q(s, a), or a distribution of the return, to r + d·max Q(s', ·) of a target network.

    Batches have `obs, action, reward, next_obs, discount` (γⁿ, 0 where terminated) and, if sampled by priority,
    `weight`. Action masks inside of `next_obs` count in targets. Networks with memory learn from `sequences`.
    """

    Config: ClassVar[type] = DQNConfig
    build_model: ClassVar[Callable[..., QModel]] = staticmethod(build_q_model)
    default_parts: ClassVar[dict[str, dict[str, Any]]] = {
        "explorer": {"type": "epsilon_greedy"},
        "buffer": {"type": "replay"},
    }

    model: QModel  # type: ignore[assignment]

    def __init__(self, model: Any, cfg: DQNConfig, minimize: Minimize, rng: torch.Generator) -> None:
        super().__init__(model, cfg, minimize, rng)
        network = model.network
        self.target = build_targets(network, cfg.tau, cfg.target_interval, cfg.n_targets)
        named = network.named_parameters()
        self.optimizer = build_optimizer(named, cfg.optimizer.with_eps(1e-8), cfg.learning_rate, part="value")
        self._noisy = noisy_layers(network, self.target)
        self._sequences: Sequences | None = None
        if network.memory is not None:
            if not isinstance(self.target, Target) or cfg.conservative:
                what = "conservative" if cfg.conservative else "n_targets"
                raise ConfigError(
                    "several target networks, and conservative values, are for networks without memory.",
                    path=f"learner.{what}",
                    hint="leave it out, or remove agent.memory.",
                )
            self._sequences = Sequences(model, self.target, cfg, self._noisy)
            self.records = ("state",) if network.memory.stored else ()  # type: ignore[misc]
        self._by_hand = None if cfg.conservative else q_backprop(network)
        self._conservative = make_schedule(cfg.conservative, "learner.conservative")
        self._parts = model.policy, network.head  # in a tuple: modules are slow at their own attributes
        self._fast = FastQ(network, model.normalizer)
        self._fast_target = fast_targets(self.target, model.normalizer, cfg.target_reduce)

    def update(self, batch: Batch) -> Update:
        if not self.model.training:
            self.model.train()
        if self._noisy:
            redraw(self._noisy, self.rng)
        batch = self.targets(batch)
        metrics = self.minimize(self.loss, batch, self.optimizer)
        self.target.update()
        priority = metrics.pop("surprise")
        if "td_error" not in metrics:
            metrics["td_error"] = priority.mean()
        metrics["learning_rate"] = self.optimizer.rate
        return Update(metrics, priority if self._sequences is None else None)

    def targets(self, batch: Batch) -> Batch:
        """The batch with `target [N, M]`, and with `fractions` for the loss where quantiles are drawn."""
        if self._sequences is not None:
            return self._sequences.targets(batch, self.rng)
        mask = self._parts[0].mask(batch.next_obs)
        if self._by_hand is not None and mask is None and not self.cfg.double:
            return batch.replace(target=plain_target(self._fast_target, batch, self.cfg.target_clip))
        return self._targets(batch, mask)

    @torch.no_grad()
    def _targets(self, batch: Batch, mask: Tensor | None) -> Batch:
        head, rows = self._parts[1], batch.shape[0]
        fractions = head.draw(rows, self.rng)
        following, judged = self._successors(batch.next_obs, fractions)
        best = greedy_action(head.q(judged), mask)
        bounds = self.cfg.target_clip
        target = head.target(of_action(following, best), batch.reward, batch.discount, bounds)
        if fractions is None:
            return batch.replace(target=target)
        return batch.replace(target=target, fractions=head.draw(rows, self.rng))

    def _successors(self, obs: Tree, fractions: Tensor | None) -> tuple[Tensor, Tensor]:
        """Outputs `[N, A, K]` of the target network, and those by which the best action is judged: of the online
        network (double), and of fixed quantiles where others are drawn.
        """
        double = self.cfg.double
        if fractions is None and not self._noisy:
            following = self._fast_target.outputs(obs)
            return following, self._fast.outputs(obs) if double else following
        for layer in self._noisy:
            layer.training = True  # though the target network is in evaluation mode
        inputs = self.model.policy.inputs(obs)
        following = self.target(inputs, fractions)
        if double:
            return following, self.model.network(inputs)
        return following, following if fractions is None else self.target(inputs)

    def loss(self, batch: Batch) -> tuple[Tensor | Derived, Metrics]:
        """The loss of one batch with targets, its metrics, and `surprise [N]`."""
        if self._sequences is not None:
            return self._sequences.loss(batch)
        inputs, weight = self._parts[0].inputs(batch.obs), batch.get("weight")
        if self._by_hand is not None and self._by_hand.able:
            return self._by_hand.loss(inputs, batch.action, batch.target, weight, self.cfg.td_clip)
        network, fractions = self.model.network, batch.get("fractions")
        every = network(inputs, fractions)
        out = of_action(every, batch.action)
        fit = network.head.fit(out, batch.target, self.cfg.td_clip, fractions)
        loss = (fit.loss if weight is None else fit.loss * weight).mean()
        metrics = {
            "q": network.head.q(out.detach()).mean(),
            "target": network.head.expected(batch.target).mean(),
            "surprise": fit.surprise,
        }
        if not self.cfg.conservative:
            return loss, metrics
        above = log_sum(network.head.q(every), self._parts[0].mask(batch.obs))
        gap = (above - network.head.q(out)).mean()
        return loss + self._conservative(self.progress) * gap, {**metrics, "conservative_gap": gap.detach()}
