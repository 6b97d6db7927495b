"""Ending a run when a figure is good enough, or no longer gets better."""

from __future__ import annotations

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
    """When to stop before the end; give `threshold`, `patience`, or both."""

    metric: str = "eval/return_mean"  # name of the figure to watch
    threshold: float | None = None  # stop once the figure is at least this good
    patience: Annotated[int, Between(1)] | None = (
        None  # stop after so many values in a row without a new best
    )
    min_delta: Annotated[float, Between(0)] = (
        0.0  # a new best must be better than the old one by more than this
    )
    mode: Literal["max", "min"] = "max"  # whether large or small values are good
    min_env_steps: Annotated[int, Between(0)] = 0  # do not stop before so many environment steps

    def __post_init__(self) -> None:
        if self.threshold is None and self.patience is None:
            raise ConfigError(
                "early_stop was given neither a threshold nor a patience, so it would never stop",
                path="patience",
                hint="set threshold (a value of the figure), patience (a number of evaluations), or both",
            )


class EarlyStop:
    """Asks the trainer to stop when the watched figure reaches a threshold or a plateau.

    The figure counts once for every iteration in which it is reported: evaluation figures once an evaluation.

    Attributes:
        best: the best value so far; None before the first.
    """

    Config = EarlyStopConfig

    def __init__(self, cfg: EarlyStopConfig | None = None, **fields: Any) -> None:
        self.cfg: EarlyStopConfig = replace(cfg, **fields) if cfg is not None else EarlyStopConfig(**fields)
        self.best: float | None = None
        self._without_gain = 0
        self._seen = False

    def on_iteration_end(self, trainer: Any, event: IterationEnd) -> None:
        value = trainer.metrics.get(self.cfg.metric)
        if value is None:
            return
        self._seen = True
        reason = self._judge(float(value))
        if reason is not None and trainer.counters.env_steps >= self.cfg.min_env_steps:
            trainer.request_stop(reason)

    def _judge(self, value: float) -> str | None:
        """Take in a value → why to stop, or None. NaN is never better than anything."""
        cfg = self.cfg
        sign = 1.0 if cfg.mode == "max" else -1.0
        first = self.best is None and not math.isnan(value)
        if first or (self.best is not None and sign * (value - self.best) > cfg.min_delta):
            self.best, self._without_gain = value, 0
        else:
            self._without_gain += 1
        if cfg.threshold is not None and sign * (value - cfg.threshold) >= 0.0:
            return f"{cfg.metric} reached {value:.6g} (threshold {cfg.threshold:.6g})"
        if cfg.patience is not None and self._without_gain >= cfg.patience:
            best = "no value" if self.best is None else f"{self.best:.6g}"
            return f"{cfg.metric} did not improve on {best} in {self._without_gain} values"
        return None

    def on_training_end(self, trainer: Any, event: TrainingEnd) -> None:
        if not self._seen:
            known = ", ".join(sorted(trainer.metrics)) or "none"
            _log.warning("early_stop watched %r, which never came up; figures: %s", self.cfg.metric, known)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "without_gain": self._without_gain, "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self._without_gain, self._seen = state["best"], state["without_gain"], state["seen"]
