"""Schedules: hyper-parameters as functions of the fraction of the run that is done."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

from uniarena.config import Between, config
from uniarena.registry import lookup

Schedule = Callable[[float], float]
"""Progress in [0, 1] → value."""


@config
class ScheduleConfig:
    """A value that moves from `start` to `end` over the run."""

    type: str = "linear"  # constant, linear, cosine, or module:function of (progress, start, end)
    start: float  # value at the beginning of the run
    end: float = 0.0  # value at its end; `constant` ignores it


LearningRate = Annotated[float | ScheduleConfig, Between(0.0, 1e6)]
"""A number or a schedule, as configs declare it; below 0 it would climb, and an infinity is no rate."""


def make_schedule(value: float | ScheduleConfig) -> Schedule:
    """The schedule that a config field declares; a plain number stays. Progress is clamped to [0, 1]."""
    if not isinstance(value, ScheduleConfig):
        fixed = float(value)
        return lambda progress: fixed
    function, start, end = lookup("schedule", value.type), value.start, value.end
    return lambda progress: float(function(min(1.0, max(0.0, progress)), start, end))


def constant(progress: float, start: float, end: float) -> float:
    """`start` throughout."""
    return start


def linear(progress: float, start: float, end: float) -> float:
    """start + p · (end − start)."""
    return start + progress * (end - start)


def cosine(progress: float, start: float, end: float) -> float:
    """end + (start − end)·(1 + cos πp)/2. Loshchilov & Hutter 2017 (arXiv:1608.03983), eq. 5, no restart."""
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * progress))
