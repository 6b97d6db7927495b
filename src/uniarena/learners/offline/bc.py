"""Behaviour cloning: the policy that would have done what the data shows, by maximum likelihood or least squares.

Pomerleau 1991 (Neural Computation 3:88); Bain & Sammut 1995. Rows are held out by episode where the data says which one
they are of, else in runs of `BLOCK` neighbours, so that a held-out row has no twin among those learned from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from uniarena.batch import Batch, tree_leaves
from uniarena.config import Between, ConfigError, config
from uniarena.learners.base import Learner, Update
from uniarena.learners.offline.config import OfflineConfig
from uniarena.ops.offline import action_distance, held_out
from uniarena.ops.statistics import Metrics
from uniarena.optim import Minimize
from uniarena.policies.deterministic import Deterministic
from uniarena.values.cloning import build_cloning_model

BLOCK = 500
"""Neighbouring rows that are held out together."""


@config
class BCConfig(OfflineConfig):
    """Rates as in the authors' code of IQL and TD3+BC, whose baseline it is."""

    deterministic: bool = False  # Box actions: least squares, in half widths of the bounds; false: a Gaussian
    validation_share: Annotated[float, Between(0)] = 0.1  # of the data, held out: `validation_loss`
    ent_coef: Annotated[float, Between(0)] = 0.0  # weight of an entropy bonus, against overconfidence

    def __post_init__(self) -> None:
        if self.validation_share > 0.5:
            raise ConfigError(f"got {self.validation_share}; expected at most half.", path="validation_share")


class BC(Learner):
    """A policy fitted to the actions of rows.

    Batches have `obs`, `action`, `index`, and if known `episode_id`. With `callbacks: [{type: early_stop, metric:
    validation_loss, mode: min, patience: 5, restore_best: true}]` it ends where held-out actions are predicted best.
    """

    Config: ClassVar[type] = BCConfig
    build_model: ClassVar[Callable[..., Any]] = staticmethod(build_cloning_model)
    default_parts: ClassVar[dict[str, dict[str, Any]]] = {
        "explorer": {"type": "sample"},
        "buffer": {"type": "replay"},
    }

    def __init__(self, model: Any, cfg: BCConfig, minimize: Minimize, rng: torch.Generator) -> None:
        super().__init__(model, cfg, minimize, rng)
        self.optimizer = cfg.optimizer_of("policy", model.policy)

    def update(self, batch: Batch) -> Update:
        kept, apart = self._split(batch)
        metrics = self.minimize(self.loss, kept, self.optimizer) if len(kept) else {}
        if len(apart):
            with torch.no_grad():
                found, more = self.loss(apart)
            metrics |= {f"validation_{name}": value for name, value in {**more, "loss": found}.items()}
        return Update({**metrics, "learning_rate": self.optimizer.rate})

    def _split(self, batch: Batch) -> tuple[Batch, Batch]:
        """Rows to learn from, and those held out."""
        batch = batch.select("obs", "action", "index", *(["episode_id"] if "episode_id" in batch else []))
        if self.cfg.validation_share == 0.0:
            return batch, batch[:0]
        key = batch.episode_id if "episode_id" in batch else batch.index // BLOCK
        out = held_out(key, self.cfg.validation_share)
        return batch[~out], batch[out]

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """−log π(a|s), or the squared distance of a deterministic policy, and what is known of the fit."""
        dist = self.model.policy(batch.obs)[0]
        if isinstance(dist, Deterministic):
            scale = dist.scale
            return action_distance(scale(dist.mode()), scale(batch.action)).mean(), {}
        loss, entropy = -dist.log_prob(batch.action).mean(), dist.entropy().mean()
        metrics: Metrics = {"entropy": entropy.detach()}
        if not tree_leaves(batch.action)[0].is_floating_point():
            metrics["accuracy"] = _agreement(dist.mode(), batch.action)
        return loss - self.cfg.ent_coef * entropy, metrics


def _agreement(guess: Any, action: Any) -> Tensor:
    """Share of the numbers of an action that are guessed right."""
    pairs = zip(tree_leaves(guess), tree_leaves(action), strict=True)
    return torch.stack([(a == b).float().mean() for a, b in pairs]).mean()
