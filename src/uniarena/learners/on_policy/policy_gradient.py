"""Policy gradient: filter → advantage → ratio → clip → aggregate. PPO, A2C and kin are presets of it.

PPO: Schulman et al. 2017 (arXiv:1707.06347), eq. 7 and 9. A2C: Mnih et al. 2016 (arXiv:1602.01783), alg. S3.
IMPALA: Espeholt et al. 2018 (arXiv:1802.01561), section 4.
Deviations: value targets come from the advantages' own pass; advantages are normalised over the rollout and
not the minibatch, so a remainder of one sample is harmless; log-ratios are clamped before exponentiation.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from uniarena.batch import Batch, Rollout, Tree
from uniarena.config import ConfigError
from uniarena.learners.base import Learner, Update
from uniarena.learners.on_policy.compiled import compiled
from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.learners.on_policy.constraint import PolicyConstraint
from uniarena.learners.on_policy.entropy import EntropyBonus
from uniarena.learners.on_policy.loss import PolicyLoss
from uniarena.learners.on_policy.natural import NaturalStep
from uniarena.learners.on_policy.slots import Minibatches, build_advantage
from uniarena.nets.inference import set_mode
from uniarena.nets.return_scale import scale_values
from uniarena.ops.returns import known_successors, next_values, trace_ends
from uniarena.ops.statistics import (
    Metrics,
    RunningMean,
    explained_variance,
    mean_and_std,
    standardize,
)
from uniarena.optim import Minimize, build_optimizer
from uniarena.values.frozen import FrozenValue


class PolicyGradient(Learner):
    """Ascends the (clipped) policy-gradient surrogate of each rollout for some epochs of minibatches.

    With memory, minibatches are time-major sequences, and the model is called as `model(obs [L, N, …], state before the
    first row [N, …], is_first [L, N])`: gradients go back to the beginning of a sequence (truncated backpropagation).
    """

    Config: ClassVar[type] = PolicyGradientConfig
    records: ClassVar[tuple[str, ...]] = ("log_prob",)

    def __init__(
        self, model: Any, cfg: PolicyGradientConfig, minimize: Minimize, rng: torch.Generator
    ) -> None:
        super().__init__(model, cfg, minimize, rng)
        if not getattr(model, "has_value", True):
            raise ConfigError(
                "a policy gradient needs a value, and this model has none.",
                path="agent.value",
                hint="set agent.value, or return (value, action parameters) from your module.",
            )
        kind = cfg.normalize_return
        self.returns = None if kind == "none" else scale_values(model, kind == "popart", cfg.return_decay)
        self.constraint, self.entropy = PolicyConstraint(cfg), EntropyBonus(cfg, _head(model))
        self.ent_coef_optimizer = self.entropy.optimizer
        self.advantage, self.minibatches = build_advantage(cfg), Minibatches(cfg, rng)
        self.loss, self.value = PolicyLoss(self, by_hand=not cfg.compile), FrozenValue(model)
        self._step_loss = compiled(self.loss) if cfg.compile else self.loss
        self._natural: NaturalStep | None = None
        if cfg.policy_step == "natural":
            self._natural = NaturalStep(self)
        else:
            named = model.named_parameters()
            self.optimizer = build_optimizer(named, cfg.optimizer, cfg.learning_rate, gives_kl=True)

    @property
    def clip_range(self) -> float:
        return self.constraint.clip_range(self.progress)

    @property
    def ent_coef(self) -> float:
        return self.entropy.coef(self.progress)

    @property
    def kl_coef(self) -> float:
        return self.constraint.kl_coef(self.progress)

    def update(self, rollout: Rollout) -> Update:
        rows, summary = self.targets(rollout)
        states = self.minibatches.states_before(self.model, rollout)
        set_mode(self, True)
        found = self._epochs(rows, states) if self._natural is None else self._natural(rows, states)
        adaptive = self.optimizer if self._natural is None else self._natural.value_optimizer
        rates = {"learning_rate": adaptive.lr, "ent_coef": self.ent_coef}
        rates |= {} if self.cfg.clip in ("none", "truncated") else {"clip_range": self.clip_range}
        rates |= {} if self.cfg.kl_coef == 0.0 else {"kl_coef": self.kl_coef}
        exact = {name: torch.tensor(value, dtype=torch.float64) for name, value in rates.items()}
        return Update(summary | found | exact)

    def _epochs(self, rows: Batch, states: Tree | None) -> Metrics:
        """Passes over the rows, until they are done or the constraint ends them."""
        mean, watch, epochs = RunningMean(), self.constraint, self.cfg.n_epochs
        watch.begin()
        for epoch in self.minibatches.passes(rows, states):
            stop = False
            for batch in epoch:
                clip_range = self.clip_range
                metrics = self.minimize(self._step_loss, batch, self.optimizer)
                self.entropy.update(self.minimize, metrics["entropy"])
                mean.add(metrics)
                stop = watch.after_step(metrics, clip_range, self.optimizer)
                if stop:
                    break
            last = stop or watch.epochs + 1 == epochs
            kl = self.loss.distance(batch) if watch.follows else None
            if watch.after_epoch(self.optimizer, last, kl) or stop:
                break
        return mean.result() | {"epochs_done": torch.tensor(float(watch.epochs))}

    @torch.no_grad()
    def targets(self, rollout: Rollout) -> tuple[Batch, Metrics]:
        """What the loss needs of the [T, B] rows, with advantage and value target; and metrics of them."""
        set_mode(self, False)
        rows = rollout.rows.require(*self.records)
        value, next_value = next_values(self.value, rollout)
        discount = rows.get("discount")
        if discount is None:
            discount = self.cfg.gamma * (~rows.terminated).to(value.dtype)
        ends, known = trace_ends(rows), known_successors(rollout)
        ratios, summary = self.loss.off_policy(rollout)
        credit = self.advantage(rows.reward, value, next_value, discount, ends, known=known, **ratios)
        advantage, target = credit
        self.minimize.watch(value=value, advantage=advantage)
        mean, std = mean_and_std(advantage, rows.valid)
        summary |= {"explained_variance": explained_variance(value, target, rows.valid)}
        summary |= {"advantage_mean": mean.float(), "advantage_std": std.float()}
        if self.returns is not None:
            self.returns.update(target, rows.valid)
        if self.cfg.normalize_advantage:
            advantage = standardize(advantage, rows.valid)
        rows = rows.replace(advantage=advantage, target=target, value=value)
        if self.loss.atoms:
            rows = rows.replace(atom_log_prob=self.loss.recall(rows, rollout.start.get("state"), atoms=True))
        names = ["obs", "action", "advantage", "target", self.loss.old, "valid", "is_first"]
        names += ["value"] if self.cfg.value_clip is not None else []
        return rows.select(*names), summary


def _head(model: Any) -> Any:
    return getattr(getattr(model, "policy", None), "head", None)
