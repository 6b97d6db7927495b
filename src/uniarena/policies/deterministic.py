"""Deterministic policies of Box actions: tanh into the bounds. Exploration comes from outside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Tree
from uniarena.policies.action_scale import ActionScale
from uniarena.policies.distributions import Distribution
from uniarena.policies.heads import Head
from uniarena.policies.noise import Generator


class Deterministic(Distribution):
    """All mass on one action; gradients flow through it. There is no density and no entropy.

    Args:
        row: `[N, D]` before the squash.
        scale: the bounds.
    """

    def __init__(self, row: Tensor, scale: ActionScale) -> None:
        self.row, self.scale = row, scale

    def rsample(self, generator: Generator = None, noise: Any = None) -> Tree:
        return self.mode()

    def mode(self) -> Tree:
        return self.scale.inverse(self.row.tanh())

    def atom_log_prob(self, action: Tree) -> Tensor:
        raise TypeError("a deterministic policy gives no log-probs; use a stochastic one, such as sac's.")

    def entropy(self) -> Tensor:
        return torch.zeros(self.row.shape[:-1], device=self.row.device)

    def kl(self, other: Deterministic) -> Tensor:
        raise TypeError("deterministic policies have no KL divergence.")


class DeterministicHead(Head):
    """Box, or Dict and Tuple of Boxes, with finite bounds: action = middle + half · tanh(x). Silver et al. 2014.

    Args:
        scale: the bounds.
        param_dim: D, or 2·D of a module written for a Gaussian, whose log-stds are not used.
    """

    def __init__(self, scale: ActionScale, param_dim: int) -> None:
        super().__init__(param_dim)
        self.scale = scale

    def dist(self, params: Tensor, mask: Tensor | None = None) -> Deterministic:
        return Deterministic(params[..., : self.scale.dims], self.scale)

    def noise(self, steps: int, columns: int, generator: Generator) -> None:
        """Nothing is random."""
        return None
