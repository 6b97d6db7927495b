"""Gaussian policies for cloning: means inside of the bounds, densities that do not blow up at them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from uniarena.batch import Tree
from uniarena.policies.action_scale import ActionScale
from uniarena.policies.continuous import DiagGaussian
from uniarena.policies.distributions import Distribution
from uniarena.policies.heads import Head, device_of
from uniarena.policies.noise import Generator, normal

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
"""Bounds of the log-std: Kostrikov et al. 2021 (arXiv:2110.06169), the authors' code."""


class ScaledGaussian(Distribution):
    """A Gaussian of the scaled action; what lies beyond the bounds the environment's side clips.

    A squashed Gaussian gives an action on a bound an infinite density, and data is full of such actions.

    Args:
        mean, log_std: of scaled actions, `[N, D]` and what broadcasts to it.
        scale: the bounds.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, scale: ActionScale) -> None:
        self.row, self.scale = DiagGaussian(mean, log_std, (mean.shape[-1],)), scale

    def rsample(self, generator: Generator = None, noise: Any = None) -> Tree:
        """An action tree of `[N, …]`; `noise [N, D]` is standard normal."""
        return self.scale.inverse(self.row.raw(generator, noise))

    def mode(self) -> Tree:
        return self.scale.inverse(self.row.mean)

    def atom_log_prob(self, action: Tree) -> Tensor:
        return self.row.raw_log_prob(self.scale(action)) - self.scale.half_width.log()

    def entropy(self) -> Tensor:
        return self.row.entropy() + self.scale.log_half

    def kl(self, other: ScaledGaussian) -> Tensor:
        return self.row.kl(other.row)


class ScaledGaussianHead(Head):
    """Box, or Dict and Tuple of Boxes: the mean is tanh of the parameters where there are bounds; the log-std of each
    dimension is learned and does not depend on the observation.

    Kostrikov et al. 2021 (arXiv:2110.06169), the policy of the authors' code.

    Args:
        scale: the bounds.
        log_std_init: initial log-std, of scaled actions.
    """

    def __init__(self, scale: ActionScale, log_std_init: float = 0.0) -> None:
        super().__init__(scale.dims)
        self.scale = scale
        self.log_std = nn.Parameter(torch.full((scale.dims,), float(log_std_init)))

    def dist(self, params: Tensor, mask: Tensor | None = None) -> ScaledGaussian:
        mean = params.tanh()
        if self.scale.unbounded:
            mean = torch.where(self.scale.limit.isfinite(), mean, params)
        return ScaledGaussian(mean, self.log_std.clamp(LOG_STD_MIN, LOG_STD_MAX), self.scale)

    def noise(self, steps: int, columns: int, generator: Generator) -> Tensor:
        return normal((steps, columns, self.scale.dims), generator, device_of(generator))
