"""Trust-region policy optimisation: one natural step for the policy, epochs of minibatches for the value.

Schulman et al. 2015 (arXiv:1502.05477). Deviations: the Fisher matrix and the line search take all rows, and the value
is fitted by an optimiser in minibatches, as in Stable-Baselines3's contributions.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Batch, Tree
from uniarena.config import ConfigError
from uniarena.learners.on_policy.slots import Minibatches
from uniarena.ops.statistics import Metrics, RunningMean, masked_mean
from uniarena.optim import OptimizerConfig, build_optimizer
from uniarena.optim.clipping import part_of
from uniarena.optim.natural import NaturalGradient, TrustRegion

TYPE = f"{NaturalGradient.__module__}:{NaturalGradient.__name__}"


class NaturalStep:
    """What `PolicyGradient` does with the rows of a rollout where `policy_step: natural`.

    What policy and value share moves with the policy.

    Args:
        learner: gets the optimisers `optimizer` (of the policy) and `value_optimizer`.

    Raises:
        ConfigError: the value has no parameters of its own, or `target_kl` is missing.
    """

    def __init__(self, learner: Any) -> None:
        self.learner, cfg = learner, learner.cfg
        if cfg.target_kl is None:
            raise ConfigError(
                "a natural step goes as far as target_kl.", path="learner.target_kl", hint="0.01 is usual."
            )
        named = list(learner.model.named_parameters())
        value = [pair for pair in named if part_of(pair[0]) == "value"]
        if not value:
            raise ConfigError(
                "the value is fitted separately, and has no parameters of its own in this model.",
                path="agent.value",
                hint="let the policy's module return the action parameters alone, and set agent.value.",
            )
        policy = [pair for pair in named if part_of(pair[0]) != "value"]
        learner.optimizer = build_optimizer(policy, OptimizerConfig(type=TYPE), 1.0)
        learner.value_optimizer = self.value_optimizer = build_optimizer(
            value, cfg.optimizer, cfg.learning_rate
        )
        self._whole = Minibatches(replace(cfg, batch_size=None, n_epochs=1), learner.rng)

    def __call__(self, rows: Batch, states: Tree | None = None) -> Metrics:
        """One update on rows `[T, B]` with their targets; `states` of a policy with memory, before every sequence."""
        learner, loss = self.learner, self.learner.loss
        (batch,) = self._whole(rows, states)
        natural = learner.optimizer.torch
        natural.region, natural.taken = self._region(batch), 0.0
        found = learner.minimize(
            lambda rows: loss.policy(loss.out(rows).dist, rows), batch, learner.optimizer
        )
        with torch.no_grad():
            after = loss.policy(loss.out(batch).dist, batch)[1]
        found |= {"kl": after["kl"], "clamped_fraction": after["clamped_fraction"]}
        found["step_share"] = torch.tensor(natural.taken)
        mean = RunningMean()
        for part in learner.minibatches(rows, states):
            own = learner.minimize(
                lambda rows: loss.value(loss.out(rows).value, rows), part, learner.value_optimizer
            )
            mean.add({"value_loss": own["value_loss"]})
            if "grad_norm" in own:  # not where a float16 step was left out
                mean.add({"value_grad_norm": own["grad_norm"]})
        return found | mean.result()

    def _region(self, batch: Batch) -> TrustRegion:
        loss, cfg = self.learner.loss, self.learner.cfg
        with torch.no_grad():
            before = copy.deepcopy(loss.out(batch).dist)  # parts of it may be parameters, which move

        def kl() -> Tensor:
            return masked_mean(before.kl(loss.out(batch).dist), batch.get("valid"))

        def value() -> Tensor:
            total: Tensor = self.learner.minimize.loss_fn(batch)[0]
            return total

        return TrustRegion(kl, value, cfg.target_kl, cfg.cg_steps, cfg.cg_damping, cfg.line_search_steps)
