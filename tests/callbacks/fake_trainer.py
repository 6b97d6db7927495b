"""A trainer that only counts: drives callbacks through their events without any learning."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from uniarena import checkpoint
from uniarena.batch import Batch, Rollout
from uniarena.seeding import Streams
from uniarena.trainer.events import (
    BatchCollected,
    IterationEnd,
    LearnStep,
    TrainingEnd,
    TrainingStart,
)
from uniarena.trainer.schedule import Counters


class FakeAgent:
    """Acts by a rule `(obs [B, …], is_first [B], deterministic, generator) -> action [B]` and notes what it
    was shown.
    """

    def __init__(self, rule: Callable[..., torch.Tensor] | None = None) -> None:
        self.rule = rule or (
            lambda obs, is_first, deterministic, generator: torch.zeros(len(is_first), dtype=torch.int64)
        )
        self.seen: list[tuple[Any, torch.Tensor]] = []
        self.model, self.device = TinyModel(), torch.device("cpu")
        self.actor = SimpleNamespace(pick=self.pick, initial_state=torch.zeros)

    def save(self, path: Path) -> Path:
        return checkpoint.save(path, {"agent": {}}, {"kind": "agent"})

    def pick(self, obs, state, is_first, deterministic, generator):
        self.seen.append((obs.clone() if isinstance(obs, torch.Tensor) else obs, is_first.clone()))
        state = torch.where(is_first, torch.zeros(()), state) + 1
        self.state = state
        return self.rule(obs, is_first, deterministic, generator), state


class TinyModel(nn.Module):
    has_value = True

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(1, 2), nn.Linear(1, 1)
        self.policy = SimpleNamespace(params=lambda obs: (self.actor(obs), None))

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)


class FakeTrainer:
    def __init__(
        self, *callbacks: Any, run_dir: Path | None = None, total: int = 1000, env_factory: Any = None
    ) -> None:
        self.callbacks, self.run_dir, self.total_env_steps = list(callbacks), run_dir, total
        self.counters, self.metrics, self.streams = Counters(), {}, Streams(0)
        self.agent, self.should_stop, self.stop_reason = FakeAgent(), False, "finished"
        self.sampler = SimpleNamespace(columns=4)
        self.chunk = 100
        self.schedule = SimpleNamespace(
            env_steps=lambda c, columns, total: min(self.chunk, total - c.env_steps)
        )
        self.env_factory = env_factory
        self.saved: list[tuple[str, int]] = []
        self.emitted: list[Any] = []
        self.requested: list[str] = []
        self.last_evaluation: Any = None

    @property
    def done(self) -> bool:
        return self.should_stop or self.counters.env_steps >= self.total_env_steps

    def request_stop(self, reason: str) -> None:
        self.should_stop, self.stop_reason = True, reason
        self.requested.append(reason)

    def emit(self, event: Any) -> None:
        self.emitted.append(event)
        self.last_evaluation = getattr(event, "result", self.last_evaluation)
        for callback in self.callbacks:
            method = getattr(callback, event.method, None)
            if method is not None:
                method(self, event)

    def start(self, resumed: bool = False) -> FakeTrainer:
        self.emit(TrainingStart(resumed))
        return self

    def iterate(
        self, valid: int | None = None, gradients: dict[str, torch.Tensor] | None = None, **metrics: float
    ) -> None:
        """One turn of the loop: a chunk of which `valid` rows count (None: all)."""
        wanted = self.schedule.env_steps(self.counters, self.sampler.columns, self.total_env_steps)
        rows = math.ceil(wanted / self.sampler.columns) * self.sampler.columns
        self.counters.steps += rows
        self.counters.env_steps += rows if valid is None else valid
        self.metrics = {name.replace("__", "/"): value for name, value in metrics.items()}
        self.emit(BatchCollected(rollout(rows // self.sampler.columns, self.sampler.columns), []))
        if gradients is not None:
            self.emit(LearnStep(gradients, None))  # type: ignore[arg-type]
        self.counters.updates += 1
        self.counters.iterations += 1
        self.emit(IterationEnd())

    def run(self, until: int) -> None:
        while self.counters.env_steps < until:
            self.iterate()

    def end(self, reason: str = "finished") -> None:
        self.emit(TrainingEnd(reason))

    def save(self, kind: str) -> Path | None:
        self.saved.append((kind, self.counters.env_steps))
        if self.run_dir is None:
            return None
        name = "best" if kind == "best" else str(self.counters.env_steps)
        state = {"callbacks": [c.state_dict() if hasattr(c, "state_dict") else None for c in self.callbacks]}
        meta = {"kind": kind, "counters": asdict(self.counters)}
        return checkpoint.save(self.run_dir / "checkpoints" / name, state, meta)

    def resume(self, folder: Path) -> FakeTrainer:
        """Take over counters and callbacks' states of a checkpoint, then start."""
        state, meta = checkpoint.load(folder)
        self.counters = Counters(**meta["counters"])
        for callback, saved in zip(self.callbacks, state["callbacks"], strict=True):
            if saved is not None:
                callback.load_state_dict(saved)
        return self.start(resumed=True)


def rollout(rows: int, columns: int) -> Rollout:
    obs = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns, 1)
    fields = {
        "obs": obs,
        "action": torch.ones(rows, columns, dtype=torch.int64),
        "valid": torch.ones(rows, columns, dtype=torch.bool),
    }
    empty = Batch((columns,), is_first=torch.zeros(columns, dtype=torch.bool))
    return Rollout(Batch((rows, columns), fields), empty, empty)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def steps_of(pairs: Sequence[tuple[str, int]], kind: str) -> list[int]:
    return [step for name, step in pairs if name == kind]
