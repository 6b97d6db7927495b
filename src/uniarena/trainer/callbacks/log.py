"""Every figure of a run to every logger."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from uniarena.batch import tree_map, tree_paths
from uniarena.config import Between, config, parse
from uniarena.nets.inference import eval_mode
from uniarena.optim.minimize import NonFiniteError
from uniarena.registry import lookup
from uniarena.trainer.callbacks.frequency import Every
from uniarena.trainer.callbacks.resources import Resources
from uniarena.trainer.events import BatchCollected, IterationEnd, LearnStep, TrainingEnd, TrainingStart
from uniarena.trainer.health import TOPICS
from uniarena.trainer.loggers import Logger
from uniarena.trainer.loggers.steady import Steady

__all__ = ["Log", "LogConfig"]

_log = logging.getLogger(__name__)
# an update that moves the policy further than this share of the clip range did more than clipping means to allow
_KL_FACTOR = 1.5
_KL_FLOOR = 1e-3  # below it an update is harmless, however far a schedule has closed the clip range
_VALUES = 2048  # rows whose values make a histogram


@config
class LogConfig:
    """Which figures go where, how often."""

    every_env_steps: Annotated[int, Between(1)] | None = None  # between log points; None: every iteration
    loggers: tuple[dict[str, Any], ...] = (
        {"type": "jsonl"},
        {"type": "tensorboard"},
    )  # jsonl is always there
    histograms: bool = False  # also histograms of parameters, gradients, actions and values
    graph: bool = False  # also the model's graph, once


class Log:
    """Collects the figures of each iteration and hands them on: `metrics.jsonl` gets a row every iteration,
    other loggers the means over each log interval.

    Logged beside what trainer, learner and callbacks report: `updates, episodes, iterations, epochs`,
    `wall_s` (of the whole run, evaluation apart), `fps` (environment steps per second), `exploration_std` (of
    Gaussian actions), `system/…`.

    Attributes:
        loggers: the opened loggers.
        clock: seconds that only move forward; exchanged in tests.
    """

    Config = LogConfig

    def __init__(self, cfg: LogConfig | None = None, **fields: Any) -> None:
        self.cfg: LogConfig = replace(cfg or LogConfig(), **fields)
        self.loggers = [_build(section, index) for index, section in enumerate(_with_jsonl(self.cfg.loggers))]
        self.clock: Callable[[], float] = time.perf_counter
        self._active: list[Steady] = []
        self._every, self._resources = Every(self.cfg.every_env_steps), Resources()
        self._pending: dict[str, list[float]] = {}  # name → [sum, count] since the last log point
        self._written: dict[str, float] = {}
        self._wall, self._paused, self._warned = 0.0, 0.0, False
        self._mark = (0.0, 0)  # clock and env_steps of the last row
        self._rollout: Any = None
        self._gradients: dict[str, Tensor] | None = None
        self._graph_due = self.cfg.graph
        if self.cfg.histograms:  # who does not ask for them pays nothing: the trainer looks for the method
            self.on_learn_step = self._keep_gradients
        if self.cfg.histograms or self.cfg.graph:
            self.on_batch_collected = self._keep_rollout

    # -- events --------------------------------------------------------------------------------------------
    def on_training_start(self, trainer: Any, event: TrainingStart) -> None:
        self._active = []
        if trainer.run_dir is not None:
            Path(trainer.run_dir).mkdir(parents=True, exist_ok=True)
            self._active = [Steady(logger) for logger in self.loggers]
        for steady in self._active:
            steady.open(Path(trainer.run_dir), trainer.counters.clock)
        self._each("layout", TOPICS)
        self._resources.read()
        self._mark, self._paused = (self.clock(), trainer.counters.clock), 0.0

    def on_validation_epoch(self, trainer: Any, event: Any) -> None:
        self._paused += event.result.seconds

    def on_iteration_end(self, trainer: Any, event: IterationEnd) -> None:
        step = trainer.counters.clock
        reported = {**_noise(trainer.agent.model), **_plain(trainer.metrics)}
        row = {**reported, **self._progress_figures(trainer), **self._resources.read()}
        self._warn_of_kl(row, step)
        for name, value in row.items():
            entry = self._pending.setdefault(name, [0.0, 0])
            self._pending[name] = [entry[0] + value, entry[1] + 1]
        due = self.cfg.every_env_steps is None or self._every.due(step)
        self._write(step, row, due)
        if due and self.cfg.histograms:
            self._histograms(trainer, step)
        self._rollout = self._gradients = None

    def on_training_end(self, trainer: Any, event: TrainingEnd) -> None:
        late = {
            n: v for n, v in _plain(trainer.metrics).items() if n not in self._written
        }  # a last evaluation
        for name, value in late.items():
            self._pending[name] = [value, 1]
        if self._pending:
            self._write(trainer.counters.clock, {**self._written, **late}, due=True)
        self.close()

    def on_exception(self, trainer: Any, event: Any) -> None:
        error = event.error
        # the last row says why there is no other; a resumed run drops it
        if isinstance(error, NonFiniteError):
            step = max(trainer.counters.clock + 1, error.env_step or 0)
            self._write(step, {f"fault/{error.where}": math.nan}, due=False)
        self.close()

    # -- figures -------------------------------------------------------------------------------------------
    def _progress_figures(self, trainer: Any) -> dict[str, float]:
        counters, step = asdict(trainer.counters), trainer.counters.clock
        if counters.pop("unit") == "env_steps":
            del counters["env_steps"]  # it is the step of every row
        if not counters["worker_restarts"]:  # most runs have no workers, and most workers no fault
            del counters["worker_restarts"]
        now, (before, step_before) = self.clock(), self._mark
        elapsed = max(now - before - self._paused, 0.0)
        self._wall += elapsed
        self._mark, self._paused = (now, step), 0.0
        figures = {**counters, "wall_s": round(self._wall, 3)}
        rate = "fps" if trainer.counters.unit == "env_steps" else "updates_per_s"
        return {**figures, rate: round((step - step_before) / elapsed, 1)} if elapsed > 0 else figures

    def _write(self, step: int, row: dict[str, float], due: bool) -> None:
        self._written = row
        means = {name: total / count for name, (total, count) in self._pending.items()} if due else {}
        means |= {name: row[name] for name in _CUMULATIVE if name in means}
        for steady in self._active:
            if getattr(steady.logger, "every_iteration", False):
                steady.call("scalars", step, row)
            elif means:
                steady.call("scalars", step, means)
        if due:
            self._pending = {}

    def _warn_of_kl(self, row: Mapping[str, float], step: int) -> None:
        kl, clip = row.get("kl"), row.get("clip_range")
        if self._warned or kl is None or clip is None or not kl > max(_KL_FACTOR * clip, _KL_FLOOR):
            return
        self._warned = True
        _log.warning(
            "at %s env steps an update moved the policy by a mean KL of %.3g, more than %g times the clip "
            "range (%.3g): lower learner.learning_rate or n_epochs, or set learner.target_kl. Said once.",
            f"{step:,}",
            kl,
            _KL_FACTOR,
            clip,
        )

    # -- pictures ------------------------------------------------------------------------------------------
    def video(self, step: int, name: str, path: Path) -> None:
        """Show a recorded video in the loggers that can."""
        self._each("video", step, name, path)

    def _each(self, method: str, *arguments: Any) -> None:
        for steady in self._active:
            steady.call(method, *arguments)

    def _keep_rollout(self, trainer: Any, event: BatchCollected) -> None:
        step = trainer.counters.clock
        if self.cfg.histograms and (self.cfg.every_env_steps is None or self._every.would_be_due(step)):
            self._rollout = event.rollout
        if self._graph_due:
            self._graph_due = False
            example = tree_map(lambda leaf: leaf[0], event.rollout.rows.obs)
            self._each("graph", _PolicyGraph(trainer.agent.model), example)

    def _keep_gradients(self, trainer: Any, event: LearnStep) -> None:
        if self._rollout is not None and self._gradients is None:
            self._gradients = {name: g.detach().clone() for name, g in event.gradients.items()}

    def _histograms(self, trainer: Any, step: int) -> None:
        found = {f"parameters/{name}": p for name, p in trainer.agent.model.named_parameters()}
        found |= {f"gradients/{name}": g for name, g in (self._gradients or {}).items()}
        if self._rollout is not None:
            rows = self._rollout.rows.select_valid()
            found |= dict(tree_paths(rows.action, "actions"))
            if getattr(trainer.agent.model, "has_value", True) and "state" not in rows:
                found["values"] = _values(trainer.agent.model, rows[:_VALUES].obs)
        arrays = {name: np.asarray(tensor.detach().float().cpu()) for name, tensor in found.items()}
        self._each("histograms", step, arrays)

    # -- state ---------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Flush and close every logger."""
        self._each("close")
        self._active = []

    def state_dict(self) -> dict[str, Any]:
        return {
            "every": self._every.state_dict(),
            "pending": dict(self._pending),
            "wall": self._wall,
            "warned": self._warned,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._every.load_state_dict(state["every"])
        self._pending = dict(state["pending"])
        self._wall, self._warned = state["wall"], state["warned"]
        self._graph_due = False


_CUMULATIVE = (
    "steps",
    "updates",
    "episodes",
    "iterations",
    "epochs",
    "worker_restarts",
    "wall_s",
)  # the latest, not a mean


class _PolicyGraph(torch.nn.Module):
    """Policy parameters and value of plain observations: what a tracer can follow."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, obs: Any) -> tuple[Tensor, ...]:
        parameters = self.model.policy.params(obs)[0]
        return (
            (parameters, self.model.value(obs)) if getattr(self.model, "has_value", True) else (parameters,)
        )


def _values(model: Any, obs: Any) -> Tensor:
    """Values `[N]` in eval mode, leaving the model in the mode it was in."""
    with torch.no_grad(), eval_mode(model):
        values: Tensor = model.value(obs)
    return values


def _noise(model: torch.nn.Module) -> dict[str, float]:
    """The mean standard deviation of Gaussian actions, where it is a parameter of its own."""
    found = [p.detach() for name, p in model.named_parameters() if name.endswith("log_std")]
    return {"exploration_std": float(torch.cat([p.flatten() for p in found]).exp().mean())} if found else {}


def _plain(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _with_jsonl(sections: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    return sections if any(s["type"] == "jsonl" for s in sections) else ({"type": "jsonl"}, *sections)


def _build(section: Mapping[str, Any], index: int) -> Logger:
    kind = lookup("logger", section["type"]) if isinstance(section["type"], str) else section["type"]
    fields = {key: value for key, value in section.items() if key != "type"}
    if hasattr(kind, "Config"):
        return kind(parse(kind.Config, fields, f"experiment.loggers.{index}"))
    return kind(**fields)
