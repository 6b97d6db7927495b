"""Temporal-difference targets."""

from __future__ import annotations

from torch import Tensor


def td_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """r + d·V(s'), any equal shapes; `discount` is γⁿ, and 0 where the row terminated.

    Sutton & Barto 2018, eq. 6.2.
    """
    return reward + discount * next_value
