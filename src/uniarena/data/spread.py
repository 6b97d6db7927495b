"""Spread: how the values of one leaf lie, from one walk through them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from uniarena.data.source import largest

BINS = 20
"""Equal parts of the way between two bounds, of which the share that was visited is counted."""
LISTED = 64
"""Entries of a leaf up to which figures of each are given."""
MOST_ENTRIES = 4096
"""Entries of a leaf up to which it is asked whether its values are classes; pictures have more."""
COUNTED = 2**16
"""Classes up to which each is listed with its count."""
NEAR = 1e-3
"""Share of the way between two bounds within which an action counts as being at the bound."""


class Spread:
    """Figures of each entry of a leaf.

    Args:
        name: where the leaf stands, such as `obs.pos`.
        space: of the leaf; its bounds are what values are held against.
        called: the same place as the file calls it, for sentences; by default the name.

    Attributes:
        nonfinite_rows, large_rows: rows with NaN or infinite values, and others that are too large for float32.
        nonfinite_finals, large_finals: the same of what episodes ended in; `largest`: the worst of the latter.
        classes: how many classes a Discrete leaf has; None: it has none.
        taken: classes that were seen, counted from 0 and ascending, and how often: as large as what was seen.
        seen: values of each entry of a MultiDiscrete or MultiBinary leaf that were seen; None: it is neither, or large.
        whole: every value is a whole number; `one_hot`: every row has a single 1 and else 0, of several entries.
    """

    def __init__(self, name: str, space: Space[Any], called: str = "") -> None:
        self.name, self.space, self.called = name, space, called or name
        self.size = int(np.prod(space.shape or (), dtype=np.int64))
        self.rows = self.outside_rows = 0
        self.nonfinite_rows = self.nonfinite_finals = self.large_rows = self.large_finals = 0
        self.largest = 0.0
        self.low, self.high = np.full(self.size, np.inf), np.full(self.size, -np.inf)
        self.outside, self.at_bound = np.zeros(self.size, np.int64), np.zeros(self.size, np.int64)
        self.bounds = _bounds(space, self.size)
        self.bounded = np.isfinite(self.bounds[0]) & np.isfinite(self.bounds[1])
        self._shift = np.zeros(self.size)
        self._sum, self._square, self._count = (np.zeros(self.size) for _ in range(3))
        listed = self.size <= LISTED
        self.classes = int(space.n) if isinstance(space, spaces.Discrete) else None
        self.taken: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        self.several = isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary)
        self.seen = [np.zeros(0)] * self.size if self.several and listed else None
        self.whole, self.one_hot = self.size <= MOST_ENTRIES, 1 < self.size <= MOST_ENTRIES
        classes = self.several or self.classes is not None
        self._visited = (
            np.zeros((self.size, BINS), bool) if listed and self.bounded.any() and not classes else None
        )

    def add(self, rows: np.ndarray, wide: np.ndarray | None = None, final: bool = False) -> None:
        """Values `[N, *shape]`.

        Args:
            wide: the same in the file's own precision; None: they have no other.
            final: what episodes ended in, where odd ones are told apart from those of steps.
        """
        if not len(rows):
            return
        if self.classes is not None:
            self._count_classes(rows.reshape(-1).astype(np.int64) - self._start)
        values = rows.reshape(len(rows), self.size).astype(np.float64)
        finite: np.ndarray = np.isfinite(values)
        if not finite.all():
            self._count_odd(
                values if wide is None else wide.reshape(values.shape), ~np.asarray(finite.all(axis=1)), final
            )
        if not self.rows:
            self._shift = np.where(finite[0], values[0], 0.0)  # sums of small numbers lose less
        self.rows += len(rows)
        self.low = np.minimum(self.low, np.where(finite, values, np.inf).min(axis=0))
        self.high = np.maximum(self.high, np.where(finite, values, -np.inf).max(axis=0))
        moved = np.where(finite, values - self._shift, 0.0)
        self._sum += moved.sum(axis=0)
        self._square += (moved**2).sum(axis=0)
        self._count += finite.sum(axis=0)
        self._look_for_classes(values)
        self._hold_against_bounds(values, finite)

    def _count_odd(self, values: np.ndarray, odd: np.ndarray, final: bool) -> None:
        finite = np.isfinite(values).all(axis=1)
        nonfinite, large = int((~finite).sum()), int((odd & finite).sum())
        if final:
            self.nonfinite_finals, self.large_finals = (
                self.nonfinite_finals + nonfinite,
                self.large_finals + large,
            )
        else:
            self.nonfinite_rows, self.large_rows = self.nonfinite_rows + nonfinite, self.large_rows + large
        if large:
            self.largest = max(self.largest, largest(values[odd & finite]), key=abs)

    def _look_for_classes(self, values: np.ndarray) -> None:
        self.whole = self.whole and bool((values == np.floor(values)).all())
        if self.one_hot:
            self.one_hot = bool(np.isin(values, (0, 1)).all() and (values.sum(axis=1) == 1).all())
        if self.seen is not None:
            self.seen = [np.union1d(seen, values[:, k]) for k, seen in enumerate(self.seen)]

    def _count_classes(self, rows: np.ndarray) -> None:
        (seen, counts), (new, more) = self.taken, np.unique(rows, return_counts=True)
        merged, place = np.unique(np.concatenate([seen, new]), return_inverse=True)
        total = np.zeros(len(merged), np.int64)
        np.add.at(total, place, np.concatenate([counts, more]))
        self.taken = merged, total

    @property
    def _start(self) -> int:
        """The first class of the space that rows are given in."""
        return int(getattr(self.space, "start", 0))

    def _hold_against_bounds(self, values: np.ndarray, finite: np.ndarray) -> None:
        low, high = self.bounds
        slack = 1e-5 * np.maximum(1.0, np.maximum(np.abs(np.nan_to_num(low, posinf=0, neginf=0)), 0))
        out = ((values < low - slack) | (values > high + slack)) & finite
        self.outside += out.sum(axis=0)
        self.outside_rows += int(out.any(axis=1).sum())
        if not self.bounded.any():
            return
        low, width = low[self.bounded], np.maximum((high - low)[self.bounded], 1e-300)
        part = (np.where(finite, values, low_of(self.bounds))[:, self.bounded] - low) / width
        near = (part <= NEAR) | (part >= 1 - NEAR)
        self.at_bound[self.bounded] += (near & finite[:, self.bounded]).sum(axis=0)
        if self._visited is not None:
            bins = np.clip(part * BINS, 0, BINS - 1).astype(np.int64)
            for k, entry in enumerate(np.flatnonzero(self.bounded)):
                self._visited[entry, bins[:, k]] = True

    @property
    def counts(self) -> list[int] | None:
        """How often each class was seen; None: no classes, or so many that only those seen are worth telling."""
        if self.classes is None or self.classes > COUNTED:
            return None
        counts = np.zeros(self.classes, np.int64)
        inside = (self.taken[0] >= 0) & (self.taken[0] < self.classes)
        counts[self.taken[0][inside]] = self.taken[1][inside]
        return list(counts.tolist())

    @property
    def untaken(self) -> np.ndarray:
        """`[entries]` of a MultiDiscrete or MultiBinary leaf: how many of their classes were never seen."""
        count = self.bounds[1] - self.bounds[0] + 1
        return np.array([count[k] - len(seen) for k, seen in enumerate(self.seen or ())], np.int64)

    @property
    def mean(self) -> np.ndarray:
        """`[entries]`."""
        return self._shift + self._sum / np.maximum(1, self._count)

    @property
    def std(self) -> np.ndarray:
        """`[entries]`."""
        count = np.maximum(1, self._count)
        return np.sqrt(np.maximum(0.0, self._square / count - (self._sum / count) ** 2))

    @property
    def constant(self) -> np.ndarray:
        """`[entries]` bool: the same value in every row, of several."""
        return (self.low == self.high) & (self.rows > 1)

    @property
    def saturation(self) -> np.ndarray:
        """`[entries]` share of values at a bound; 0 where there is none."""
        return self.at_bound / max(1, self.rows)

    @property
    def visited(self) -> np.ndarray | None:
        """`[entries]` share of the parts between its bounds that an entry was in; NaN without bounds."""
        if self._visited is None:
            return None
        return np.where(self.bounded, self._visited.mean(axis=1), np.nan)

    def to_json(self) -> dict[str, Any]:
        """Plain data; figures of each entry where these are few."""
        found: dict[str, Any] = {
            "name": self.name,
            "called": self.called,
            "shape": list(self.space.shape or ()),
            "rows": self.rows,
        }
        seen = self.low <= self.high
        found["min"] = float(self.low[seen].min()) if seen.any() else None
        found["max"] = float(self.high[seen].max()) if seen.any() else None
        found |= {"nonfinite_rows": self.nonfinite_rows, "too_large_rows": self.large_rows}
        found |= {"outside_rows": self.outside_rows}
        found["constant"] = np.flatnonzero(self.constant).tolist()
        if self.size <= LISTED:
            low, high = self.bounds
            each = {
                "low": low,
                "high": high,
                "min": self.low,
                "max": self.high,
                "mean": self.mean,
                "std": self.std,
            }
            found["entries"] = {name: values.tolist() for name, values in each.items()}
        return found


def low_of(bounds: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Lower bounds, 0 where there is none."""
    return np.where(np.isfinite(bounds[0]), bounds[0], 0.0)


