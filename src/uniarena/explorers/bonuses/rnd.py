"""Random network distillation: what a network cannot predict about an observation is how new that one is.

Burda et al. 2018 (arXiv:1810.12894). A fixed random network embeds the observation that an action led to, a
second one learns to predict the embedding, and the squared error is the bonus. Deviations: one stream of
rewards (extrinsic plus weighted bonus, ended with the episode) and one value function instead of two; the
first chunk itself sets the observation statistics, rather than a random agent before training. With replay there is no
running return of a column, so `running_std` divides by the root mean square of all sampled errors.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from gymnasium import Space
from torch import Tensor

from uniarena.batch import Batch
from uniarena.config import config
from uniarena.explorers.bonuses.base import Bonus, BonusConfig, drawing_from
from uniarena.ops.statistics import Metrics


@config
class RNDConfig(BonusConfig):
    """Random network distillation: `hidden_sizes` are the target's, the predictor has two more of the last width."""


class RND(Bonus):
    """A bonus for observations that a predictor does not know yet: its mean squared error."""

    Config = RNDConfig
    reads: ClassVar[tuple[str, ...]] = ("next_obs",)

    def __init__(
        self, observation_space: Space[Any], action_space: Space[Any], cfg: RNDConfig, rng: torch.Generator
    ) -> None:
        super().__init__(observation_space, action_space, cfg, rng)
        with drawing_from(rng):
            self._networks()
        self._train(("predictor", self.predictor))

    def _networks(self) -> None:
        hidden = self.cfg.hidden_sizes
        self.target = self._embedding(hidden).requires_grad_(False)
        self.predictor = self._embedding((*hidden, *hidden[-1:] * 2))

    def novelty(self, rows: Batch) -> Tensor:
        obs = self._normal(rows.next_obs)
        error: Tensor = (self.predictor(obs) - self.target(obs)).square().mean(-1)
        return error

    def loss(self, rows: Batch) -> tuple[Tensor, Metrics]:
        return self.novelty(rows).mean(), {}
