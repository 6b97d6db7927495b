"""Distributions of Box actions: Gaussian, squashed Gaussian, Beta. Shapes as in `distributions`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from uniarena.policies.distributions import Distribution, flatten, unflatten
from uniarena.policies.noise import Generator, normal

LOG_2PI = math.log(2.0 * math.pi)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_NODES_T = torch.tensor(_NODES, dtype=torch.float32)
_WEIGHTS_T = torch.tensor(_WEIGHTS / math.sqrt(2.0 * math.pi), dtype=torch.float32)


class DiagGaussian(Distribution):
    """A Gaussian with diagonal covariance, unbounded: the environment's side clips.

    Args:
        mean: `[..., D]`.
        log_std: broadcasts to `[..., D]`.
        event: shape of an action, D numbers.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, event: tuple[int, ...]) -> None:
        self.mean = mean
        self.log_std = log_std
        self.std = log_std.exp()
        self.event = event

    def rsample(self, generator: Generator = None, noise: Any = None) -> Tensor:
        """`[..., *event]`; `noise [..., D]` is standard normal."""
        return unflatten(self.raw(generator, noise), self.event)

    def raw(self, generator: Generator, noise: Any) -> Tensor:
        """`[..., D]`: mean + std · noise."""
        if noise is None:
            noise = normal(self.mean.shape, generator, self.mean.device)
        return torch.addcmul(self.mean, noise, self.std)

    def mode(self) -> Tensor:
        return unflatten(self.mean, self.event)

    def atom_log_prob(self, action: Tensor) -> Tensor:
        return self.raw_log_prob(flatten(action, self.event))

    def raw_log_prob(self, x: Tensor) -> Tensor:
        """`[..., D]` log-densities of `x [..., D]`."""
        return -0.5 * ((x - self.mean) / self.std).square() - self.log_std - 0.5 * LOG_2PI

    def entropy(self) -> Tensor:
        return (0.5 + 0.5 * LOG_2PI + self.log_std).expand_as(self.mean).sum(-1)

    def kl(self, other: DiagGaussian) -> Tensor:
        ratio = (self.std / other.std).square()
        gap = ((self.mean - other.mean) / other.std).square()
        return (0.5 * (ratio + gap - 1.0) + other.log_std - self.log_std).sum(-1)