def _bounds(space: Space[Any], size: int) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, spaces.Box):
        return space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(size), np.ones(size)
    start = np.broadcast_to(np.asarray(getattr(space, "start", 0), np.float64).reshape(-1), size)
    count = np.broadcast_to(
        np.asarray(getattr(space, "n", getattr(space, "nvec", 1)), np.float64).reshape(-1), size
    )
    return start.copy(), start + count - 1


def histogram(values: np.ndarray, bins: int = 12) -> dict[str, list[float]]:
    """Edges and counts of finite values; one bar where all are equal."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {"edges": [], "counts": []}
    low, high = float(values.min()), float(values.max())
    if low == high:
        return {"edges": [low, high], "counts": [len(values)]}
    counts, edges = np.histogram(values, min(bins, max(2, len(np.unique(values)))))
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def summary(values: np.ndarray) -> dict[str, float | None]:
    """Least, median, mean, deviation and greatest of the finite values."""
    values = values[np.isfinite(values)].astype(np.float64)
    if not len(values):
        return dict.fromkeys(("min", "median", "mean", "std", "max"))
    scale = max(1.0, float(np.abs(values).max()) / 1e100)  # squares of the largest floats are infinite
    return {
        "min": float(values.min()),
        "median": float(np.median(values)),
        "mean": float((values / scale).mean() * scale),
        "std": float((values / scale).std() * scale),
        "max": float(values.max()),
    }
