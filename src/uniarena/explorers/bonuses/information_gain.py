"""Information gain: where several models of the dynamics disagree, there is something left to learn.

The variance between the predictions of an ensemble stands for what a step tells about the dynamics: Pathak et al. 2019
(arXiv:1906.04161), section 3. Noise that nobody can predict gives no bonus in the end, since all members learn its
mean; there it is ahead of a prediction error such as that of `icm`. Predicted are the features of the next observation
under a fixed random network; each member learns from a random half of the rows, so that members stay different.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import Space
from torch import Tensor

from uniarena.batch import Batch
from uniarena.config import ConfigError, config
from uniarena.explorers.bonuses.base import Bonus, BonusConfig, drawing_from
from uniarena.explorers.bonuses.icm import action_encoder
from uniarena.nets.ensemble import EnsembleMLP
from uniarena.ops.statistics import Metrics


@config
class InformationGainConfig(BonusConfig):
    """Disagreement of an ensemble of models."""

    feature_dim: int = 64  # width of the features that are predicted
    members: int = 5  # models in the ensemble

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.members < 2:
            raise ConfigError(f"got {self.members}; models disagree from 2 on.", path="members")


class InformationGain(Bonus):
    """A bonus for steps about whose outcome an ensemble of models disagrees: the variance between its members."""

    Config = InformationGainConfig
    cfg: InformationGainConfig

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        cfg: InformationGainConfig,
        rng: torch.Generator,
    ) -> None:
        super().__init__(observation_space, action_space, cfg, rng)
        with drawing_from(rng):
            self._networks()
        self._train(("models", self.models))

    def _networks(self) -> None:
        width, hidden = self.cfg.feature_dim, self.cfg.hidden_sizes
        self.actions = action_encoder(self.spaces[1])
        self.features = self._embedding(hidden).requires_grad_(False)
        self.models = EnsembleMLP(self.cfg.members, width + self.actions.out_dim, width, hidden)

    def novelty(self, rows: Batch) -> Tensor:
        return self._guesses(rows).var(0, correction=0).mean(-1)

    def loss(self, rows: Batch) -> tuple[Tensor, Metrics]:
        guesses = self._guesses(rows)
        with torch.no_grad():
            true = self.features(self._normal(rows.next_obs))
            novelty = guesses.var(0, correction=0).mean()
        half = torch.rand(guesses.shape[:2], generator=self.rng, device=self.rng.device).to(true.device) < 0.5
        error = (guesses - true).square().mean(-1)
        return (error * half).sum() / half.sum().clamp(min=1), {"novelty": novelty}

    def _guesses(self, rows: Batch) -> Tensor:
        """`[members, N, feature_dim]`."""
        with torch.no_grad():
            now = self.features(self._normal(rows.obs))
            inputs = torch.cat([now, self.actions(rows.action)], dim=-1)
        guesses: Tensor = self.models(inputs)
        return guesses
