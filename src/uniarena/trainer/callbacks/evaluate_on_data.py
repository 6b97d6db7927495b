"""Evaluation of a run that learns from data, on the data: a short fitted-Q evaluation every so often."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Annotated, Any

from uniarena.config import Between, ConfigError, config
from uniarena.learners.offline.fitted_q import FittedQConfig
from uniarena.sampling.on_data import data_for, evaluate_on_data
from uniarena.trainer.callbacks.frequency import Every
from uniarena.trainer.clock import spelled
from uniarena.trainer.events import IterationEnd, TrainingStart

__all__ = ["EvaluateOnData", "EvaluateOnDataConfig"]

_log = logging.getLogger(__name__)
Count = Annotated[int, Between(1)]


@config
class EvaluateOnDataConfig:
    """How often, and how thoroughly."""

    every_env_steps: Count | None = None  # updates between evaluations; None: only at the end
    updates: Count = 1_000  # of each evaluation
    members: Count = 4  # Q-functions of it
    hidden_sizes: tuple[int, ...] = (64, 64)
    deterministic: bool = True  # the mode of the policy; false: samples of it


class EvaluateOnData:
    """Logs `offline/fqe`, the value of the policy from the start of an episode, and the ends of its 95 % interval,
    `offline/fqe_low` and `offline/fqe_high`.

    Each evaluation begins anew, with draws of its own from the run's seed and the number of updates, so that a resumed
    run has the same ones. It ranks the agents of one run; `uniarena eval RUN --data FILE` looks more closely, and says
    how far to trust it.
    """

    Config = EvaluateOnDataConfig

    def __init__(self, cfg: EvaluateOnDataConfig | None = None, **fields: Any) -> None:
        self.cfg: EvaluateOnDataConfig = replace(cfg or EvaluateOnDataConfig(), **fields)
        self._every = Every(self.cfg.every_env_steps)
        self._data: Any = None

    def on_training_start(self, trainer: Any, event: TrainingStart) -> None:
        agent = trainer.agent
        if not hasattr(agent.buffer, "dataset"):
            raise ConfigError(
                "evaluate_on_data is for runs from data, and this one has none",
                "callbacks",
                hint="remove it, or add `data: {path: …}`",
            )
        if agent.actor.initial_state(1) is not None:
            raise ConfigError(
                "evaluate_on_data shows a policy single rows of data, and this one has memory",
                "callbacks",
                hint="remove it; a policy with memory is evaluated in an environment",
            )
        self._data = data_for(agent, agent.buffer.cfg, agent.buffer.dataset)

    def on_iteration_end(self, trainer: Any, event: IterationEnd) -> None:
        if self._every.due(trainer.counters.clock) or (trainer.done and trainer.stop_reason != "interrupted"):
            self._run(trainer)

    def _run(self, trainer: Any) -> None:
        cfg, clock, started = self.cfg, trainer.counters.clock, time.perf_counter()
        fitted = FittedQConfig(updates=cfg.updates, members=cfg.members, hidden_sizes=cfg.hidden_sizes)
        found = evaluate_on_data(
            trainer.agent,
            self._data,
            ("fqe",),
            deterministic=cfg.deterministic,
            cfg=fitted,
            support=False,
            seed=trainer.streams.seed_for(f"on_data/{clock}"),
        ).estimates["fqe"]
        trainer.evaluation_seconds += time.perf_counter() - started
        if found.value is not None and found.interval is not None:
            low, high = found.interval
            trainer.metrics |= {"offline/fqe": found.value, "offline/fqe_low": low, "offline/fqe_high": high}
            said = f"{found.value:.4g} ({low:.4g} to {high:.4g})"
            _log.info("fitted-Q evaluation at %s: %s", spelled(clock, trainer.counters.units), said)

    def state_dict(self) -> dict[str, Any]:
        return {"every": self._every.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._every.load_state_dict(state["every"])
