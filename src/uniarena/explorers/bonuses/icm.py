"""Intrinsic curiosity: how badly the features of the next observation are predicted from the last and the action.

Pathak et al. 2017 (arXiv:1705.05363), section 2.2. Features φ are learned by an inverse model, which tells the action
from φ(s) and φ(s'), so that they hold what the agent can influence and not what merely flickers. The error of a
forward model in those features is the bonus. Deviation: only the inverse model moves the features, as in Burda et al.
2018 (arXiv:1808.04355), since a forward loss alone is least where all features are equal.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn
from torch.nn import functional as F

from uniarena.batch import Batch, Tree
from uniarena.config import ConfigError, config
from uniarena.explorers.bonuses.base import WHERE, Bonus, BonusConfig, drawing_from
from uniarena.nets.encoders import Encoder, EncoderConfig, Flat, OneHot, build_encoder
from uniarena.nets.initialization import orthogonal_
from uniarena.nets.leaves import leaf_at
from uniarena.nets.mlp import MLP
from uniarena.ops.statistics import Metrics


@config
class ICMConfig(BonusConfig):
    """Intrinsic curiosity module."""

    forward_share: float = 0.2  # β of the paper: the loss is (1 − β)·inverse + β·forward

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.forward_share < 1.0:
            raise ConfigError(
                f"got {self.forward_share}; expected a share between 0 and 1, as in 0.2.",
                path="forward_share",
            )


class ICM(Bonus):
    """A bonus for steps whose outcome a forward model does not predict, in features that the agent controls."""

    Config = ICMConfig
    cfg: ICMConfig

    def __init__(
        self, observation_space: Space[Any], action_space: Space[Any], cfg: ICMConfig, rng: torch.Generator
    ) -> None:
        super().__init__(observation_space, action_space, cfg, rng)
        with drawing_from(rng):
            self._networks()
        self._train(("features", self.features), ("inverse", self.inverse), ("dynamics", self.dynamics))

    def _networks(self) -> None:
        width, hidden = self.cfg.feature_dim, self.cfg.hidden_sizes
        self.actions = action_encoder(self.spaces[1])
        self.features = self._embedding(hidden)
        self.inverse = MLP(2 * width, hidden, "relu", self.actions.out_dim)
        self.dynamics = MLP(width + self.actions.out_dim, hidden, "relu", width)
        orthogonal_(self.inverse)
        orthogonal_(self.dynamics)

    def novelty(self, rows: Batch) -> Tensor:
        now, following = self._features(rows)
        return self._surprise(now, rows.action, following)

    def loss(self, rows: Batch) -> tuple[Tensor, Metrics]:
        now, following = self._features(rows)
        surprise = self._surprise(now.detach(), rows.action, following.detach()).mean()
        guess = self.inverse(torch.cat([now, following], dim=-1))
        inverse = action_loss(self.actions, guess, rows.action)
        share = self.cfg.forward_share
        metrics = {"novelty": surprise.detach(), "inverse_loss": inverse.detach()}
        return (1.0 - share) * inverse + share * surprise, metrics

    def _features(self, rows: Batch) -> tuple[Tensor, Tensor]:
        return self.features(self._normal(rows.obs)), self.features(self._normal(rows.next_obs))

    def _surprise(self, now: Tensor, action: Tree, following: Tensor) -> Tensor:
        guess = self.dynamics(torch.cat([now, self.actions(action)], dim=-1))
        return (guess - following).square().mean(-1)


def action_encoder(space: Space[Any]) -> Encoder:
    """From the policy's actions to one flat vector: one-hot where they are discrete, numbers where they are not."""
    return build_encoder(space, EncoderConfig(layout="flat"), where=WHERE)


def action_loss(encoder: Encoder, guess: Tensor, action: Tree) -> Tensor:
    """How far a guess `[N, encoder.out_dim]` is from the action; a 0-d tensor.

    The mean over atoms: of the cross-entropy where an atom is discrete, of the squared error where it is not.
    """
    losses, start = [], 0
    for keys, part in zip(encoder.keys, encoder.parts, strict=True):
        stop = start + int(part.out_dim)  # type: ignore[arg-type]
        losses += _leaf_losses(part, guess[..., start:stop], part(leaf_at(action, keys)))
        start = stop
    return torch.stack(losses).mean()


def _leaf_losses(part: nn.Module, guess: Tensor, true: Tensor) -> list[Tensor]:
    if isinstance(part, OneHot):
        counts = torch.bincount(part.owner).tolist()
        pairs = zip(guess.split(counts, -1), true.split(counts, -1), strict=True)
        return [F.cross_entropy(mine, theirs) for mine, theirs in pairs]
    if isinstance(part, Flat) and part.binary:
        return list(F.binary_cross_entropy_with_logits(guess, true, reduction="none").mean(0))
    return list((guess - true).square().mean(0))
