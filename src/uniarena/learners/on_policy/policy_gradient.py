"""Policy gradient: filter → advantage → ratio → clip → aggregate. PPO, A2C and kin are presets of it.

PPO: Schulman et al. 2017 (arXiv:1707.06347), eq. 7 and 9. A2C: Mnih et al. 2016 (arXiv:1602.01783), alg. S3.
Deviations: value targets come from the advantages' own pass; advantages are normalised over the rollout and
not the minibatch, so a remainder of one sample is harmless; log-ratios are clamped before exponentiation.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout, Tree, tree_map
from uniarena.config import ConfigError
from uniarena.learners.base import Learner, Update
from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.learners.on_policy.slots import Minibatches, build_advantage
from uniarena.ops.policy_gradient import approx_kl, clamp_log_ratio, clip_fraction, surrogate, value_loss
from uniarena.ops.returns import known_successors, next_values, trace_ends
from uniarena.ops.statistics import (
    Metrics,
    RunningMean,
    explained_variance,
    masked_mean,
    mean_and_std,
    standardize,
)
from uniarena.optim import Minimize, build_optimizer, make_schedule


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
        self.optimizer = build_optimizer(model.named_parameters(), cfg.optimizer, cfg.learning_rate)
        self.advantage, self.minibatches = build_advantage(cfg), Minibatches(cfg, rng)
        self._clip_range, self._ent_coef = make_schedule(cfg.clip_range), make_schedule(cfg.ent_coef)
        self._atoms = cfg.ratio == "atom"
        self._old = "atom_log_prob" if self._atoms else "log_prob"

    @property
    def clip_range(self) -> float:
        return self._clip_range(self.progress)

    @property
    def ent_coef(self) -> float:
        return self._ent_coef(self.progress)

    def update(self, rollout: Rollout) -> Update:
        rows, summary = self.targets(rollout)
        states = self.minibatches.states_before(self.model, rollout)
        self.train()
        mean = RunningMean()
        for batch in self.minibatches(rows, states):
            metrics = self.minimize(self.loss, batch, self.optimizer)
            mean.add(metrics)
            # 1.5 × and an estimate per minibatch, as Stable-Baselines3 does; the step that showed it is kept.
            if self.cfg.target_kl is not None and float(metrics["kl"]) > 1.5 * self.cfg.target_kl:
                break
        rates = {"learning_rate": self.optimizer.lr, "ent_coef": self.ent_coef}
        rates |= {} if self.cfg.clip == "none" else {"clip_range": self.clip_range}
        exact = {name: torch.tensor(value, dtype=torch.float64) for name, value in rates.items()}
        return Update(summary | mean.result() | exact)

    @torch.no_grad()
    def targets(self, rollout: Rollout) -> tuple[Batch, Metrics]:
        """What the loss needs of the [T, B] rows, with advantage and value target; and metrics of them."""
        self.eval()
        rows = rollout.rows.require(*self.records)
        value, next_value = next_values(self.model.value, rollout)
        discount = rows.get("discount")
        if discount is None:
            discount = self.cfg.gamma * (~rows.terminated).to(value.dtype)
        ends, known = trace_ends(rows), known_successors(rollout)
        advantage, target = self.advantage(rows.reward, value, next_value, discount, ends, known=known)
        self.minimize.watch(value=value, advantage=advantage)
        mean, std = mean_and_std(advantage, rows.valid)
        summary = {"explained_variance": explained_variance(value, target, rows.valid)}
        summary |= {"advantage_mean": mean.float(), "advantage_std": std.float()}
        if self.cfg.normalize_advantage:
            advantage = standardize(advantage, rows.valid)
        rows = rows.replace(advantage=advantage, target=target, value=value)
        if self._atoms:
            rows = rows.replace(atom_log_prob=self._atom_log_prob(rows, rollout.start.get("state")))
        names = ["obs", "action", "advantage", "target", self._old, "valid", "is_first"]
        names += ["value"] if self.cfg.value_clip is not None else []
        return rows.select(*names), summary

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """The loss of one minibatch and its metrics."""
        cfg, valid = self.cfg, batch.get("valid")
        memory = (tree_map(lambda leaf: leaf[0], batch.state), batch.is_first) if "state" in batch else ()
        out = self.model(batch.obs, *memory)
        log_ratio, clamped = clamp_log_ratio(self._log_prob(out.dist, batch.action), batch[self._old])
        advantage = batch.advantage[..., None] if self._atoms else batch.advantage
        gain = surrogate(log_ratio, advantage, cfg.clip, self.clip_range, cfg.dual_clip)
        policy_loss = -masked_mean(self._per_decision(gain), valid)
        error = value_loss(out.value, batch.target, batch.get("value"), cfg.value_clip, cfg.value_loss)
        value_error = masked_mean(error, valid)
        with torch.set_grad_enabled(
            self.ent_coef != 0.0
        ):  # where it is only watched, it needs no backward pass
            entropy = masked_mean(out.dist.entropy(), valid)
        total = policy_loss + cfg.vf_coef * value_error - self.ent_coef * entropy
        losses = {"policy_loss": policy_loss, "value_loss": value_error, "entropy": entropy}
        metrics = {name: value.detach() for name, value in losses.items()}
        return total, metrics | self._ratio_metrics(log_ratio.detach(), clamped, valid)

    def _ratio_metrics(self, log_ratio: Tensor, clamped: Tensor, valid: Tensor | None) -> Metrics:
        shares = {
            "clip_fraction": clip_fraction(log_ratio, self.clip_range),
            "clamped_fraction": clamped.to(log_ratio.dtype),
        }
        metrics = {name: masked_mean(x.mean(-1) if self._atoms else x, valid) for name, x in shares.items()}
        metrics["kl"] = masked_mean(self._per_decision(approx_kl(log_ratio)), valid)
        return metrics

    def _log_prob(self, dist: Any, action: Tree) -> Tensor:
        log_prob: Tensor = dist.atom_log_prob(action) if self._atoms else dist.log_prob(action)
        return log_prob

    def _per_decision(self, x: Tensor) -> Tensor:
        """Atoms are summed, so that at ratio 1 the gradient is that of the joint ratio."""
        return x.sum(-1) if self._atoms else x

    def _atom_log_prob(self, rows: Batch, state: Tree | None) -> Tensor:
        """[T, B, A] under the policy before the update: the behaviour policy, where sampling does not lag."""
        if state is not None:
            return self._log_prob(self.model(rows.obs, state, rows.is_first).dist, rows.action)
        flat = rows.flatten()
        return self._log_prob(self.model(flat.obs).dist, flat.action).unflatten(0, rows.shape)
