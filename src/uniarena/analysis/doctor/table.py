"""Figures of a run as columns, and simple questions about them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from uniarena.trainer.clock import clock_of


class Series(NamedTuple):
    """One figure: `steps [n]`, rising, and `values [n]`, finite. It may be empty."""

    steps: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)

    def part(self, low: float, high: float = 1.0) -> Series:
        """From one share of its values to another: `part(0.5)` is the later half."""
        start, stop = round(low * len(self.steps)), round(high * len(self.steps))
        return Series(self.steps[start:stop], self.values[start:stop])

    def median(self) -> float:
        """NaN where there is none."""
        return float(np.median(self.values)) if len(self.values) else math.nan

    def mean(self) -> float:
        """NaN where there is none."""
        return float(self.values.mean()) if len(self.values) else math.nan

    @property
    def span(self) -> tuple[int, int]:
        """Environment steps of its first and last value."""
        return int(self.steps[0]), int(self.steps[-1])


class Table:
    """The rows of `metrics.jsonl`, by figure.

    Args:
        rows: each with `env_steps`; what is not a number is left out of a figure's series.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows = [row for row in rows if isinstance(row.get("env_steps"), int | float)]
        self._known: dict[str, Series] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def end(self) -> int:
        """Environment steps of the last row."""
        return clock_of(self._rows[-1]) if self._rows else 0

    @property
    def names(self) -> set[str]:
        """Every figure that any row has."""
        return set(self.order)

    @property
    def order(self) -> list[str]:
        """The same, in the order in which they first came."""
        return list(dict.fromkeys(name for row in self._rows for name in row))

    def series(self, *names: str) -> Series:
        """The first of the named figures that has a value; an empty one where none has."""
        for name in names:
            found = self._series(name)
            if len(found):
                return found
        return Series(np.empty(0, int), np.empty(0))

    def _series(self, name: str) -> Series:
        if name not in self._known:
            pairs = [
                (clock_of(row), float(row[name]))
                for row in self._rows
                if isinstance(row.get(name), int | float) and math.isfinite(row[name])
            ]
            steps, values = zip(*pairs, strict=True) if pairs else ((), ())
            self._known[name] = Series(np.array(steps, int), np.array(values, float))
        return self._known[name]

    def non_finite(self) -> list[tuple[int, list[str]]]:
        """(env steps, figures) of rows with NaN or infinities."""
        found = []
        for row in self._rows:
            odd = sorted(row.get("non_finite") or {})
            odd += [k for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)]
            if odd:
                found.append((clock_of(row), odd))
        return found


class Course(NamedTuple):
    """How a return went: means of blocks of its values.

    Attributes:
        steps, means: `[k]`, the middle of each block and its mean.
        noise: standard error of a block's mean, from the differences of neighbouring values.
        within: the same from the deviations within blocks, the median: slow swings do not show in it.
    """

    steps: np.ndarray
    means: np.ndarray
    noise: float
    within: float

    @property
    def gain(self) -> float:
        """From the first block to the best later one; negative where none was better."""
        return float(self.means[1:].max() - self.means[0])

    @property
    def rose(self) -> bool:
        """Whether the gain is more than noise, and more than a trifle."""
        return self.gain > max(4.0 * self.noise, 0.05 * float(np.abs(self.means).max()))


def course(series: Series, blocks: int = 10, least: int = 8) -> Course | None:
    """Blocks of a series of returns; None where there are fewer than `least` values."""
    if len(series) < least:
        return None
    count = min(blocks, len(series) // 2)
    parts = np.array_split(series.values, count)
    steps = np.array([part.mean() for part in np.array_split(series.steps, count)])
    steps_between = np.diff(series.values)  # a slope hardly shows in them, noise does
    noise = math.sqrt(float(np.mean(steps_between**2)) / 2.0 / (len(series) / count))
    within = float(np.median([part.std(ddof=1) / math.sqrt(len(part)) for part in parts]))
    return Course(steps, np.array([part.mean() for part in parts]), noise, within)


def returns(table: Table) -> Series:
    """Training returns; where no episode was reported, evaluated ones."""
    return table.series("return_mean", "eval/return_mean")


def figure(value: float) -> str:
    """A number for people."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.3g}"
