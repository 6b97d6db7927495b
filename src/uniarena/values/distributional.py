"""What the numbers of one action say about its return: the expectation, a categorical distribution, quantiles.

A return head turns a network's K numbers per action into Q, makes the target of a bootstrapped return, and
measures the distance to it. Learners hold one and need not know which.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from uniarena.config import ConfigError
from uniarena.ops.actor_critic import clip_target
from uniarena.ops.distributional import cross_entropy, entropy, midpoints, project, quantile_huber
from uniarena.ops.td import td_loss, td_target

Bounds = tuple[float, float] | None


class Fit(NamedTuple):
    """Loss `[N]`, and `[N]` how surprising each row is, which prioritised replay goes by (no gradient)."""

    loss: Tensor
    surprise: Tensor


class ReturnHead(nn.Module, ABC):
    """Meaning of K numbers per action.

    Attributes:
        width: numbers per action that the last layer gives.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    @abstractmethod
    def q(self, out: Tensor) -> Tensor:
        """Expected return of outputs `[..., K]` → `[...]`."""

    @abstractmethod
    def target(self, following: Tensor, reward: Tensor, discount: Tensor, bounds: Bounds = None) -> Tensor:
        """What r + d·(return of the outputs `following [N, K]`) is as a target `[N, M]`.

        Args:
            reward, discount: `[N]`.
            bounds: what the return can be at all; everything beyond is cut to them.
        """

    @abstractmethod
    def expected(self, target: Tensor) -> Tensor:
        """Expected return of targets `[N, M]` → `[N]`."""

    @abstractmethod
    def fit(self, out: Tensor, target: Tensor, td_clip: float | None, fractions: Tensor | None = None) -> Fit:
        """How far outputs `[N, K]` are from targets `[N, M]`.

        Args:
            td_clip: errors beyond it count linearly.
            fractions: where drawn quantiles stand, `[N, K]`.
        """

    def draw(self, rows: int, generator: torch.Generator | None) -> Tensor | None:
        """Fractions `[N, K]` at which the network is to be asked; None: it is asked for fixed ones."""
        return None


class Expectation(ReturnHead):
    """One number: Q itself. Mnih et al. 2015 (Nature 518:529). Surprise is |TD error|."""

    def __init__(self) -> None:
        super().__init__(1)

    def q(self, out: Tensor) -> Tensor:
        return out.squeeze(-1)

    def target(self, following: Tensor, reward: Tensor, discount: Tensor, bounds: Bounds = None) -> Tensor:
        return clip_target(td_target(reward.unsqueeze(1), discount.unsqueeze(1), following), bounds)

    def expected(self, target: Tensor) -> Tensor:
        return target.squeeze(-1)

    def fit(self, out: Tensor, target: Tensor, td_clip: float | None, fractions: Tensor | None = None) -> Fit:
        surprise = (target - out.detach()).abs_().squeeze(-1)
        return Fit(td_loss(out, target, td_clip).squeeze(-1), surprise)


class CategoricalReturn(ReturnHead):
    """C51: logits of K atoms at fixed places. Bellemare et al. 2017 (arXiv:1707.06887), algorithm 1.

    Targets are probabilities. Surprise is the KL divergence from the target, as in Hessel et al. 2018
    (arXiv:1710.02298), section "The integrated agent".

    Args:
        low, high: first and last atom; returns beyond cannot be told from them.
        atoms: K.

    Raises:
        ConfigError: fewer than two atoms, or low not below high.
    """

    support: Tensor

    def __init__(self, low: float, high: float, atoms: int = 51) -> None:
        super().__init__(atoms)
        if atoms < 2 or not low < high:
            raise ConfigError(
                f"{atoms} atoms from {low:g} to {high:g}; expected at least 2, and v_min below v_max.",
                path="learner.v_min",
                hint="set learner.v_min and learner.v_max to bounds of the discounted return.",
            )
        self.register_buffer("support", torch.linspace(low, high, atoms), persistent=False)

    def q(self, out: Tensor) -> Tensor:
        return out.softmax(-1) @ self.support

    def target(self, following: Tensor, reward: Tensor, discount: Tensor, bounds: Bounds = None) -> Tensor:
        atoms = clip_target(td_target(reward[:, None], discount[:, None], self.support), bounds)
        return project(atoms, following.softmax(-1), self.support)

    def expected(self, target: Tensor) -> Tensor:
        return target @ self.support

    def fit(self, out: Tensor, target: Tensor, td_clip: float | None, fractions: Tensor | None = None) -> Fit:
        """`td_clip` has no meaning here."""
        loss = cross_entropy(out, target)
        return Fit(loss, (loss.detach() - entropy(target)).clamp_(min=0.0))


class Quantiles(ReturnHead):
    """Evenly weighted quantiles of the return: fixed ones (QR-DQN) or drawn ones (IQN).

    Dabney et al. 2018 (arXiv:1710.10044 and 1806.06923). `td_clip` is the κ of the quantile Huber loss; without it,
    the loss is not smoothed. Surprise is |difference of the means|. Of drawn quantiles the paper also acts on drawn
    ones; here Q is the mean over fixed midpoints, so that it has no noise.

    Args:
        count: K quantiles at the fractions (2k + 1)/2K: those of the network, or those that Q is the mean of.
        drawn: fractions drawn per row for predictions and targets; None: the network gives `count` fixed ones.
    """

    fractions: Tensor

    def __init__(self, count: int, drawn: int | None = None) -> None:
        super().__init__(count if drawn is None else 1)
        self.drawn = drawn
        self.register_buffer("fractions", midpoints(count), persistent=False)

    def q(self, out: Tensor) -> Tensor:
        return out.mean(-1)

    def target(self, following: Tensor, reward: Tensor, discount: Tensor, bounds: Bounds = None) -> Tensor:
        return clip_target(td_target(reward.unsqueeze(1), discount.unsqueeze(1), following), bounds)

    def expected(self, target: Tensor) -> Tensor:
        return target.mean(-1)

    def fit(self, out: Tensor, target: Tensor, td_clip: float | None, fractions: Tensor | None = None) -> Fit:
        at = self.fractions if fractions is None else fractions
        surprise = (target.mean(-1) - out.detach().mean(-1)).abs_()
        return Fit(quantile_huber(out, at, target, td_clip or 0.0), surprise)

    def draw(self, rows: int, generator: torch.Generator | None) -> Tensor | None:
        if self.drawn is None:
            return None
        device = torch.device("cpu") if generator is None else generator.device
        uniform = torch.rand(rows, self.drawn, generator=generator, device=device)
        return uniform.to(self.fractions.device)


class CosineEmbedding(nn.Module):
    """φ(τ) = ReLU(W [cos(π i τ)]ᵢ₌₀…ₙ₋₁ + b): fractions `[..., K]` → `[..., K, width]`.

    Dabney et al. 2018 (arXiv:1806.06923), eq. 4.
    """

    frequency: Tensor

    def __init__(self, cosines: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(cosines, width)
        self.register_buffer("frequency", math.pi * torch.arange(cosines), persistent=False)

    def forward(self, fractions: Tensor) -> Tensor:
        features: Tensor = self.linear((fractions.unsqueeze(-1) * self.frequency).cos())
        return features.relu()
