"""When to save, and which checkpoints to keep."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from uniarena import checkpoint
from uniarena.checkpoint import CheckpointError
from uniarena.checkpoint.find import whole_of
from uniarena.config import Between, ConfigError, config
from uniarena.config.read import shown
from uniarena.envs.faults import WorkerError
from uniarena.trainer.callbacks.frequency import Every
from uniarena.trainer.callbacks.retention import Shelf
from uniarena.trainer.callbacks.trouble import Trouble, whereabouts
from uniarena.trainer.events import ExceptionRaised, IterationEnd, TrainingEnd, TrainingStart

__all__ = ["Checkpoint", "CheckpointConfig"]

_log = logging.getLogger(__name__)
Count = Annotated[int, Between(1)]


@config
class CheckpointConfig:
    """Saving the whole state of a run."""

    every_env_steps: Count | None = (
        None  # environment steps between checkpoints; None: only safety and final ones
    )
    keep_last: Count | None = 5  # newest ones kept beside the best; None: all
    keep_every_env_steps: Count | None = (
        None  # the first checkpoint at or after each multiple is kept for ever; None: none is
    )
    best: str | None = "eval/return_mean"  # the figure that says which one is best; None: no best one
    mode: Literal["max", "min"] = "max"  # whether the best is the largest or the smallest
    safety_minutes: Annotated[float, Between(0, above=True)] = 10.0  # wall time between saves at the most


class Checkpoint:
    """Saves when due by environment steps, when the best evaluation so far was seen, at least every ten
    minutes, when interrupted, when an environment fails for good and at the end; keeps the last few, the best and
    those that are kept for ever.

    Kinds given to `trainer.save`: `step` (due by environment steps: the only ones that may declare a reset
    boundary), `best`, `safety` (wall clock, or one that failed is tried again), `interrupt`, `fault` (an environment's
    worker failed for good), `final`.

    A save that the disk refuses is reported once, and tried again at the end of the next iteration, then ever more
    rarely; training goes on with all its state in memory. Only the last one of a run must succeed. Where it does not,
    what retention would delete after it is deleted before it, and it is tried once more; then the agent alone is
    written to the system's folder for temporary files, and the error says where everything is.

    Attributes:
        clock: seconds that only move forward; exchanged in tests.
    """

    Config = CheckpointConfig

    def __init__(self, cfg: CheckpointConfig | None = None, **fields: Any) -> None:
        self.cfg: CheckpointConfig = replace(cfg or CheckpointConfig(), **fields)
        self.clock: Callable[[], float] = time.monotonic
        self.best_value: float | None = None
        self._every = Every(self.cfg.every_env_steps)
        self._before = (0, 0)  # env_steps and rows when the iteration began
        self._saved_at = self._saved_steps = -1
        self._saved_time = 0.0
        self._trouble = Trouble()
        self._shelf = Shelf(self.cfg.keep_last, self.cfg.keep_every_env_steps)

    def due(self, trainer: Any) -> bool:
        """Whether the chunk about to be collected ends at a checkpoint due by environment steps.

        Reset-only rows are not known yet, so the decision is made on rows, here and at the end of the
        iteration.
        """
        counters, columns = trainer.counters, trainer.sampler.columns
        wanted = trainer.schedule.env_steps(counters, columns, trainer.total_env_steps)
        env_steps, rows = self._before
        planned = counters.steps - rows + math.ceil(wanted / columns) * columns
        return self._every.would_be_due(env_steps + planned)

    def on_training_start(self, trainer: Any, event: TrainingStart) -> None:
        self._begin(trainer)
        self._saved_time = self.clock()
        if trainer.run_dir is None:
            return
        refuse_unsavable(trainer.callbacks)
        checkpoint.sweep(trainer.run_dir / "checkpoints")
        here = trainer.run_dir / "checkpoints" / str(trainer.counters.clock)
        if (
            event.resumed and (here / "manifest.json").is_file()
        ):  # a run that ends at once has nothing new to save
            self._saved_at, self._saved_steps = trainer.counters.iterations, trainer.counters.clock

    def on_iteration_end(self, trainer: Any, event: IterationEnd) -> None:
        env_steps, rows = self._before
        planned = env_steps + trainer.counters.steps - rows
        step_due = self._every.due(trainer.counters.clock if trainer.counters.unit == "updates" else planned)
        self._begin(trainer)
        self._save_if_best(trainer)
        now = self.clock()
        if step_due:
            self._save(trainer, "step")
        elif now - self._saved_time >= 60.0 * self.cfg.safety_minutes or self._trouble.over(now):
            self._save(trainer, "safety")

    def on_training_end(self, trainer: Any, event: TrainingEnd) -> None:
        self._save_if_best(trainer)
        interrupted = event.reason == "interrupted"
        if self._saved_at != trainer.counters.iterations:
            self._save_last(trainer, "interrupt" if interrupted else "final")
        if interrupted and trainer.run_dir is not None:
            _log.info("saved; continue with: uniarena resume %s", shown(whole_of(trainer.run_dir)))

    def on_exception(self, trainer: Any, event: ExceptionRaised) -> None:
        """A worker that fails for good costs what it was collecting, and nothing that was learned before: agent, buffer
        and counters stand as after the chunk before.
        """
        if isinstance(event.error, WorkerError) and self._saved_steps != trainer.counters.clock:
            self._save(trainer, "fault")

    def _begin(self, trainer: Any) -> None:
        self._before = (trainer.counters.clock, trainer.counters.steps)

    def _save_if_best(self, trainer: Any) -> None:
        value = trainer.metrics.get(self.cfg.best) if self.cfg.best is not None else None
        if value is None or math.isnan(value):
            return
        sign = 1.0 if self.cfg.mode == "max" else -1.0
        if self.best_value is None or sign * value > sign * self.best_value:
            before, self.best_value = self.best_value, float(value)  # the saved state must know it
            if not self._save(trainer, "best"):
                self.best_value = before

    def _save(self, trainer: Any, kind: str) -> bool:
        """Save and tidy up; whether it succeeded."""
        if trainer.run_dir is None:
            return True
        self._saved_time = self.clock()
        try:
            path = trainer.save(kind)
        except CheckpointError as error:
            self._trouble.note(error, self._saved_time, longest=60.0 * self.cfg.safety_minutes)
            return False
        self._trouble.end(path)
        if kind != "best":
            self._saved_at, self._saved_steps = trainer.counters.iterations, trainer.counters.clock
            self._shelf.tidy(Path(path))
        return True

    def _save_last(self, trainer: Any, kind: str) -> None:
        """Save what must not be lost.

        Raises:
            CheckpointError: it could not be saved; its notes say what is where.
        """
        if self._save(trainer, kind):
            return
        folder = trainer.run_dir / "checkpoints"
        if self._shelf.make_room(folder) and self._save(trainer, kind):
            return
        error = self._trouble.last
        assert error is not None
        for note in whereabouts(trainer, folder):
            error.add_note(note)
        raise error

    def state_dict(self) -> dict[str, Any]:
        return {"every": self._every.state_dict(), "best_value": self.best_value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._every.load_state_dict(state["every"])
        self.best_value = state["best_value"]


def refuse_unsavable(callbacks: Sequence[Any]) -> None:
    """Find a callback whose state no checkpoint can hold before training, and not at the first checkpoint.

    Raises:
        ConfigError: naming it, and what in its state.
    """
    for index, callback in enumerate(callbacks):
        if hasattr(callback, "state_dict"):
            try:
                checkpoint.refuse_unsavable(callback.state_dict(), "state_dict()")
            except TypeError as error:
                raise ConfigError(
                    f"{type(callback).__name__} cannot be saved: {error}", path=f"callbacks.{index}"
                ) from None