class SquashedGaussian(Distribution):
    """A Gaussian u through middle + half · tanh(u), so that every action lies inside of its bounds.

    Haarnoja et al. 2018 (arXiv:1812.05905), appendix C. The log-determinant log(1 − tanh²u) is computed as
    2·(log 2 − u − softplus(−2u)), exact where tanh saturates (as in TensorFlow Probability's `Tanh`
    bijector).

    Args:
        mean, log_std: `[..., D]` of u.
        middle, half: `[D]`, centre and half width of the bounds.
        event: shape of an action, D numbers.
    """

    def __init__(
        self, mean: Tensor, log_std: Tensor, middle: Tensor, half: Tensor, event: tuple[int, ...]
    ) -> None:
        self.base = DiagGaussian(mean, log_std, (mean.shape[-1],))
        self.middle, self.half, self.event = middle, half, event

    def rsample(self, generator: Generator = None, noise: Any = None) -> Tensor:
        """`[..., *event]`; `noise [..., D]` is standard normal."""
        return self._squash(self.base.raw(generator, noise))

    def sample_with_log_prob(self, generator: Generator = None, noise: Any = None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            u = self.base.raw(generator, noise)
        return self._squash(u), self._log_density(u).sum(-1)

    def rsample_with_log_prob(self, generator: Generator = None, noise: Any = None) -> tuple[Tensor, Tensor]:
        """The density from the noise itself, not from (u − mean)/std: fewer operations, and less rounding."""
        mean, log_std = self.base.mean, self.base.log_std
        if noise is None:
            noise = normal(mean.shape, generator, mean.device)
        u = self.base.raw(generator, noise)
        log_det = (u + F.softplus(-2.0 * u)).mul_(
            2.0
        )  # of tanh, with the other sign and without the constant
        constant = self.half.log().sum() + self.half.shape[0] * (0.5 * LOG_2PI + 2.0 * math.log(2.0))
        log_prob = torch.add(log_det, noise.square(), alpha=-0.5).sub_(log_std).sum(-1)
        return self._squash(u), log_prob - constant

    def mode(self) -> Tensor:
        return self._squash(self.base.mean)

    def atom_log_prob(self, action: Tensor) -> Tensor:
        """Actions on a bound are read as just inside of it: |u| ≤ 8.3 in float32."""
        edge = 1.0 - torch.finfo(self.half.dtype).eps
        y = ((flatten(action, self.event) - self.middle) / self.half).clamp(-edge, edge)
        return self._log_density(torch.atanh(y))

    def entropy(self) -> Tensor:
        """The Gaussian's entropy plus the expected log-determinant, by 32-point Gauss–Hermite quadrature."""
        nodes, weights = _NODES_T.to(self.half.device), _WEIGHTS_T.to(self.half.device)
        u = self.base.mean.unsqueeze(-1) + self.base.std.unsqueeze(-1) * nodes
        expected = (_log_det(u) * weights).sum(-1) + self.half.log()
        return self.base.entropy() + expected.sum(-1)

    def kl(self, other: SquashedGaussian) -> Tensor:
        """Of the Gaussians: squashing both alike changes nothing."""
        return self.base.kl(other.base)

    def _squash(self, u: Tensor) -> Tensor:
        return unflatten(torch.addcmul(self.middle, self.half, u.tanh()), self.event)

    def _log_density(self, u: Tensor) -> Tensor:
        return self.base.raw_log_prob(u) - _log_det(u) - self.half.log()


class Beta(Distribution):
    """D independent Beta distributions stretched to bounds. Chou et al. 2017 (PMLR 70:834).

    Args:
        alpha, beta: `[..., D]`, above 1, so that each has one peak.
        low, width: `[D]`, lower bounds and high − low.
        event: shape of an action, D numbers.
    """

    def __init__(
        self, alpha: Tensor, beta: Tensor, low: Tensor, width: Tensor, event: tuple[int, ...]
    ) -> None:
        self.alpha, self.beta, self.low, self.width, self.event = alpha, beta, low, width, event

    def rsample(self, generator: Generator = None, noise: Any = None) -> Tensor:
        """`[..., *event]`; there is no noise of fixed size: the gamma variates are drawn by rejection."""
        a = torch._standard_gamma(self.alpha, generator)
        b = torch._standard_gamma(self.beta, generator)
        return self._stretch(_inside(a / (a + b)))

    def mode(self) -> Tensor:
        # the shares of the two exponents; equal where both have shrunk to nothing
        tiny = torch.finfo(self.alpha.dtype).tiny
        a, b = (self.alpha - 1.0).clamp(min=tiny), (self.beta - 1.0).clamp(min=tiny)
        return self._stretch(a / (a + b))

    def atom_log_prob(self, action: Tensor) -> Tensor:
        x = _inside((flatten(action, self.event) - self.low) / self.width)
        log_density = (self.alpha - 1.0) * x.log() + (self.beta - 1.0) * torch.log1p(-x)
        return log_density - _log_beta(self.alpha, self.beta) - self.width.log()

    def entropy(self) -> Tensor:
        a, b, total = self.alpha, self.beta, self.alpha + self.beta
        bits = (
            _log_beta(a, b)
            - (a - 1.0) * a.digamma()
            - (b - 1.0) * b.digamma()
            + (total - 2.0) * total.digamma()
        )
        return (bits + self.width.log()).sum(-1)

    def kl(self, other: Beta) -> Tensor:
        a, b, total = self.alpha, self.beta, self.alpha + self.beta
        gap_a, gap_b = a - other.alpha, b - other.beta
        terms = gap_a * a.digamma() + gap_b * b.digamma() - (gap_a + gap_b) * total.digamma()
        return (_log_beta(other.alpha, other.beta) - _log_beta(a, b) + terms).sum(-1)

    def _stretch(self, x: Tensor) -> Tensor:
        return unflatten(torch.addcmul(self.low, self.width, x), self.event)


def _log_det(u: Tensor) -> Tensor:
    """log(1 − tanh²u), stable."""
    return 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))


def _inside(x: Tensor) -> Tensor:
    eps = torch.finfo(x.dtype).eps
    return x.clamp(eps, 1.0 - eps)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return a.lgamma() + b.lgamma() - (a + b).lgamma()
