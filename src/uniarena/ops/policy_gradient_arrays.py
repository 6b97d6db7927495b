"""The losses of `ops.policy_gradient` with their derivatives, row by row on NumPy arrays.

On a minibatch of some hundred rows a NumPy call takes a third of a torch call, and there is no graph to walk back.
Formulas and sources are those of `ops.policy_gradient`; here stand the derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from uniarena.ops.policy_gradient import LOG_RATIO_BOUND

Array = np.ndarray
Clip = Literal["none", "hard", "dual"]


@dataclass(frozen=True)
class PolicyRows:
    """Of a minibatch `[N]`.

    Attributes:
        gradient: `[N]`, ∂(−mean surrogate + kl_coef · mean KL) / ∂ log-prob.
        loss: −mean surrogate.
        kl: mean estimate of the KL to the behaviour policy.
        clip_fraction, clamped_fraction: as `ops.policy_gradient` means them.
    """

    gradient: Array
    loss: float
    kl: float
    clip_fraction: float
    clamped_fraction: float


def policy_rows(
    log_prob: Array,
    behaviour: Array,
    advantage: Array,
    clip: Clip,
    clip_range: float,
    dual_clip: float,
    kl_coef: float = 0.0,
) -> PolicyRows:
    """The policy's part from log-probs `[N]` now and of the behaviour, and advantages `[N]`.

    With ρ = exp(log-ratio), ∂(ρ·A)/∂log-prob = ρ·A; where the clipped side is the smaller one it is constant, and so is
    the dual bound where that is the larger one, and a log-ratio beyond its bound. Of k3 it is ρ − 1.
    """
    count = len(log_prob)
    raw = log_prob - behaviour
    log_ratio = np.minimum(np.maximum(raw, -LOG_RATIO_BOUND), LOG_RATIO_BOUND)
    within = raw == log_ratio
    ratio = np.exp(log_ratio)
    gain = ratio * advantage
    chosen, slope = gain, gain
    if clip != "none":
        bounded = np.minimum(np.maximum(ratio, 1.0 - clip_range), 1.0 + clip_range)
        bounded *= advantage
        chosen = np.minimum(gain, bounded)
        slope = gain * (gain <= bounded)
    if clip == "dual":
        floor = dual_clip * advantage
        cut = (advantage < 0.0) & (floor > chosen)
        chosen, slope = np.where(cut, floor, chosen), np.where(cut, 0.0, slope)
    excess = np.expm1(log_ratio)
    if kl_coef:
        slope = slope - kl_coef * excess
    gradient = slope * (within / np.float32(-count))
    return PolicyRows(
        gradient,
        -_mean(chosen),
        _mean(excess - log_ratio),
        np.count_nonzero(np.abs(excess) > clip_range) / count,
        1.0 - np.count_nonzero(within) / count,
    )


def value_rows(
    value: Array,
    target: Array,
    old_value: Array | None = None,
    clip_range: float | None = None,
    kind: Literal["mse", "huber"] = "mse",
) -> tuple[float, Array]:
    """The mean loss of values `[N]`, and its gradient `[N]`.

    Where the loss of the clipped value is the larger one, the gradient is its own, and 0 beyond the clip range.

    Raises:
        ValueError: `clip_range` without `old_value`.
    """
    error = value - target
    loss, slope = _error(error, kind)
    if clip_range is not None:
        if old_value is None:
            raise ValueError("value clipping needs old_value, the values before the update.")
        step = value - old_value
        held = np.minimum(np.maximum(step, -clip_range), clip_range)
        other_loss, other_slope = _error(old_value + held - target, kind)
        own = loss >= other_loss
        slope = np.where(own, slope, other_slope * (step == held))
        loss = np.maximum(loss, other_loss)
    return _mean(loss), slope * (1.0 / len(value))


def _error(error: Array, kind: str) -> tuple[Array, Array]:
    """Loss of each row and its derivative."""
    if kind == "huber":
        size = np.abs(error)
        return np.where(size < 1.0, 0.5 * error * error, size - 0.5), np.minimum(np.maximum(error, -1.0), 1.0)
    return error * error, 2.0 * error


def _mean(x: Array) -> float:
    return float(np.add.reduce(x)) / len(x)
