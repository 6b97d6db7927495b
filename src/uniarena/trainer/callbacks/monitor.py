"""Health figures of a run, from what lies about at the end of an iteration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import torch

from uniarena.batch import Batch
from uniarena.config import Between, config
from uniarena.trainer.events import IterationEnd, TrainingEnd, TrainingStart
from uniarena.trainer.health import dataset, experience, networks, prediction
from uniarena.trainer.health.sample import Newest, newest

__all__ = ["Monitor", "MonitorConfig"]

_log = logging.getLogger(__name__)
_DATA = "health/data_"
_EXPLORATION = ("epsilon", "temperature", "sigma")


@config
class MonitorConfig:
    """How often to look at the health of a run."""

    every_env_steps: Annotated[int, Between(1)] = 2_000  # environment steps between two looks, at least
    networks: bool = True  # also one pass of the networks over the newest rows, without gradients


class Monitor:
    """Adds `health/…`, `gradient/…` and `update_ratio/…` to the figures of an iteration (`trainer.health.FIGURES`).

    It looks at the newest rows and at the last step's gradients, takes no step, draws no random number and keeps
    nothing that a checkpoint would have to hold: a run with it and one without have the same weights. Q on the data
    that a run learns from is looked at once more where the run ends, however short it was.
    """

    Config = MonitorConfig

    def __init__(self, cfg: MonitorConfig | None = None, **fields: Any) -> None:
        self.cfg: MonitorConfig = replace(cfg or MonitorConfig(), **fields)
        self._env_steps = self._updates = 0  # when the last iteration ended
        self._moves: networks.Moves | None = None
        self._centre: torch.Tensor | None = None
        self._blind, self._failed = not self.cfg.networks, False

    def on_training_start(self, trainer: Any, event: TrainingStart) -> None:
        self._moves = networks.Moves(trainer.agent.model.named_parameters())
        self._mark(trainer)

    def on_iteration_end(self, trainer: Any, event: IterationEnd) -> None:
        every, before = self.cfg.every_env_steps, self._env_steps
        if trainer.counters.clock // every > before // every:
            figures = self._tried(trainer)
            trainer.metrics.update({name: value for name, value in figures.items() if value == value})
        elif trainer.done and trainer.stop_reason != "interrupted":
            self._look_at_data(trainer)
        self._mark(trainer)

    def on_training_end(self, trainer: Any, event: TrainingEnd) -> None:
        """A later callback may have asked to stop."""
        looked = any(name.startswith(_DATA) for name in trainer.metrics)
        if trainer.metrics and event.reason != "interrupted" and not looked:
            self._look_at_data(trainer)

    def _look_at_data(self, trainer: Any) -> None:
        if not self._blind:
            trainer.metrics.update(self._guarded(dataset.of_dataset, trainer.agent, trainer.metrics))

    def _mark(self, trainer: Any) -> None:
        """Where things are when an iteration ends: what the next one is compared with, resumed or not."""
        self._env_steps, self._updates = trainer.counters.clock, trainer.counters.updates
        if self._moves is not None:
            self._moves.mark()
        normalizer = trainer.agent.normalizer
        self._centre = None if normalizer is None else normalizer.centre.clone()

    def _tried(self, trainer: Any) -> dict[str, float]:
        """Figures of this iteration. Whoever only looks must not end a run: what fails here is said once."""
        try:
            return self._look(trainer)
        except Exception as error:
            if not self._failed:
                _log.warning(
                    "health figures fail, training goes on: %s: %s",
                    type(error).__name__,
                    error,
                    exc_info=True,
                )
            self._failed = True
            return {}

    def _look(self, trainer: Any) -> dict[str, float]:
        found = self._of_updates(trainer)
        explorer = trainer.agent.explorer
        level = next((getattr(explorer, name) for name in _EXPLORATION if hasattr(explorer, name)), None)
        if level is not None:
            found["health/exploration"] = float(level)
        rows = newest(trainer)
        return found if rows is None else {**found, **self._of_rows(trainer, rows)}

    def _of_updates(self, trainer: Any) -> dict[str, float]:
        agent = trainer.agent
        found = {"health/staleness": _staleness(trainer)} | _policy_lag(trainer, self._updates)
        if trainer.counters.updates > self._updates and self._moves is not None:
            found |= networks.of_gradients(agent.learner)
            found |= self._moves.ratios()
        found |= networks.target_gap(agent.learner)
        if self._centre is not None and bool((agent.normalizer.moments.count > 0).all()):
            shift = (agent.normalizer.centre - self._centre).abs() * agent.normalizer.inv_std
            found["health/normalizer_shift"] = float(shift.max())
        return found

    def _of_rows(self, trainer: Any, rows: Newest) -> dict[str, float]:
        agent, batch = trainer.agent, rows.rows
        found = experience.of_observations(batch.obs, batch.valid, agent.normalizer)
        found |= experience.of_actions(batch.action, batch.valid, agent.action_map.policy_space)
        weight = float(sum(bonus.weight(trainer.progress) for bonus in agent.bonuses))
        found |= experience.of_rewards(batch, trainer.metrics, weight)
        return found if self._blind else {**found, **self._of_networks(trainer, rows)}

    def _of_networks(self, trainer: Any, rows: Newest) -> dict[str, float]:
        found = self._guarded(prediction.of_networks, trainer.agent, rows, trainer.metrics)
        return found | (
            {} if self._blind else self._guarded(dataset.of_dataset, trainer.agent, trainer.metrics)
        )

    def _guarded(self, figures: Callable[..., dict[str, float]], *args: Any) -> dict[str, float]:
        try:
            return figures(*args)
        except Exception as error:  # a user's own model may want to be called in another way
            self._blind = True
            _log.warning("figures of the networks are left out: %s: %s", type(error).__name__, error)
            return {}


def _staleness(trainer: Any) -> float:
    """Half of what updates draw from: rows of a rollout, or all that replay holds."""
    buffer = trainer.agent.buffer
    if hasattr(buffer, "recent"):
        return buffer.size / 2
    rows: Batch = trainer.rollout.rows
    return rows.shape[0] * rows.shape[1] / 2


def _policy_lag(trainer: Any, before: int) -> dict[str, float]:
    """Of a rollout: updates between the policy that acted and the one that the update began with, on average.

    Args:
        before: updates when the iteration began.
    """
    if hasattr(trainer.agent.buffer, "recent") or "policy_version" not in trainer.rollout.rows:
        return {}
    rows: Batch = trainer.rollout.rows
    return {"health/policy_lag": before - float(rows.policy_version.double().mean())}
