"""Learning from data alone: what keeps values and policies near the actions that the data has.

Shapes: N rows, E critics, S sampled actions, A discrete actions, D action dimensions, Z latent dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """|τ − 1(u < 0)|·u² of errors u = target − prediction, any shape: its minimum is the τ-expectile of the targets.

    Kostrikov et al. 2021 (arXiv:2110.06169), eq. 5 and 6. τ = 0.5 is half the squared error.
    """
    return torch.where(error < 0.0, 1.0 - expectile, expectile) * error.square()


def advantage_weight(advantage: Tensor, scale: float, largest: float) -> Tensor:
    """min(exp(scale·A), largest), any shape: the weights of advantage-weighted cloning.

    Kostrikov et al. 2021 (arXiv:2110.06169), eq. 7, with scale β; Nair et al. 2020 (arXiv:2006.09359), eq. 13, with
    scale 1/λ. The bound is that of the first authors' code. The exponent is cut, so that nothing overflows.
    """
    return (scale * advantage).clamp(max=math.log(largest)).exp()


def q_scale(q: Tensor, alpha: float) -> Tensor:
    """α / mean|Q|, 0-d and without gradient: what makes a policy's loss independent of the reward's units.

    Fujimoto & Gu 2021 (arXiv:2106.06860), eq. 5.
    """
    return alpha / q.detach().abs().mean().clamp(min=1e-8)


def action_distance(action: Tensor, other: Tensor) -> Tensor:
    """`[N, D]` scaled actions → `[N]`: the mean over dimensions of (a − b)².

    The penalty of Fujimoto & Gu 2021 (arXiv:2106.06860), eq. 3, as in the authors' code. Tarasov et al. 2023
    (arXiv:2305.09836), eq. 3 and 4, sum over dimensions: D times this.
    """
    return (action - other).square().mean(-1)


def log_integral(q: Tensor, log_density: Tensor) -> Tensor:
    """log ∫ exp Q(s, a) da, estimated from S sampled actions: log mean exp(Q − log density), over the last dimension.

    Kumar et al. 2020 (arXiv:2006.04779), appendix F: importance sampling, half of the samples uniform, half from the
    policy.

    Args:
        q: `[E, N, S]`.
        log_density: `[N, S]`, of what each action was drawn from.

    Returns:
        `[E, N]`.
    """
    return (q - log_density).logsumexp(-1) - math.log(q.shape[-1])


def log_sum(q: Tensor, mask: Tensor | None = None) -> Tensor:
    """log Σₐ exp Q(s, a) over the actions that `mask [..., A]` allows, `[..., A]` → `[...]`.

    Kumar et al. 2020 (arXiv:2006.04779), eq. 4. A row of the mask without a true entry allows all.
    """
    if mask is not None:
        legal = mask.bool()
        q = q.masked_fill(~(legal | ~legal.any(-1, keepdim=True)), -torch.inf)
    return q.logsumexp(-1)


def likely(log_p: Tensor, threshold: float) -> Tensor:
    """`[N, A]` bool: G(a|s) / max G > threshold, of log-probs `[N, A]`.

    Fujimoto et al. 2019 (arXiv:1910.01708), eq. 8. The likeliest action always is.
    """
    return (
        log_p - log_p.amax(-1, keepdim=True) > math.log(threshold) if threshold > 0.0 else log_p > -torch.inf
    )


def soft_minimum(q: Tensor, share: float) -> Tensor:
    """λ·min + (1 − λ)·max over the members `[E, …]` → `[…]`: Fujimoto et al. 2018 (arXiv:1812.02900), eq. 13."""
    return share * q.amin(0) + (1.0 - share) * q.amax(0)


def latent_divergence(mean: Tensor, log_std: Tensor) -> Tensor:
    """KL(N(μ, σ) ‖ N(0, 1)) in nats, `[N, Z]` → `[N]`: Kingma & Welling 2013 (arXiv:1312.6114), appendix B."""
    return 0.5 * (mean.square() + (2.0 * log_std).exp() - 1.0 - 2.0 * log_std).sum(-1)


def large_margin_loss(q: Tensor, action: Tensor, margin: float, mask: Tensor | None = None) -> Tensor:
    """max_a [Q(s, a) + margin·1(a ≠ a_E)] − Q(s, a_E) of the demonstrated action a_E, `[N, A]` and `[N]` → `[N]`.

    Hester et al. 2018 (arXiv:1704.03732), the supervised loss J_E, with a margin of 0.8: 0 once every other action is
    worth that much less. Actions that `mask [N, A]` forbids do not count, unless they were demonstrated.
    """
    place = action.long().unsqueeze(-1)
    above = (q + margin).scatter(-1, place, q.gather(-1, place))
    if mask is not None:
        legal = mask.bool()
        legal = (legal | ~legal.any(-1, keepdim=True)).scatter(-1, place, True)
        above = above.masked_fill(~legal, -torch.inf)
    return above.amax(-1) - q.gather(-1, place).squeeze(-1)


def held_out(key: Tensor, share: float) -> Tensor:
    """Which rows are kept for validation: the same answer for the same key at any time, of about `share` of the keys.

    The golden ratio's multiples spread as evenly as any (Knuth, The Art of Computer Programming 3, section 6.4): of any
    run of keys about `share` are held out, and the first key never is, so that a single episode is learned from.

    Args:
        key: `[N]` int64, not negative; rows with the same key are held out together.

    Returns:
        `[N]` bool.
    """
    return key * 0x9E3779B9 % 2**32 >= round((1.0 - share) * 2**32)
