"""Statistics over episodes and seeds: means, the interquartile mean, and bootstrap confidence intervals.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice": with a handful of
seeds, report the interquartile mean and an interval rather than a best or a median.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from uniarena.sampling.evaluation import interquartile_mean

__all__ = ["bootstrap_interval", "iqm", "mean", "std", "summarize"]

Values = Sequence[float] | np.ndarray

iqm = interquartile_mean


def mean(values: Values, axis: int | None = None) -> Any:
    """Arithmetic mean; a float where `axis` is None.

    Raises:
        ValueError: there are no values.
    """
    result = np.mean(_some(values), axis=axis)
    return float(result) if axis is None else result


def std(values: Values, axis: int | None = None) -> Any:
    """Sample deviation (divided by n − 1): how much single runs differ. 0 for a single value.

    Raises:
        ValueError: there are no values.
    """
    array = _some(values)
    count = array.size if axis is None else array.shape[axis]
    result = np.std(array, axis=axis, ddof=min(1, count - 1))
    return float(result) if axis is None else result


def bootstrap_interval(
    values: Values,
    statistic: Callable[..., Any] = iqm,
    level: float = 0.95,
    samples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic (Efron 1979).

    Args:
        values: `[n]`, one number per seed.
        statistic: `statistic(array, axis=1)` reduces `[samples, n]` to `[samples]`.
        level: coverage in (0, 1).
        samples: resamples drawn with replacement.
        seed: of the resampling; the same values give the same interval.

    Returns:
        (low, high). With one value both are that value: an interval says nothing then.

    Raises:
        ValueError: no values, or `level` outside (0, 1).
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level}: expected a coverage between 0 and 1, such as 0.95.")
    array = _some(values).reshape(-1)
    rows = np.random.default_rng(seed).integers(len(array), size=(samples, len(array)))
    spread = statistic(array[rows], axis=1)
    low, high = np.quantile(spread, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def summarize(values: Values) -> dict[str, Any]:
    """What is reported of one number per seed: count, mean, std, iqm, its 95 % interval, and the values.

    No values give `{"count": 0, "values": []}`.
    """
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    if array.size == 0:
        return {"count": 0, "values": []}
    return {
        "count": int(array.size),
        "mean": mean(array),
        "std": std(array),
        "iqm": iqm(array),
        "interval_95": list(bootstrap_interval(array)),
        "values": [float(value) for value in array],
    }


def _some(values: Values) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("a statistic of no values was asked for; give at least one.")
    return array
