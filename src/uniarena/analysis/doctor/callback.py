"""The doctor beside a run: what it finds is said while there is still time."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Annotated, Any

from uniarena.analysis.doctor import ILLNESSES, examine
from uniarena.config import Between, ConfigError, config, from_text
from uniarena.trainer.callbacks.frequency import Every
from uniarena.trainer.clock import clock_of, spelled
from uniarena.trainer.events import IterationEnd, TrainingEnd, TrainingStart
from uniarena.trainer.loggers.jsonl import read_rows

__all__ = ["Doctor", "DoctorConfig"]

_log = logging.getLogger(__name__)
_FILE = "metrics.jsonl"


@config
class DoctorConfig:
    """How often the doctor looks at a run, and what ends it."""

    every_env_steps: Annotated[int, Between(1)] | None = None  # between two looks; None: twenty over the run
    stop_on: tuple[str, ...] = ()  # illnesses that end the run

    def __post_init__(self) -> None:
        if odd := set(self.stop_on) - ILLNESSES.keys():
            raise ConfigError(
                f"the doctor knows no {', '.join(sorted(odd))}",
                "stop_on",
                hint=f"known: {', '.join(ILLNESSES)}",
            )


class Doctor:
    """Says each finding once, at the first look that shows it; the number of illnesses is logged as `doctor/findings`.

    It reads `metrics.jsonl` of the run's folder, and rows of its own where there is none.
    """

    Config = DoctorConfig

    def __init__(self, cfg: DoctorConfig | None = None, **fields: Any) -> None:
        self.cfg: DoctorConfig = replace(cfg or DoctorConfig(), **fields)
        self._every = Every(self.cfg.every_env_steps)
        self._said: list[str] = []
        self._rows: list[dict[str, Any]] = []

    def on_training_start(self, trainer: Any, event: TrainingStart) -> None:
        if self.cfg.every_env_steps is None:
            self._every.steps = max(1, trainer.total_env_steps // 20)

    def on_iteration_end(self, trainer: Any, event: IterationEnd) -> None:
        row = {name: float(value) for name, value in trainer.metrics.items()}
        self._rows.append({"env_steps": trainer.counters.env_steps, **row})
        if self._every.due(trainer.counters.clock):
            self._look(trainer)

    def on_training_end(self, trainer: Any, event: TrainingEnd) -> None:
        self._look(trainer)

    def on_exception(self, trainer: Any, event: Any) -> None:
        self._look(trainer)

    def _look(self, trainer: Any) -> None:
        findings = examine(self._so_far(trainer), _config(trainer))
        trainer.metrics["doctor/findings"] = float(len(findings))
        for finding in findings:
            if finding.illness in self._said:
                continue
            self._said.append(finding.illness)
            _log.warning(
                "at %s the doctor finds %s", spelled(trainer.counters.clock, trainer.counters.units), finding
            )
            if finding.illness in self.cfg.stop_on:
                trainer.request_stop(
                    f"the doctor found {finding.illness.replace('_', ' ')}: {finding.symptom}"
                )

    def _so_far(self, trainer: Any) -> list[dict[str, Any]]:
        """Rows of the file, which knows what came before a resume, and then those it lacks."""
        written = [] if trainer.run_dir is None else read_rows(trainer.run_dir / _FILE)
        if not written:
            return self._rows
        self._rows = [row for row in self._rows if clock_of(row) > clock_of(written[-1])]
        return written + self._rows

    def state_dict(self) -> dict[str, Any]:
        return {"every": self._every.state_dict(), "said": list(self._said)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._every.load_state_dict(state["every"])
        self._said = list(state["said"])


def _config(trainer: Any) -> dict[str, Any] | None:
    """The configuration of the run, where it has one."""
    text = trainer.meta.get("config")
    return dict(from_text(text, "config")) if isinstance(text, str) else None
