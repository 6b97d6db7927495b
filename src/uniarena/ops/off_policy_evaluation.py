"""What a policy would earn, from episodes of another: importance-weighted returns, and how far to trust them. NumPy.

Shapes: E episodes, T steps of the longest, B resamples.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Episodes(NamedTuple):
    """Episodes side by side, padded behind their ends.

    Attributes:
        log_ratio: `[E, T]` log π(a|s) − log μ(a|s) of each step; 0 behind the end.
        reward: `[E, T]`; 0 behind the end.
        known: `[E, T]` bool: whether it is known what the step paid. Behind a termination nothing is paid, which is
            known; behind a time limit it is not.
    """

    log_ratio: np.ndarray
    reward: np.ndarray
    known: np.ndarray


def side_by_side(
    log_ratio: np.ndarray, reward: np.ndarray, terminated: np.ndarray, starts: np.ndarray
) -> Episodes:
    """Rows `[M]`, episode by episode, as `Episodes`; `starts [E + 1]` are their first rows, and the end."""
    lengths = np.diff(starts)
    shape = len(lengths), int(lengths.max())
    ratios, rewards, known = np.zeros(shape), np.zeros(shape), np.zeros(shape, bool)
    for k, (start, length) in enumerate(zip(starts[:-1], lengths, strict=True)):
        rows = slice(start, start + length)
        ratios[k, :length], rewards[k, :length] = log_ratio[rows], reward[rows]
        known[k, :length] = True
        known[k, length:] = terminated[start + length - 1]
    return Episodes(ratios, rewards, known)


def step_weights(episodes: Episodes) -> np.ndarray:
    """`[E, T]`: the products of ratios up to each step, divided by the largest of the step; 0 where it is not known.

    Only proportions count where weights are normalised, so nothing overflows.
    """
    total = np.cumsum(episodes.log_ratio, axis=1)
    total = np.where(episodes.known, total, -np.inf)
    largest = total.max(axis=0, keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(total), 0.0, np.exp(total - np.where(np.isneginf(largest), 0.0, largest)))


def weighted_return(
    weight: np.ndarray, reward: np.ndarray, gamma: float, count: np.ndarray | None = None
) -> np.ndarray:
    """Σₜ γᵗ · Σᵢ wᵢₜ rᵢₜ / Σᵢ wᵢₜ: per-decision importance sampling, normalised step by step.

    Precup, Sutton & Singh 2000, section 4, weigh each reward by the ratios up to it alone; normalised at each step it
    is the consistent weighted form of Thomas 2015 (dissertation), section 3.10. Where no episode has weight the sum
    ends.

    Args:
        weight, reward: `[E, T]`.
        count: `[B, E]`, how often each episode is in a resample; None: once, in one.

    Returns:
        `[B]`.
    """
    count = np.ones((1, len(weight))) if count is None else count
    top, bottom = count @ (weight * reward), count @ weight
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(bottom > 0.0, top / bottom, 0.0)
    found: np.ndarray = mean @ gamma ** np.arange(weight.shape[1], dtype=np.float64)
    return found


def effective_size(weight: np.ndarray) -> np.ndarray:
    """(Σw)² / Σw² over the first axis: how many equally weighted episodes would tell as much. Kish 1965, section 11.7.

    0 where all weights are 0.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        size: np.ndarray = np.where((weight > 0).any(0), weight.sum(0) ** 2 / np.square(weight).sum(0), 0.0)
    return size


def resamples(count: int, samples: int, rng: np.random.Generator) -> np.ndarray:
    """`[samples, count]`: how often each of `count` things is drawn, with replacement. Efron 1979."""
    return rng.multinomial(count, np.full(count, 1.0 / count), size=samples).astype(np.float64)


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of resampled values."""
    low, high = np.quantile(values, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)
