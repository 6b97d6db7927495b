"""Rules over figures: what is to happen when one leaves its band, or moves the wrong way, within a sliding window."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Annotated, Any, Literal

from uniarena.config import Between, ConfigError, config
from uniarena.trainer.events import IterationEnd, TrainingEnd

__all__ = ["Rule", "Rules", "RulesConfig"]

_log = logging.getLogger(__name__)
Count = Annotated[int, Between(1)]


@config
class Rule:
    """When the mean of a figure's last values is out of bounds, or they have a trend: warn, lower the rate, or stop."""

    metric: str  # name of the figure to watch
    above: float | None = None  # the mean of the window must not be above this
    below: float | None = None  # nor below this
    trend: Literal["rising", "falling"] | None = (
        None  # nor the later half of the window this way from the earlier
    )
    by: Annotated[float, Between(0, above=True)] = (
        0.2  # trend: by more than this share of the earlier half's size
    )
    window: Count = 5  # values looked at
    action: Literal["warn", "lower_lr", "stop"] = "warn"
    factor: Annotated[float, Between(0, 1, above=True)] = (
        0.5  # lower_lr: what learning rates are multiplied by
    )
    cooldown: Count = 10  # values after which the rule may act again; a warning is said once
    min_env_steps: Annotated[int, Between(0)] = 0  # not before so many environment steps

    def __post_init__(self) -> None:
        if self.above is None and self.below is None and self.trend is None:
            raise ConfigError(
                f"a rule for {self.metric!r} says neither above, below nor trend, so it would never act",
                path="metric",
                hint="set above or below to a bound, or trend to rising or falling",
            )
        if self.trend is not None and self.window < 4:
            raise ConfigError(
                f"got {self.window}; a trend compares two halves of a window",
                path="window",
                hint="take 4 or more.",
            )

    def broken_by(self, values: list[float]) -> str | None:
        """What is wrong with a whole window of values; None: nothing. NaN breaks every rule."""
        if any(math.isnan(value) for value in values):
            return f"{self.metric} is not a number"
        mean, count = sum(values) / len(values), len(values)
        if self.above is not None and mean > self.above:
            return f"{self.metric} is {mean:.4g} on average over {count} values, above {self.above:g}"
        if self.below is not None and mean < self.below:
            return f"{self.metric} is {mean:.4g} on average over {count} values, below {self.below:g}"
        if self.trend is None:
            return None
        half = count // 2
        early, late = sum(values[:half]) / half, sum(values[-half:]) / half
        move = late - early if self.trend == "rising" else early - late
        if move > self.by * max(abs(early), 1e-8):
            return f"{self.metric} is {self.trend}: {early:.4g} to {late:.4g} within {count} values"
        return None


@config
class RulesConfig:
    """What to watch."""

    rules: tuple[Rule, ...]


class Rules:
    """Looks at each rule's figure once for every iteration that reports it.

    `warn` says it once, `lower_lr` multiplies the rates of all the learner's optimisers for the rest of the run,
    `stop` asks the trainer to end. Windows, pauses and what was said travel in checkpoints.
    """

    Config = RulesConfig

    def __init__(self, cfg: RulesConfig | None = None, **fields: Any) -> None:
        self.cfg: RulesConfig = replace(cfg, **fields) if cfg is not None else RulesConfig(**fields)
        self._windows: list[list[float]] = [[] for _ in self.cfg.rules]
        self._rest = [0] * len(self.cfg.rules)
        self._said = [False] * len(self.cfg.rules)
        self._seen = [False] * len(self.cfg.rules)

    def on_iteration_end(self, trainer: Any, event: IterationEnd) -> None:
        for index, rule in enumerate(self.cfg.rules):
            value = trainer.metrics.get(rule.metric)
            if value is None:
                continue
            self._seen[index] = True
            window = self._windows[index] = [*self._windows[index], float(value)][-rule.window :]
            self._rest[index] = max(0, self._rest[index] - 1)
            whole = len(window) == rule.window or math.isnan(window[-1])
            if self._rest[index] or not whole or trainer.counters.clock < rule.min_env_steps:
                continue
            reason = rule.broken_by(window)
            if reason is not None:
                self._act(trainer, index, rule, reason)

    def _act(self, trainer: Any, index: int, rule: Rule, reason: str) -> None:
        steps = f"{trainer.counters.clock:,}"
        self._rest[index] = rule.cooldown
        if rule.action == "stop":
            trainer.request_stop(reason)
        elif rule.action == "lower_lr":
            for optimizer in trainer.agent.learner.optimizers.values():
                optimizer.scale(rule.factor)
            _log.warning("at %s env steps %s: learning rates times %g", steps, reason, rule.factor)
        elif not self._said[index]:
            _log.warning("at %s env steps %s. Said once.", steps, reason)
        self._said[index] = True

    def on_training_end(self, trainer: Any, event: TrainingEnd) -> None:
        unseen = [rule.metric for rule, seen in zip(self.cfg.rules, self._seen, strict=True) if not seen]
        if unseen and event.reason == "finished":  # one that was cut short may not have come to it
            known = ", ".join(sorted(trainer.metrics)) or "none"
            _log.warning("rules watched %s, which never came up; figures: %s", ", ".join(unseen), known)

    def state_dict(self) -> dict[str, Any]:
        return {"windows": self._windows, "rest": self._rest, "said": self._said, "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._windows = [[float(value) for value in window] for window in state["windows"]]
        self._rest, self._said, self._seen = list(state["rest"]), list(state["said"]), list(state["seen"])
