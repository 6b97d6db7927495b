"""Distributions of returns: the categorical projection, quantile regression, and their expectations.

Shapes: N rows, K atoms or quantiles, M samples of a target.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def project(atoms: Tensor, probs: Tensor, support: Tensor) -> Tensor:
    """Probabilities on `support` of a distribution that lies elsewhere; the mean stays where it fits.

    Each atom's mass goes to its two neighbours in the support, in proportion to closeness; what lies outside
    goes to the ends. Bellemare et al. 2017 (arXiv:1707.06887), eq. 7. Written without scattered additions, so
    that it repeats bit for bit on every device.

    Args:
        atoms: `[N, M]` places, such as r + γ z.
        probs: `[N, M]` their probabilities.
        support: `[K]` evenly spaced, ascending, K ≥ 2.

    Returns:
        `[N, K]`.
    """
    step = (support[-1] - support[0]) / (len(support) - 1)
    inside = atoms.clamp(support[0], support[-1])
    closeness = 1.0 - (inside.unsqueeze(-2) - support.unsqueeze(-1)).abs() / step  # [N, K, M]
    return (closeness.clamp_(min=0.0) @ probs.unsqueeze(-1)).squeeze(-1)


def cross_entropy(logits: Tensor, probs: Tensor) -> Tensor:
    """−Σ p log softmax(logits), `[..., K]` → `[...]`: the KL divergence up to a constant.

    Bellemare et al. 2017 (arXiv:1707.06887), algorithm 1.
    """
    return -(probs * F.log_softmax(logits, dim=-1)).sum(-1)


def entropy(probs: Tensor) -> Tensor:
    """−Σ p log p, `[..., K]` → `[...]`; 0 log 0 is 0."""
    return -torch.xlogy(probs, probs).sum(-1)


def midpoints(count: int) -> Tensor:
    """The fractions (2k + 1) / 2K of K evenly weighted quantiles, `[K]`. Dabney et al. 2018 (arXiv:1710.10044),
    lemma 2.
    """
    return (torch.arange(count, dtype=torch.float32) + 0.5) / count


def quantile_huber(prediction: Tensor, fraction: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile regression loss of each row: summed over predicted quantiles, averaged over target samples.

    |τ − 1{u < 0}| · L_κ(u) / κ of the errors u = target − prediction: Dabney et al. 2018 (arXiv:1806.06923), eq. 3
    and 4; with `fraction = midpoints(K)` also Dabney et al. 2018 (arXiv:1710.10044), eq. 10. κ = 0 is the quantile
    loss itself, |τ − 1{u < 0}| · |u|.

    Args:
        prediction: `[N, K]`.
        fraction: τ, `[K]` or `[N, K]`.
        target: `[N, M]`.
        kappa: where the loss turns from squared to linear.

    Returns:
        `[N]`.
    """
    ours, theirs = torch.broadcast_tensors(prediction.unsqueeze(-1), target.unsqueeze(-2))  # [N, K, M]
    over = fraction.unsqueeze(-1)
    lean = torch.where(theirs < ours, 1.0 - over, over)
    size = F.smooth_l1_loss(ours, theirs, reduction="none", beta=kappa)  # L_κ / κ in one pass
    return (lean * size).mean(-1).sum(-1)
