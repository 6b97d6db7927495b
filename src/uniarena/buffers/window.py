"""Windows of n steps: their rewards summed, and what the rest is worth times `discount`.

A window starts at the row that was chosen and ends with its episode, at a cut, at the newest row, or after n steps,
whichever comes first: reward = Σ γᵏ·r_k over the k steps really taken, discount = γᵏ, or 0 where the last step
terminated. A time limit is no end of value: its discount stays, and the next observation is the true last one.
Sutton 1988; as used in Hessel et al. 2018 (arXiv:1710.02298), eq. 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from uniarena.buffers.flags import STOP, TERMINATED

if TYPE_CHECKING:
    from uniarena.buffers.ring import Ring


class Window(NamedTuple):
    """N windows of at most n steps.

    Attributes:
        places: `[N, n]` rows; those from `steps` on do not belong to the window.
        reward: `[N, n]` of each step.
        terminated: `[N, n]` bool.
        steps: `[N]` how many steps it has.
    """

    places: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    steps: np.ndarray


class Return(NamedTuple):
    """What a window is worth: reward `[N]`, discount `[N]` float32, terminated `[N]` bool, and its last row `[N]`."""

    reward: np.ndarray
    discount: np.ndarray
    terminated: np.ndarray
    last: np.ndarray


def one_step(ring: Ring, places: np.ndarray, flags: np.ndarray, worth: np.ndarray) -> Return:
    """Windows of one step, at rows `[N]` with these flags.

    Args:
        worth: the discounts `[γ, 0]` of a row that goes on and of one that terminated.
    """
    ended = flags & TERMINATED
    return Return(ring.reward.take(places, mode="wrap"), worth.take(ended), ended.view(np.bool_), places)


def windows(ring: Ring, places: np.ndarray, n: int) -> Window:
    """Windows that start at rows `[N]`, given as places from `ring.first_place` on, not wrapped."""
    grid = places[:, None] + np.arange(0, n * ring.columns, ring.columns)
    flags = ring.flags.take(grid, mode="wrap")
    stop = ((flags & STOP) != 0) | (grid >= ring.newest_place)
    stop[:, -1] = True
    reward = ring.reward.take(grid, mode="wrap")
    return Window(grid, reward, (flags & TERMINATED).view(np.bool_), stop.argmax(axis=1) + 1)


def summed(window: Window, powers: np.ndarray) -> Return:
    """The discounted sum of every window. `powers`: γ⁰ … γⁿ, float64."""
    count, n = window.places.shape
    last = window.steps - 1
    ends = np.arange(0, count * n, n) + last
    taken = np.arange(n) <= last[:, None]
    terminated = window.terminated.reshape(-1).take(ends)
    discount = powers.take(window.steps)
    discount[terminated] = 0.0
    return Return(
        (np.where(taken, window.reward, 0.0) @ powers[:-1]).astype(np.float32),
        discount.astype(np.float32),
        terminated,
        window.places.reshape(-1).take(ends),
    )
