"""The loss of a policy gradient on one minibatch, and its metrics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout, Tree, tree_map
from uniarena.ops.policy_gradient import approx_kl, clamp_log_ratio, clip_fraction, surrogate, value_loss
from uniarena.ops.statistics import Metrics, masked_mean
from uniarena.optim import Derived
from uniarena.values.actor_critic_backprop import Weights, actor_critic_backprop


class PolicyLoss:
    """−surrogate + vf_coef · value loss − ent_coef · entropy + kl_coef · KL.

    Args:
        learner: whose `model`, `cfg`, `returns`, `clip_range`, `ent_coef` and `kl_coef` these are.
        by_hand: whether the derivatives of plain networks may be those that are written down.
    """

    def __init__(self, learner: Any, by_hand: bool = True) -> None:
        self.learner, self.cfg = learner, learner.cfg
        self.atoms = learner.cfg.ratio == "atom"
        self.penalised, self.with_entropy = learner.cfg.kl_coef != 0.0, learner.cfg.ent_coef != 0.0
        self.old = "atom_log_prob" if self.atoms else "log_prob"
        by_hand = by_hand and not self.atoms and self.cfg.clip != "truncated"
        self._by_hand = actor_critic_backprop(learner.model) if by_hand else None

    def __call__(self, batch: Batch) -> tuple[Tensor | Derived, Metrics]:
        """Policy and value together; the derivatives of plain networks are written down by hand."""
        if self._by_hand is not None and self._by_hand.takes(batch):
            learner = self.learner
            weights = Weights(learner.clip_range, learner.ent_coef, learner.kl_coef)
            return self._by_hand.loss(batch, batch[self.old], self.cfg, weights)
        out = self.out(batch)
        policy, metrics = self.policy(out.dist, batch)
        value, own = self.value(out.value, batch)
        return policy + self.cfg.vf_coef * value, metrics | own

    def out(self, batch: Batch) -> Any:
        """The model's output for the minibatch."""
        memory = (tree_map(lambda leaf: leaf[0], batch.state), batch.is_first) if "state" in batch else ()
        return self.learner.model(batch.obs, *memory)

    def policy(self, dist: Any, batch: Batch) -> tuple[Tensor, Metrics]:
        """The policy's part, of the distribution of each row."""
        cfg, valid, learner = self.cfg, batch.get("valid"), self.learner
        log_ratio, clamped = clamp_log_ratio(self.log_prob(dist, batch.action), batch[self.old])
        advantage = batch.advantage[..., None] if self.atoms else batch.advantage
        gain = surrogate(log_ratio, advantage, cfg.clip, learner.clip_range, cfg.dual_clip, cfg.rho_bar)
        total = policy_loss = -masked_mean(self.per_decision(gain), valid)
        if self.penalised:
            total = total + learner.kl_coef * masked_mean(self.per_decision(approx_kl(log_ratio)), valid)
        # where the entropy is only watched, it needs no backward pass
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.with_entropy):
            entropy = masked_mean(dist.entropy(), valid)
        total = total - learner.ent_coef * entropy
        metrics = {"policy_loss": policy_loss.detach(), "entropy": entropy.detach()}
        return total, metrics | self._ratio_metrics(log_ratio.detach(), clamped, valid)

    @torch.no_grad()
    def distance(self, batch: Batch) -> Tensor:
        """The mean KL from the policy that gathered the minibatch to the present one, 0-d."""
        return self.policy(self.out(batch).dist, batch)[1]["kl"]

    def value(self, value: Tensor, batch: Batch) -> tuple[Tensor, Metrics]:
        """The value's part, in units of the deviation of returns where these are normalised."""
        cfg, target, old = self.cfg, batch.target, batch.get("value")
        bound: float | Tensor | None = self.cfg.value_clip
        scale = self.learner.returns
        if scale is not None:
            unit = scale.std.to(value.dtype)
            value, target = value / unit, target / unit
            if bound is not None:
                old, bound = old / unit, bound / unit
        loss = masked_mean(value_loss(value, target, old, bound, cfg.value_loss), batch.get("valid"))
        return loss, {"value_loss": loss.detach()}

    def _ratio_metrics(self, log_ratio: Tensor, clamped: Tensor, valid: Tensor | None) -> Metrics:
        shares = {
            "clip_fraction": clip_fraction(log_ratio, self.learner.clip_range),
            "clamped_fraction": clamped.to(log_ratio.dtype),
        }
        metrics = {name: masked_mean(x.mean(-1) if self.atoms else x, valid) for name, x in shares.items()}
        metrics["kl"] = masked_mean(self.per_decision(approx_kl(log_ratio)), valid)
        return metrics

    def recall(self, rows: Batch, state: Tree | None, atoms: bool = False) -> Tensor:
        """Log-probs of what was done, under the policy as it is: `[T, B]`, or of its atoms `[T, B, A]`.

        Args:
            rows: `[T, B]`.
            state: before the first row, of a policy with memory.
        """
        if state is not None:
            dist = self.learner.model(rows.obs, state, rows.is_first).dist
            return dist.atom_log_prob(rows.action) if atoms else dist.log_prob(rows.action)
        flat = rows.flatten()
        dist = self.learner.model(flat.obs).dist
        log_prob = dist.atom_log_prob(flat.action) if atoms else dist.log_prob(flat.action)
        return log_prob.unflatten(0, rows.shape)

    def off_policy(self, rollout: Rollout) -> tuple[dict[str, Tensor], Metrics]:
        """How far the present policy is from the one that acted: what `vtrace` needs beside rewards, and metrics.

        Ratios are of whole actions. Rows that are not valid count as on-policy.
        """
        if self.cfg.advantage != "vtrace":
            return {}, {}
        rows = rollout.rows
        now = self.recall(rows, rollout.start.get("state"))
        log_ratio = torch.where(rows.valid, clamp_log_ratio(now, rows.log_prob)[0], 0.0)
        rho = masked_mean(log_ratio.exp().clamp(max=self.cfg.rho_bar), rows.valid)
        return {"log_ratio": log_ratio}, {"rho": rho}

    def log_prob(self, dist: Any, action: Tree) -> Tensor:
        """`[...]`, or `[..., atoms]` where ratios are of atoms."""
        log_prob: Tensor = dist.atom_log_prob(action) if self.atoms else dist.log_prob(action)
        return log_prob

    def per_decision(self, x: Tensor) -> Tensor:
        """Atoms are summed, so that at ratio 1 the gradient is that of the joint ratio."""
        return x.sum(-1) if self.atoms else x
