"""What predictions of the return are worth: realised returns, the bias of values, one-step errors. NumPy, `[T, B]`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

LEAST_SEEN = 0.05
"""Share of a return that must consist of rewards, on average, before anything is said of a bias."""
MOST_LEFT = 0.25
"""Of a return may lie beyond a time limit, and it still counts as one that was seen."""


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
    # returns and weights side by side, [T, 2, B]: they go on alike, and a call for both takes as long as one for one
    both = np.stack([value, np.ones(value.shape)], 1)
    after_end = np.where(terminated[:, None], 0.0, both)
    gained = np.stack([reward, np.zeros(value.shape)], 1)
    found, following = np.empty((len(value) - 1, *both.shape[1:])), both[-1]
    ends: list[bool] = np.any(ended, axis=1).tolist()
    for t in range(len(value) - 2, -1, -1):
        if ends[t]:
            following = np.where(ended[t], after_end[t], following)
        row = np.multiply(following, gamma, out=found[t])
        row += gained[t]
        following = row
    return found[:, 0], found[:, 1]


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


class Worth(NamedTuple):
    """Discounted returns of data; nothing that was learned enters into them.

    Attributes:
        mean: of all rows, as far as their returns are known; NaN where too little is.
        best: the largest of a row whose return is known for the most part; NaN where there is none.
        low, high: what no return can be below or above, with rewards such as these.
    """

    mean: float
    best: float
    low: float
    high: float


def worth(reward: np.ndarray, terminated: np.ndarray, ends: np.ndarray, gamma: float) -> Worth:
    """What returns there are in data, and what there can be.

    Beyond a time limit nothing is known. A return G of which the share w lies there is taken to go on as it was:
    G / (1 − w) for one row, ΣG / Σ(1 − w) for all.

    Args:
        reward: `[M]`, of rows episode by episode.
        terminated, ends: `[M]` bool; `ends` where the next row does not follow.
    """
    returns, left = np.zeros(len(reward)), np.zeros(len(reward))
    total, share = 0.0, 0.0
    rows = zip(reward.tolist(), terminated.tolist(), ends.tolist(), strict=True)
    for t, (paid, over, last) in zip(range(len(reward) - 1, -1, -1), list(rows)[::-1], strict=True):
        total = paid + (0.0 if last else gamma * total)
        share = gamma * ((0.0 if over else 1.0) if last else share)
        returns[t], left[t] = total, share
    known = 1.0 - left
    mean = float(returns.sum() / known.sum()) if len(reward) and known.mean() >= LEAST_SEEN else math.nan
    seen = left <= MOST_LEFT
    best = float((returns[seen] / known[seen]).max()) if seen.any() else math.nan
    return Worth(mean, best, *return_range(reward, terminated, ends, gamma))


def return_range(
    reward: np.ndarray, terminated: np.ndarray, ends: np.ndarray, gamma: float
) -> tuple[float, float]:
    """Least and largest discounted return of rewards between those of the data: r / (1 − γ), and r alone where an
    episode may be over after it. Without discount the longest episode stands for 1 / (1 − γ).
    """
    places = np.flatnonzero(ends)
    longest = int(np.diff(np.concatenate([[-1], places])).max()) if len(places) else len(reward)
    horizon = 1.0 / (1.0 - gamma) if gamma < 1.0 else float(longest)
    low, high = float(reward.min()), float(reward.max())
    shortest = 1.0 if terminated.any() else horizon
    return min(low * shortest, low * horizon), max(high * shortest, high * horizon)
