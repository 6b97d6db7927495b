"""Small statistics: masked means, standardising, explained variance, means over minibatches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

Metrics = dict[str, Tensor]
"""Name → detached 0-d tensor."""


def count_true(flags: Tensor) -> int:
    """How many are true."""
    return int(np.count_nonzero(flags.numpy())) if flags.is_cpu else int(flags.sum())


def masked_mean(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """Mean over the true entries of `valid` (None: all); 0 if none is. NaN in the others is harmless."""
    if valid is None:
        return x.mean()
    return torch.where(valid, x, 0.0).sum() / valid.sum().clamp(min=1)


def mean_and_std(x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation over the true entries of `valid`; float64 0-d tensors."""
    wide = x.double()
    mean = masked_mean(wide, valid)
    return mean, masked_mean((wide - mean).square(), valid).sqrt()


def standardize(x: Tensor, valid: Tensor | None = None, eps: float = 1e-8) -> Tensor:
    """(x − mean) / (std + eps), both over the true entries of `valid`; the others are scaled alike.

    With fewer than two entries there is nothing to compare with, and `x` is returned as it is: never NaN, and
    a single sample keeps its sign. The moments are float64, so equal entries become 0 rather than magnified
    rounding.
    """
    count = x.numel() if valid is None else valid.sum()
    mean, std = mean_and_std(x, valid)
    scaled = ((x.double() - mean) / (std + eps)).to(x.dtype)
    if isinstance(count, int):
        return scaled if count > 1 else x
    return torch.where(count > 1, scaled, x)


def explained_variance(prediction: Tensor, target: Tensor, valid: Tensor | None = None) -> Tensor:
    """1 − Var(target − prediction) / Var(target): 1 perfect, 0 no better than a constant, below 0 worse.

    NaN where the target does not vary.
    """
    _, residual = mean_and_std(target - prediction, valid)
    _, spread = mean_and_std(target, valid)
    return torch.where(spread > 0, 1.0 - (residual / spread).square(), torch.nan).to(target.dtype)


class RunningMean:
    """Mean of metrics over minibatches, kept as tensors and reduced once, so that nothing synchronises."""

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = {}

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        for name, value in metrics.items():
            self._values.setdefault(name, []).append(value)

    def result(self) -> Metrics:
        """The mean of each name over the calls that gave it."""
        return {name: torch.stack(values).mean() for name, values in self._values.items()}
