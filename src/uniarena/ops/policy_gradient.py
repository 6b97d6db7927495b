"""Losses of the policy-gradient family, row by row: log-ratio, surrogate, value loss, KL estimate.

Shapes: `[N]` rows (or `[L, N]` sequences, or a trailing dimension of atoms); nothing here reduces.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Clip = Literal["none", "hard", "dual", "truncated"]

LOG_RATIO_BOUND = 11.51
"""ln 1e5: ratios from 1e-5 to 1e5 are far outside every trust region, and their squares far inside float32."""


def clamp_log_ratio(
    log_prob: Tensor, behaviour_log_prob: Tensor, bound: float = LOG_RATIO_BOUND
) -> tuple[Tensor, Tensor]:
    """log π(a|s) − log μ(a|s), clamped before anything exponentiates it.

    The log-probs of a 9,000-dimensional action differ by hundreds after one step of the optimiser; exp of
    that is inf.

    Returns:
        (log-ratio in [−bound, bound], which rows were clamped as bool).
    """
    raw = log_prob - behaviour_log_prob
    return raw.clamp(-bound, bound), raw.detach().abs() > bound


def surrogate(
    log_ratio: Tensor,
    advantage: Tensor,
    clip: Clip = "hard",
    clip_range: float | Tensor = 0.2,
    dual_clip: float = 3.0,
    rho_bar: float = 1.0,
) -> Tensor:
    """What the policy maximises, per row.

    none: ρ·A; at ρ = 1 its gradient is A·∇log π, the policy gradient theorem.
    hard: min(ρ·A, clip(ρ, 1 ± ε)·A). Schulman et al. 2017 (arXiv:1707.06347), eq. 7.
    dual: as hard, and never below c·A where A < 0, so that a huge ρ cannot dominate. Ye et al. 2020
    (arXiv:1912.09729), section "Dual-Clip PPO", c = `dual_clip`.
    truncated: min(ρ̄, ρ)·A, whose gradient is min(ρ̄, ρ)·A·∇log π also where ρ is beyond ρ̄ = `rho_bar`. Espeholt et al.
    2018 (arXiv:1802.01561), section 4.2.
    """
    ratio = log_ratio.exp()
    gain = ratio * advantage
    if clip == "none":
        return gain
    if clip == "truncated":
        weight = ratio.detach().clamp(max=rho_bar)
        return weight * advantage * (1.0 + log_ratio - log_ratio.detach())
    near = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)  # type: ignore[arg-type]
    gain = torch.minimum(gain, near * advantage)
    if clip == "dual":
        gain = torch.where(advantage < 0, torch.maximum(gain, dual_clip * advantage), gain)
    return gain


def value_loss(
    value: Tensor,
    target: Tensor,
    old_value: Tensor | None = None,
    clip_range: float | Tensor | None = None,
    kind: Literal["mse", "huber"] = "mse",
) -> Tensor:
    """(V − target)², or Huber with δ = 1, per row.

    With `clip_range` the larger of that and the loss of `old_value + clip(V − old_value, ±clip_range)`, as
    the authors' implementation of PPO does (Engstrom et al. 2020, arXiv:2005.12729, section 3).

    Raises:
        ValueError: `value` and `target` differ in shape (broadcasting [N, 1] with [N] would train on N²
        pairs).
    """
    if value.shape != target.shape:
        raise ValueError(
            f"value has shape {tuple(value.shape)}, its target {tuple(target.shape)}; they must be equal."
        )
    error = _value_error(value, target, kind)
    if clip_range is None:
        return error
    if old_value is None:
        raise ValueError("value clipping needs old_value, the values before the update.")
    clipped = old_value + (value - old_value).clamp(-clip_range, clip_range)  # type: ignore[arg-type]
    return torch.maximum(error, _value_error(clipped, target, kind))


def _value_error(value: Tensor, target: Tensor, kind: str) -> Tensor:
    if kind == "huber":
        return F.huber_loss(value, target, reduction="none")
    return (value - target).square()


def approx_kl(log_ratio: Tensor) -> Tensor:
    """KL(μ ‖ π) per row from actions of μ: (ρ − 1) − log ρ, unbiased, never negative, small variance.

    Schulman 2020, "Approximating KL divergence", estimator k3.
    """
    return log_ratio.expm1() - log_ratio


def clip_fraction(log_ratio: Tensor, clip_range: float | Tensor) -> Tensor:
    """1.0 where the ratio lies outside 1 ± clip_range, else 0.0."""
    return (log_ratio.expm1().abs() > clip_range).to(log_ratio.dtype)


def restless(losses: Sequence[float], kind: Literal["rising", "oscillating", "both"]) -> bool:
    """Whether the mean losses of successive epochs have begun to rise or to oscillate.

    rising: each of the last two is larger than the one before it. oscillating: the last three differences change their
    sign each time. both: either.
    """
    differences = [after - before for before, after in pairwise(losses)]
    rising = len(differences) >= 2 and min(differences[-2:]) > 0.0
    last = differences[-3:]
    swings = len(last) == 3 and last[0] * last[1] < 0.0 and last[1] * last[2] < 0.0
    return (rising and kind != "oscillating") or (swings and kind != "rising")
