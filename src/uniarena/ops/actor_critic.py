"""Off-policy actor-critic: targets and losses of ensembles of Q-functions.

Shapes: E members, N rows, M quantiles, A discrete actions.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from uniarena.ops.distributional import midpoints, quantile_huber
from uniarena.ops.td import td_loss

Reduction = Literal["min", "mean", "first"]


def reduce_members(q: Tensor, how: Reduction) -> Tensor:
    """`[E, …]` → `[…]`: one estimate from all members.

    The minimum counters over-estimation (Fujimoto et al. 2018, arXiv:1802.09477, eq. 10); the mean has the least
    variance (Chen et al. 2021, arXiv:2101.05982, in the policy's loss); the first alone is TD3's policy loss.
    """
    if how == "min":
        return q.min(0).values
    return q.mean(0) if how == "mean" else q[0]


def reduction_gradient(q: Tensor, how: Reduction) -> Tensor:
    """∂`reduce_members`/∂q of `[E, N]`; of equal least members the one that `min` chooses gets all."""
    if how == "mean":
        return torch.full_like(q, 1.0 / q.shape[0])
    chosen = q.argmin(0, keepdim=True) if how == "min" else q.new_zeros(1, *q.shape[1:], dtype=torch.int64)
    return torch.zeros_like(q).scatter_(0, chosen, 1.0)


def soft_value(q: Tensor, log_prob: Tensor, alpha: Tensor | float) -> Tensor:
    """V = E_π[Q − α log π], here of one action per row; any equal shapes.

    Haarnoja et al. 2018 (arXiv:1812.05905), eq. 3. With expectations over all actions in place of `q` and
    `log_prob` it is eq. 10 of Christodoulou 2019 (arXiv:1910.07207).
    """
    return q - alpha * log_prob


def expected_soft_terms(q: Tensor, log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Σ π(a) Q(a) and Σ π(a) log π(a), the negative entropy, both `[N]`; `q` and `log_p` are `[N, A]`.

    An impossible action (π = 0) counts nothing, whatever its Q. Christodoulou 2019 (arXiv:1910.07207), eq.
    10 and 12.
    """
    p = log_p.exp()
    return (p * q).sum(-1), (p * log_p).sum(-1)


def clip_target(target: Tensor, bounds: tuple[float, float] | None) -> Tensor:
    """Bootstrapped targets cut to what a return can be at all; None: as they are.

    Used for goal-reaching tasks by Andrychowicz et al. 2017 (arXiv:1707.01495), appendix A.
    """
    return target if bounds is None else target.clamp(*bounds)


def critic_loss(
    q: Tensor, target: Tensor, weight: Tensor | None = None, td_clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """Every member regressed on the same target.

    Args:
        q: `[E, N]`.
        target: `[N]`.
        weight: `[N]` importance weights; None: all 1.
        td_clip: errors beyond it count linearly (Huber), as in Mnih et al. 2015; None: squared throughout.

    Returns:
        Σ over members of the weighted mean of ½ error²; and `[N]`, the mean over members of |error|, which
        prioritised replay goes by.
    """
    size = (target - q.detach()).abs().mean(0)
    loss = td_loss(q, target.expand_as(q), td_clip)
    return (loss if weight is None else loss * weight).sum(0).mean(), size


def smoothing_noise(noise: Tensor, std: float, clip: float) -> Tensor:
    """clip(std · noise, −clip, clip): target policy smoothing. Fujimoto et al. 2018 (arXiv:1802.09477), eq.
    14; in units of half an action range.
    """
    return (std * noise).clamp(-clip, clip)


def truncated_mixture(quantiles: Tensor, drop: int) -> Tensor:
    """`[E, N, M]` → `[N, E·M − E·drop]`: the members' quantiles pooled and sorted, without the largest.

    Kuznetsov et al. 2020 (arXiv:2005.04269), algorithm 1: `drop` quantiles per member are left out.
    """
    members, rows, count = quantiles.shape
    pooled = quantiles.movedim(0, 1).reshape(rows, members * count)
    return pooled.sort(-1).values[:, : members * (count - drop)]


def quantile_critic_loss(
    quantiles: Tensor, target: Tensor, weight: Tensor | None = None, kappa: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Every member's quantiles regressed on the same samples of the target.

    Kuznetsov et al. 2020 (arXiv:2005.04269), algorithm 1: averaged over a member's quantiles, summed over members.

    Args:
        quantiles: `[E, N, M]`.
        target: `[N, K]` samples.
        weight: `[N]` importance weights; None: all 1.
        kappa: where the loss turns from squared to linear.

    Returns:
        the loss; and `[N]`, |difference of the means|, which prioritised replay goes by.
    """
    count = quantiles.shape[-1]
    fraction = midpoints(count).to(quantiles.device)
    loss = quantile_huber(quantiles, fraction, target, kappa) / count
    surprise = (target.mean(-1) - quantiles.detach().mean((0, 2))).abs()
    return (loss if weight is None else loss * weight).sum(0).mean(), surprise


def temperature_loss(log_alpha: Tensor, gap: Tensor) -> Tensor:
    """log α · gap, the gap being mean entropy − target: α grows while the policy is less random than wanted.

    Haarnoja et al. 2018 (arXiv:1812.05905), eq. 18, in log α, as in the authors' code. All 0-d.
    """
    return log_alpha * gap
