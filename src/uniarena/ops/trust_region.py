"""The natural step within a trust region: conjugate gradients, its length, and the search along it.

Schulman et al. 2015 (arXiv:1502.05477), appendix C.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], b: Tensor, steps: int, tolerance: float = 1e-10
) -> Tensor:
    """x with A·x ≈ b, both `[P]`, for a positive definite A given by its product with a vector.

    Hestenes & Stiefel 1952. Exact after P steps but for rounding; stops where the squared residual is below
    `tolerance` × that at the start.
    """
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    size = residual.dot(residual)
    least = tolerance * size
    for _ in range(steps):
        if float(size) <= float(least):
            break
        along = product(direction)
        alpha = size / direction.dot(along)
        x = x + alpha * direction
        residual = residual - alpha * along
        size, before = residual.dot(residual), size
        direction = residual + (size / before) * direction
    return x


def trust_region_step(direction: Tensor, curved: Tensor, max_kl: float) -> Tensor:
    """The direction `[P]`, as long as the KL, to second order ½ xᵀFx, allows: √(2δ / xᵀFx) · x.

    Args:
        curved: F·direction, `[P]`.
    """
    curvature = direction.dot(curved)
    if float(curvature) <= 0.0:
        return torch.zeros_like(direction)
    return direction * torch.sqrt(2.0 * max_kl / curvature)


def backtrack(try_step: Callable[[float], bool], steps: int, shrink: float = 0.8) -> float:
    """The first of 1, `shrink`, `shrink`², … for which `try_step` is true; 0 where none of `steps` is."""
    share = 1.0
    for _ in range(steps):
        if try_step(share):
            return share
        share *= shrink
    return 0.0
