"""Ending a run when a figure is good enough, no longer gets better, or falls, with the best agent restored."""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import replace
from typing import Annotated, Any, Literal

from uniarena.config import Between, ConfigError, config
from uniarena.trainer.events import IterationEnd, TrainingEnd

__all__ = ["EarlyStop", "EarlyStopConfig"]

_log = logging.getLogger(__name__)


@config
class EarlyStopConfig:
    """When to stop before the end; give at least one of `threshold`, `patience` and `fall`."""

    metric: str = "eval/return_mean"  # name of the figure to watch
    threshold: float | None = None  # stop once the figure is at least this good
    patience: Annotated[int, Between(1)] | None = (
        None  # stop after so many values in a row without a new best
    )
    min_delta: Annotated[float, Between(0)] = (
        0.0  # a new best must be better than the old one by more than this
    )
    fall: Annotated[float, Between(0, above=True)] | None = (
        None  # stop once this share of what was gained since the first value is lost, fall_patience times in a row
    )
    fall_patience: Annotated[int, Between(1)] = 2
    restore_best: bool = False  # when stopping, go back to the agent that had the best value
    mode: Literal["max", "min"] = "max"  # whether large or small values are good
    min_env_steps: Annotated[int, Between(0)] = 0  # do not stop before so many environment steps

    def __post_init__(self) -> None:
        if self.threshold is None and self.patience is None and self.fall is None:
            raise ConfigError(
                "early_stop was given no threshold, no patience and no fall, so it would never stop",
                path="patience",
                hint="set threshold (a value of the figure), patience (a number of evaluations), or fall (a share)",
            )


class EarlyStop:
    """Asks the trainer to stop when the watched figure reaches a threshold, a plateau, or falls.

    The figure counts once for every iteration in which it is reported: evaluation figures once an evaluation. With
    `restore_best` a copy of the best agent is kept in memory and travels in checkpoints; replay is not put back.

    Attributes:
        best: the best value so far; None before the first.
    """

    Config = EarlyStopConfig

    def __init__(self, cfg: EarlyStopConfig | None = None, **fields: Any) -> None:
        self.cfg: EarlyStopConfig = replace(cfg, **fields) if cfg is not None else EarlyStopConfig(**fields)
        self.best: float | None = None
        self._first: float | None = None
        self._without_gain = self._fallen = 0
        self._seen = False
        self._kept: dict[str, Any] | None = None  # the agent that had the best value

    def on_iteration_end(self, trainer: Any, event: IterationEnd) -> None:
        value = trainer.metrics.get(self.cfg.metric)
        if value is None:
            return
        self._seen, before = True, self.best
        reason = self._judge(float(value))
        if self.cfg.restore_best and self.best is not None and self.best != before:
            steps, state = trainer.counters.clock, copy.deepcopy(trainer.agent.state_dict())
            self._kept = {"env_steps": steps, "agent": state}
        if reason is not None and trainer.counters.clock >= self.cfg.min_env_steps:
            trainer.request_stop(reason + self._restore(trainer))

    def _restore(self, trainer: Any) -> str:
        """Put the best agent back, unless it is the present one → what to say of it."""
        kept = self._kept
        if kept is None or kept["env_steps"] == trainer.counters.clock:
            return ""
        trainer.agent.load_state_dict(copy.deepcopy(kept["agent"]))
        trainer.last_evaluation = None  # it was of the agent that is given up
        return f"; the agent of {kept['env_steps']:,} {trainer.counters.units} is restored"

    def _judge(self, value: float) -> str | None:
        """Take in a value → why to stop, or None. NaN is never better than anything."""
        cfg = self.cfg
        sign = 1.0 if cfg.mode == "max" else -1.0
        first = self.best is None and not math.isnan(value)
        if first:
            self._first = value
        if first or (self.best is not None and sign * (value - self.best) > cfg.min_delta):
            self.best, self._without_gain = value, 0
        else:
            self._without_gain += 1
        if cfg.threshold is not None and sign * (value - cfg.threshold) >= 0.0:
            return f"{cfg.metric} reached {value:.6g} (threshold {cfg.threshold:.6g})"
        if cfg.patience is not None and self._without_gain >= cfg.patience:
            best = "no value" if self.best is None else f"{self.best:.6g}"
            return f"{cfg.metric} did not improve on {best} in {self._without_gain} values"
        return self._judge_fall(value, sign)

    def _judge_fall(self, value: float, sign: float) -> str | None:
        """Count values that lost too much → why to stop, or None. A figure that never rose cannot fall."""
        fall = self.cfg.fall
        if fall is None or self.best is None or self._first is None:
            return None
        gained, lost = sign * (self.best - self._first), sign * (self.best - value)
        self._fallen = self._fallen + 1 if gained > 0.0 and not lost <= fall * gained else 0
        if self._fallen < self.cfg.fall_patience:
            return None
        return (
            f"{self.cfg.metric} fell from {self.best:.6g} to {value:.6g}, having begun at {self._first:.6g}"
        )

    def on_training_end(self, trainer: Any, event: TrainingEnd) -> None:
        if not self._seen and event.reason == "finished":  # one that was cut short may not have come to it
            known = ", ".join(sorted(trainer.metrics)) or "none"
            _log.warning("early_stop watched %r, which never came up; figures: %s", self.cfg.metric, known)

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "first": self._first,
            "without_gain": self._without_gain,
            "fallen": self._fallen,
            "seen": self._seen,
            "kept": self._kept,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self._without_gain, self._seen = state["best"], state["without_gain"], state["seen"]
        self._first, self._fallen = state.get("first", self.best), state.get("fallen", 0)
        self._kept = state.get("kept")
