"""Batch-constrained Q-learning: no action is valued, or taken, that the data's behaviour would not take.

Fujimoto et al. 2018 (arXiv:1812.02900), algorithm 1. Deviations: half the squared TD error, as elsewhere here;
evaluation chooses among fixed latents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from uniarena.batch import Batch
from uniarena.config import Between, config
from uniarena.learners.base import Learner, Update
from uniarena.learners.off_policy.actor_critic import named
from uniarena.learners.offline.config import OfflineConfig
from uniarena.ops.actor_critic import critic_loss
from uniarena.ops.offline import action_distance, latent_divergence, soft_minimum
from uniarena.ops.statistics import Metrics
from uniarena.ops.td import td_target
from uniarena.optim import LearningRate, Minimize
from uniarena.optim.targets import Target
from uniarena.values.constrained import build_candidates
from uniarena.values.ensemble import EnsembleSpec


@config
class BCQConfig(OfflineConfig):
    """Section 5 and the authors' code."""

    learning_rate: LearningRate = 1e-3
    batch_size: Annotated[int, Between(1)] = 100  # rows of an update
    tau: Annotated[float, Between(0, 1, above=True)] = (
        0.005  # share of the way that targets move at every update
    )
    n_critics: Annotated[int, Between(1)] = 2
    candidates: Annotated[int, Between(1)] = (
        10  # actions of the behaviour's model among which the best is taken
    )
    reach: Annotated[float, Between(0)] = (
        0.05  # furthest that such an action is moved, in half widths of the bounds
    )
    min_share: Annotated[float, Between(0, 1)] = (
        0.75  # of the critics' minimum in targets; the rest is their maximum
    )
    model_hidden_sizes: tuple[int, ...] = (750, 750)  # of the model of the behaviour's actions
    divergence_weight: Annotated[float, Between(0)] = 0.5  # of its latents in nats, mean over their numbers

    @property
    def critics(self) -> EnsembleSpec:
        """The critics to build."""
        return EnsembleSpec(self.n_critics)


class BCQ(Learner):
    """A model of the data's actions, critics, and a network that moves sampled actions a little."""

    Config: ClassVar[type] = BCQConfig
    build_model: ClassVar[Callable[..., Any]] = staticmethod(build_candidates)
    default_parts: ClassVar[dict[str, dict[str, Any]]] = {
        "explorer": {"type": "sample"},
        "buffer": {"type": "replay"},
    }
    model: Any  # an ActorQModel whose policy's network is a CandidateNetwork

    def __init__(self, model: Any, cfg: BCQConfig, minimize: Minimize, rng: torch.Generator) -> None:
        super().__init__(model, cfg, minimize, rng)
        network = model.policy.network
        self.q_target = Target(model.q, cfg.tau)
        self.perturbation_target = Target(network.perturbation, cfg.tau)
        behaviour = torch.nn.ModuleDict({"encoder": network.encoder, "model": network.model})
        self.model_optimizer = cfg.optimizer_of("policy", behaviour)
        self.value_optimizer = cfg.optimizer_of("q", model.q)
        self.policy_optimizer = cfg.optimizer_of("policy.perturbation", network.perturbation)

    def update(self, batch: Batch) -> Update:
        inputs = self.model.policy.inputs
        batch = batch.replace(inputs=inputs(batch.obs), next_inputs=inputs(batch.next_obs))
        found = self.minimize(self.model_loss, batch, self.model_optimizer)
        metrics: Metrics = {f"model_{name}": value for name, value in found.items()}
        found = self.minimize(self.value_loss, batch, self.value_optimizer)
        priority = found.pop("surprise")
        metrics |= named("value", found) | {"td_error": priority.mean()}
        metrics |= named("policy", self.minimize(self.policy_loss, batch, self.policy_optimizer))
        self.q_target.update()
        self.perturbation_target.update()
        return Update(metrics | {"learning_rate": self.value_optimizer.rate}, priority)

    def model_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """The squared error of decoded actions, and the divergence of their latents from the prior."""
        network, action = self.model.policy.network, self.model.scale(batch.action)
        noise = self._normal(len(batch), network.model.latent)
        decoded, mean, log_std = network.model(network.encoder(batch.inputs), action, noise)
        error = action_distance(decoded, action).mean()
        divergence = latent_divergence(mean, log_std).mean() / network.model.latent
        loss = error + self.cfg.divergence_weight * divergence
        return loss, {"error": error.detach(), "divergence": divergence.detach()}

    @torch.no_grad()
    def value_target(self, batch: Batch) -> Tensor:
        """`[N]`: r + d · the best of the candidates at s', of the target networks. Eq. 13."""
        network, cfg, rows = self.model.policy.network, self.cfg, len(batch)
        wide, action = network.candidates(
            batch.next_inputs, self._latents(rows, cfg.candidates), self.perturbation_target
        )
        q = soft_minimum(self.q_target(wide, action, self.rng), cfg.min_share)
        return td_target(batch.reward, batch.discount, q.unflatten(0, (rows, -1)).amax(1))

    def value_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Every critic regressed on the target."""
        target = self.value_target(batch)
        q = self.model.q(batch.inputs, self.model.scale(batch.action), self.rng)
        loss, surprise = critic_loss(q, target, batch.get("weight"))
        return loss, {"q": q.detach().mean(), "target": target.mean(), "surprise": surprise}

    def policy_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """−Q of sampled actions that were moved, of the first critic."""
        network, model = self.model.policy.network, self.model
        with torch.no_grad():
            features = network.encoder(batch.inputs)
            action = network.model.decode(features, self._latents(len(batch), 1).squeeze(1))
        with model.q.frozen():
            q = model.q(batch.inputs, network.moved(features, action), self.rng)
        return -q[0].mean(), {}

    def _latents(self, rows: int, count: int) -> Tensor:
        """`[N, K, 2·D]` from the prior, cut to where the data is."""
        network = self.model.policy.network
        bounded: Tensor = network.bounded(self._normal(rows, count, network.model.latent))
        return bounded

    def _normal(self, *shape: int) -> Tensor:
        noise = torch.randn(shape, generator=self.rng, device=self.rng.device)
        return noise.to(self.model.policy.network.latents.device)
