"""Schedules: hyper-parameters as functions of the fraction of the run that is done, or of what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from uniarena.config import Between, ConfigError, config
from uniarena.registry import lookup

Schedule = Callable[[float], float]
"""Progress in [0, 1] → value."""

EPOCH_KL = "epoch_kl"
"""Figure that `KLAdaptive` goes by: the mean KL from the policy that gathered the data, after one pass over it."""


@config
class ScheduleConfig:
    """A value that moves from `start` to `end` over the run, or from `start` on by what is measured."""

    # constant, linear, cosine, exponential, warm_restarts, kl_adaptive, plateau, or module:function
    type: str = "linear"
    start: float  # value at the beginning of the run
    end: float = 0.0  # value at its end; least value of `plateau`; `constant` and `kl_adaptive` ignore it
    cycles: Annotated[int, Between(1)] = 4  # warm_restarts: how often it falls from start to end
    target_kl: Annotated[float, Between(0, above=True)] | None = (
        None  # kl_adaptive: the KL to keep; null: learner.target_kl, for clip_range and kl_coef
    )
    bounds: tuple[float, float] | None = (
        None  # kl_adaptive: least and largest value; null: as the key suggests
    )
    metric: str = "return_mean"  # plateau: the figure of each iteration that is watched
    mode: Literal["max", "min"] = "max"  # plateau: whether more is better, or less
    patience: Annotated[int, Between(1)] = (
        10  # plateau: iterations without a better figure before a step down
    )
    factor: Annotated[float, Between(0, 1, above=True)] = 0.5  # plateau: what a step multiplies the value by

    def __post_init__(self) -> None:
        if self.type == "exponential" and not (self.start > 0.0 and self.end > 0.0):
            raise ConfigError(
                f"got {self.end}; an exponential schedule from {self.start} needs start and end above 0.",
                path="end",
                hint=f"write end: {self.start / 100:g}, a hundredth of the start.",
            )
        if self.bounds is not None and not 0.0 < self.bounds[0] <= self.start <= self.bounds[1]:
            raise ConfigError(
                f"got {list(self.bounds)}; expected 0 < least <= start ({self.start}) <= largest.",
                path="bounds",
            )


LearningRate = Annotated[float | ScheduleConfig, Between(0.0, 1e6)]
"""A number or a schedule, as configs declare it; below 0 it would climb, and an infinity is no rate."""


def make_schedule(value: float | ScheduleConfig, path: str = "learner") -> Schedule:
    """The schedule that a config field declares; a plain number stays. Progress is clamped to [0, 1].

    Args:
        path: where the field stands in the configuration, for errors.

    Raises:
        ConfigError: it goes by measurements, which this field does not follow.
    """
    if not isinstance(value, ScheduleConfig):
        fixed = float(value)
        return lambda progress: fixed
    function, start, end = lookup("schedule", value.type), value.start, value.end
    if isinstance(function, type):
        raise ConfigError(
            f"{value.type} goes by what is measured, which this key does not follow.",
            path=path,
            hint="use it for learning_rate, clip_range or kl_coef (plateau: for learning_rate).",
        )
    if value.type == "warm_restarts":
        function = partial(function, cycles=value.cycles)
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


def warm_restarts(progress: float, start: float, end: float, cycles: int = 4) -> float:
    """`cycles` times the cosine. Loshchilov & Hutter 2017 (arXiv:1608.03983), eq. 5, with T_mult = 1."""
    return cosine(1.0 if progress >= 1.0 else progress * cycles % 1.0, start, end)


def exponential(progress: float, start: float, end: float) -> float:
    """start · (end/start)^p: every part of the run takes away the same share."""
    return float(start * (end / start) ** progress)


# -- by what is measured -------------------------------------------------------------------------------------
class KLRule(NamedTuple):
    """When a value reacts to the KL, and how.

    Attributes:
        low, high: shares of the target; below the one and above the other it reacts.
        rate: what it is multiplied or divided by.
        penalty: a large value makes for a small KL; else for a large one.
        bounds: least and largest value, as shares of the first one, where the config gives none.
        inclusive: it reacts at `high` itself too.
    """

    low: float
    high: float
    rate: float
    penalty: bool
    bounds: tuple[float, float]
    inclusive: bool = False


LEARNING_RATE = KLRule(0.5, 2.0, 1.5, False, (0.01, 10.0))
"""Rudin et al. 2022 (arXiv:2109.11978), section 4.3 and its code, where it is 1e-5 … 1e-2 around 1e-3."""
CLIP_RANGE = KLRule(0.5, 1.0, 1.2, False, (0.25, 2.0), inclusive=True)
"""Grows below half of the target, shrinks at it; a rule of our own."""
PENALTY = KLRule(1.0 / 1.5, 1.5, 2.0, True, (1e-3, 1e3))
"""Schulman et al. 2017 (arXiv:1707.06347), section 4, below eq. 8."""


class KLAdaptive:
    """A value that follows the KL between the policy before and after.

    Args:
        cfg: its first value, target and bounds.
        rule: when and how it reacts.
        target_kl: where `cfg` has none.
        path: where the value stands in the configuration.

    Attributes:
        value: the present one.

    Raises:
        ConfigError: there is no target.
    """

    def __init__(self, cfg: ScheduleConfig, rule: KLRule, target_kl: float | None, path: str) -> None:
        target = target_kl if cfg.target_kl is None else cfg.target_kl
        if target is None:
            raise ConfigError(
                "kl_adaptive has no KL to keep.",
                path=f"{path}.target_kl",
                hint="write target_kl: 0.01 there.",
            )
        self.rule, self.target, self.value = rule, target, cfg.start
        self.low, self.high = cfg.bounds or (cfg.start * rule.bounds[0], cfg.start * rule.bounds[1])

    def see(self, figures: Mapping[str, Any]) -> None:
        """React to the figure `epoch_kl`, where it is among these."""
        if EPOCH_KL not in figures:
            return
        kl, rule = float(figures[EPOCH_KL]), self.rule
        far = kl > rule.high * self.target or (rule.inclusive and kl >= rule.high * self.target)
        near = 0.0 <= kl < rule.low * self.target
        if far or near:
            grows = far == rule.penalty
            wanted = self.value * rule.rate if grows else self.value / rule.rate
            self.value = min(self.high, max(self.low, wanted))

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        self.value = float(state["value"])


class Plateau:
    """A value that takes a step down whenever a figure has not improved for some iterations.

    As `torch.optim.lr_scheduler.ReduceLROnPlateau` does, without threshold and cooldown. Iterations without the figure
    do not count.

    Args:
        cfg: first and least value, figure, patience, factor.

    Attributes:
        value: the present one.
    """

    def __init__(self, cfg: ScheduleConfig) -> None:
        self.cfg, self.value = cfg, cfg.start
        self.best: float | None = None
        self.waited = 0

    def see(self, figures: Mapping[str, Any]) -> None:
        """Look at the figure, where it is among these and a number."""
        found = float(figures.get(self.cfg.metric, math.nan))
        if math.isnan(found):
            return
        better = self.best is None or (found > self.best if self.cfg.mode == "max" else found < self.best)
        if better:
            self.best, self.waited = found, 0
            return
        self.waited += 1
        if self.waited >= self.cfg.patience:
            self.value, self.waited = max(self.cfg.end, self.value * self.cfg.factor), 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        self.value, self.best, self.waited = float(state["value"]), state["best"], int(state["waited"])
