"""Evaluation while training: whole episodes in environments of its own, without moving the training
stream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from uniarena.config import Between, Reference, config
from uniarena.envs.protocol import Env
from uniarena.sampling.evaluation import EvalResult, evaluate_agent
from uniarena.trainer.callbacks.frequency import Every
from uniarena.trainer.clock import spelled
from uniarena.trainer.events import IterationEnd, TrainingEnd, TrainingStart, ValidationEpoch

__all__ = ["Evaluate", "EvaluateConfig"]

_log = logging.getLogger(__name__)
Count = Annotated[int, Between(1)]


@config
class EvaluateConfig:
    """Evaluation in an environment of its own."""

    every_env_steps: Count | None = None  # environment steps between evaluations; None: only at the end
    n_episodes: Count = 10  # episodes of one evaluation
    deterministic: bool = True  # the mode of the policy; false: samples of it
    also_stochastic: bool = False  # report the other mode too, each time; at the end both always are
    num_envs: Count | None = None  # environments that run them; None: one per episode, at most 8
    at_end: bool = True  # evaluate when training ends (unless it is interrupted)
    reference: Reference | None = None  # returns that make 0 and 100 of a score; None: training.reference


class Evaluate:
    """Evaluates the agent every so often and at the end, in both modes then.

    Each evaluation has episodes of its own, drawn from the run's seed and the number of environment steps, so
    an evaluation after a resume is the one that would have been. Figures are logged as `eval/…`, those of the
    other mode as `eval_stochastic/…` or `eval_deterministic/…`; each result is emitted as `ValidationEpoch`.

    Attributes:
        results: mode → the latest `EvalResult`.
    """

    Config = EvaluateConfig

    def __init__(self, cfg: EvaluateConfig | None = None, **fields: Any) -> None:
        self.cfg: EvaluateConfig = replace(cfg or EvaluateConfig(), **fields)
        self.results: dict[str, EvalResult] = {}
        self._every = Every(self.cfg.every_env_steps)
        self._env: Env | None = None
        self._make: Callable[..., Env]
        self._evaluated_at = -1

    def on_training_start(self, trainer: Any, event: TrainingStart) -> None:
        self._make = trainer.env_factory  # where none can be made, it is said now and not after hours

    def on_iteration_end(self, trainer: Any, event: IterationEnd) -> None:
        last = self._wanted_at_end(trainer.stop_reason) and trainer.done
        if self._every.due(trainer.counters.clock) or last:
            self._run(trainer, last, self.cfg.also_stochastic)

    def on_training_end(self, trainer: Any, event: TrainingEnd) -> None:
        done = self._evaluated_at == trainer.counters.clock and len(self.results) == 2
        done = done and trainer.last_evaluation is not None  # None: it was of an agent that was given up
        if self._wanted_at_end(event.reason) and not done:  # a later callback asked to stop
            self._run(trainer, last=True)
        self.close()

    def _wanted_at_end(self, reason: str) -> bool:
        """Whoever interrupts a run waits for it to be saved, not evaluated."""
        return self.cfg.at_end and reason != "interrupted"

    def on_exception(self, trainer: Any, event: Any) -> None:
        self.close()

    def _run(self, trainer: Any, last: bool, both: bool = False) -> None:
        """Evaluate; at the end of the run in both modes."""
        cfg, steps = self.cfg, trainer.counters.clock
        started = time.perf_counter()
        env = self._environment(trainer)
        setup = time.perf_counter() - started
        modes = [not cfg.deterministic, cfg.deterministic] if last or both else [cfg.deterministic]
        self.results, self._evaluated_at = {}, steps
        for (
            deterministic
        ) in modes:  # the asked-for mode comes last, so that it is what others see as the latest
            seed = trainer.streams.seed_for(f"evaluation/{steps}")
            result = evaluate_agent(
                trainer.agent, env, cfg.n_episodes, deterministic=deterministic, seed=seed
            )
            result = replace(result, seconds=result.seconds + setup, reference=cfg.reference)
            setup = 0.0
            self.results[result.mode] = result
            prefix = "eval" if deterministic == cfg.deterministic else f"eval_{result.mode}"
            trainer.metrics.update({f"{prefix}/{name}": value for name, value in result.figures().items()})
            told = (
                last and deterministic == cfg.deterministic
            )  # it is the run's result, which is shown as such
            args = spelled(steps, trainer.counters.units), result
            _log.info("evaluation at %s, %s", *args, extra={"on_terminal": not told})
            trainer.emit(ValidationEpoch(result))

    def _environment(self, trainer: Any) -> Env:
        if self._env is None:
            count = self.cfg.num_envs or min(self.cfg.n_episodes, 8)
            self._env = self._make(num_envs=count, seed=trainer.streams.seed_for("evaluation"))
        return self._env

    def close(self) -> None:
        """Close the evaluation environments."""
        env, self._env = self._env, None  # once: closing may hang, and be interrupted
        if env is not None:
            env.close()

    def state_dict(self) -> dict[str, Any]:
        return {"every": self._every.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._every.load_state_dict(state["every"])
