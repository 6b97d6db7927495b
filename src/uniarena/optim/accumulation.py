"""Gradients of a batch in parts, so that a large one fits into little memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Batch
from uniarena.ops.statistics import Metrics


def cut(batch: Any, count: int) -> list[tuple[Any, float]]:
    """A batch as consecutive parts, each with its share of the valid rows; shares sum to 1.

    Rows `[N, …]` and time-major sequences `[L, N, …]` are cut along N. What is no `Batch`, or has fewer than `count`
    rows, stays whole.
    """
    if count == 1 or not isinstance(batch, Batch) or batch.shape[-1] < count:
        return [(batch, 1.0)]
    rows = batch.shape[-1]
    bounds = [rows * k // count for k in range(count + 1)]
    before = (slice(None),) * (len(batch.shape) - 1)
    parts = [batch[(*before, slice(a, b))] for a, b in pairwise(bounds)]
    flagged = "valid" in batch
    weights = [int(part.valid.sum()) if flagged else part.shape[-1] for part in parts]
    total = sum(weights)
    if total == 0:
        return [(batch, 1.0)]
    return [(part, weight / total) for part, weight in zip(parts, weights, strict=True) if weight]


def joined(parts: Sequence[Metrics], shares: Sequence[float]) -> Metrics:
    """Metrics of the whole: numbers are averaged by share, figures of each row `[N]` are put in a row."""
    whole = {}
    for name in parts[0]:
        found: list[Tensor] = [part[name] for part in parts]
        if found[0].ndim:
            whole[name] = torch.cat(found)
        else:
            whole[name] = torch.stack([x * share for x, share in zip(found, shares, strict=True)]).sum()
    return whole
