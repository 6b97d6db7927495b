"""Temporal-difference targets and errors, and the greedy choice that value-based targets are made with.

Shapes: N rows, A actions, K numbers that describe one action's return.
"""

from __future__ import annotations

import torch
from torch import Tensor

_huber_loss = torch.ops.aten.huber_loss.default


def td_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """r + d·V(s'), any equal shapes; `discount` is γⁿ, and 0 where the row terminated.

    Sutton & Barto 2018, eq. 6.2.
    """
    return reward + discount * next_value


def n_step_sums(reward: Tensor, discount: Tensor, real: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """At most n rewards summed along sequences: fewer where a sequence ends.

    Sutton & Barto 2018, eq. 7.1, on rows of one episode.

    Args:
        reward, discount: `[T, N]` of single rows.
        real: `[T, N]` bool; what follows the last real row of a column is padding.

    Returns:
        `[T, N]` each: the sum, the product of the discounts, and the last row that was summed.
    """
    single = torch.arange(len(reward), device=reward.device)[:, None].expand(reward.shape)
    on = torch.cat([real[1:], torch.zeros_like(real[:1])])
    total, product, last = reward, discount, single
    for _ in range(min(n, len(reward)) - 1):
        total = torch.where(on, reward + discount * torch.roll(total, -1, 0), reward)
        product = torch.where(on, discount * torch.roll(product, -1, 0), discount)
        last = torch.where(on, torch.roll(last, -1, 0), single)
    return total, product, last


def td_loss(prediction: Tensor, target: Tensor, td_clip: float | None = None) -> Tensor:
    """½·error², whose gradient is the error, any equal shapes.

    Args:
        td_clip: errors beyond it count linearly (Huber), so that the gradient is the error clipped to
            ±td_clip: Mnih et al. 2015 (Nature 518:529), methods. None: squared throughout.
    """
    if td_clip is None:
        return 0.5 * (target - prediction).square()
    # the operator itself: on small batches the checks of `F.huber_loss` take longer
    loss: Tensor = _huber_loss(prediction, target, 0, td_clip)
    return loss


def td_gradient(prediction: Tensor, target: Tensor, td_clip: float | None = None) -> Tensor:
    """∂`td_loss`/∂prediction: the error, cut to ±td_clip; any equal shapes."""
    error = prediction - target
    return error if td_clip is None else error.clamp_(-td_clip, td_clip)


def greedy_action(q: Tensor, mask: Tensor | None = None) -> Tensor:
    """argmax over actions, `[..., A]` → `[...]` int64, among those that `mask [..., A]` allows.

    A row of the mask without a true entry allows all.
    """
    if mask is not None:
        legal = mask.bool()
        q = q.masked_fill(~(legal | ~legal.any(-1, keepdim=True)), -torch.inf)
    return q.argmax(-1)


def of_action(values: Tensor, action: Tensor) -> Tensor:
    """`values [N, A, K]` of the action `[N]` taken: `[N, K]`.

    With values of the target network and actions that are greedy for the online network it is the double
    Q-learning target of van Hasselt et al. 2016 (arXiv:1509.06461), eq. 4.
    """
    index = action.long().reshape(-1, 1, 1).expand(-1, 1, values.shape[-1])
    return values.gather(1, index).squeeze(1)


def dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """Q = V + A − mean over actions of A: `value [..., K]`, `advantage [..., A, K]` → `[..., A, K]`.

    Wang et al. 2016 (arXiv:1511.06581), eq. 9. Of return distributions K logits or quantiles are combined
    number by number, as in Hessel et al. 2018 (arXiv:1710.02298), section "The integrated agent".
    """
    return value.unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)
