"""What predictions of the return are worth: realised returns, the bias of values, one-step errors. NumPy, `[T, B]`."""

from __future__ import annotations

import numpy as np

LEAST_SEEN = 0.05
"""Share of a return that must consist of rewards, on average, before anything is said of a bias."""


def realised(
    reward: np.ndarray, value: np.ndarray, terminated: np.ndarray, ended: np.ndarray, gamma: float
) -> tuple[np.ndarray, np.ndarray]:
    """Discounted returns of consecutive rows, as far as they are known.

    A return runs to the end of its episode. Where that lies beyond the rows, or was a time limit, it goes on with the
    value of the last row that is known.

    Args:
        reward, value: `[T, B]`; the value is of the row itself, before its reward.
        terminated, ended: `[T, B]` bool; `ended` also where a trace is cut for another reason.

    Returns:
        returns `[T − 1, B]` of all rows but the last; and the weight `[T − 1, B]` in [0, 1] that a value has in each.
    """
    total, weight = value[-1].astype(np.float64), np.ones(value.shape[1])
    returns = np.empty((len(value) - 1, value.shape[1]))
    left = np.empty_like(returns)
    for t in range(len(value) - 2, -1, -1):
        own = np.where(terminated[t], 0.0, value[t])
        following = np.where(ended[t], own, total)
        share = np.where(ended[t], np.where(terminated[t], 0.0, 1.0), weight)
        total, weight = reward[t] + gamma * following, gamma * share
        returns[t], left[t] = total, weight
    return returns, left


def bias(value: np.ndarray, returns: np.ndarray, left: np.ndarray, valid: np.ndarray) -> float:
    """By how much values are too large on average: Σ(V − G) / Σ(1 − w), w the weight of a value in a return.

    A constant bias b of all values is in V − G only as b·(1 − w), because the value that the return goes on with has it
    too; hence the division. NaN where returns hold too few rewards to tell.

    Args:
        value, returns, left, valid: `[T − 1, B]`.
    """
    known = (1.0 - left)[valid]
    if not known.size or known.mean() < LEAST_SEEN:
        return float("nan")
    return float((value - returns)[valid].sum() / known.sum())


def td_errors(
    reward: np.ndarray, value: np.ndarray, terminated: np.ndarray, ended: np.ndarray, gamma: float
) -> np.ndarray:
    """|r + γ·V(next row) − V|, `[T − 1, B]`: after a termination without V, after other ends with V itself."""
    own = np.where(terminated[:-1], 0.0, value[:-1])
    following = np.where(ended[:-1], own, value[1:])
    errors: np.ndarray = np.abs(reward[:-1] + gamma * following - value[:-1])
    return errors


def share_of_one(counts: np.ndarray) -> float:
    """The share of the most frequent of several things: `counts [K]`; 0 where there is none."""
    total = counts.sum()
    return float(counts.max() / total) if total else 0.0
