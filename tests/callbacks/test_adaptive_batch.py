"""Minibatches grow while that is faster and learns no worse, and a resumed run keeps the size that was chosen."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import uniarena
from tests.fakes.envs import EchoEnv
from uniarena import Agent, Trainer, make_env
from uniarena.batch import Batch
from uniarena.config import ConfigError, parse
from uniarena.optim import Minimize
from uniarena.trainer.callbacks.adaptive_batch import AdaptiveBatch, AdaptiveBatchConfig, memory_of
from uniarena.trainer.events import BatchCollected, IterationEnd, TrainingStart, UpdateEnd
from uniarena.trainer.loggers.jsonl import read_rows

ROWS = 1024


class World:
    """A trainer in which time and memory are what a test says."""

    def __init__(self, rates: dict[int, float], figures: dict[int, dict[str, float]] | None = None) -> None:
        self.rates, self.figures = rates, figures or {}
        self.now, self.used, self.free = 0.0, 100, 10_000
        self.callback = AdaptiveBatch(
            base_batch=64,
            max_batch=512,
            updates=3,
            clock=lambda: self.now,
            memory=lambda _: (self.used, self.free),
        )
        self.minibatches = SimpleNamespace(size=None)
        self.trainer: Any = SimpleNamespace(
            agent=SimpleNamespace(
                learner=SimpleNamespace(minibatches=self.minibatches), device=torch.device("cpu"), buffer=None
            ),
            counters=SimpleNamespace(env_steps=0),
            metrics={},
        )
        valid = torch.ones(ROWS // 4, 4, dtype=torch.bool)
        self.rollout = SimpleNamespace(rows=Batch((ROWS // 4, 4), valid=valid))
        self.callback.on_training_start(self.trainer, TrainingStart())

    def iterate(self, count: int = 3) -> World:
        for _ in range(count):
            size = self.minibatches.size
            self.callback.on_batch_collected(self.trainer, BatchCollected(self.rollout, []))  # type: ignore[arg-type]
            self.now += 2 * ROWS / self.rates[size]
            metrics = {"epochs_done": 2.0, "kl": 0.01, "clip_range": 0.2, **self.figures.get(size, {})}
            self.callback.on_update_end(self.trainer, UpdateEnd(metrics))
            self.now += 5.0  # whatever else there is
            self.callback.on_iteration_end(self.trainer, IterationEnd())
            self.trainer.counters.env_steps += ROWS
        return self


def test_it_grows_to_the_largest_while_that_is_faster(caplog: pytest.LogCaptureFixture) -> None:
    world = World({64: 100.0, 128: 150.0, 256: 200.0, 512: 300.0})
    sizes = [world.minibatches.size]
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            sizes.append(world.iterate().minibatches.size)
    assert sizes == [64, 128, 256, 512, 512]
    assert world.callback.settled == "it is max_batch"
    assert world.callback.rates == pytest.approx([100.0, 150.0, 200.0, 300.0])
    assert world.trainer.metrics["batch_size"] == 512.0
    assert world.trainer.metrics["samples_per_second"] == pytest.approx(300.0)
    assert "512 rows from 11,264 env steps on: it is max_batch" in caplog.text


def test_a_size_that_is_hardly_faster_is_given_up() -> None:
    world = World({64: 100.0, 128: 150.0, 256: 155.0})
    world.iterate(9)
    assert world.minibatches.size == 128 and world.callback.settled == "256 rows give +3% samples/s"
    world.rates[128] = 1.0  # it has settled, whatever comes
    world.iterate(9)
    assert world.minibatches.size == 128


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({}, {"kl": 0.31}, "the KL is 0.31"),
        ({"explained_variance": 0.9}, {"explained_variance": 0.7}, "fell from 0.90 to 0.70"),
        ({"value_loss": 1.0}, {"value_loss": 2.5}, "the value_loss rose from 1 to 2.5"),
    ],
)
def test_a_size_that_learns_worse_is_given_up(
    before: dict[str, float], after: dict[str, float], why: str
) -> None:
    world = World({64: 100.0, 128: 200.0}, {64: before, 128: after}).iterate(6)
    assert world.minibatches.size == 64 and why in world.callback.settled


def test_a_better_value_may_have_a_larger_loss() -> None:
    figures = {
        64: {"explained_variance": 0.1, "value_loss": 1.0},
        128: {"explained_variance": 0.9, "value_loss": 9.0},
    }
    assert World({64: 100.0, 128: 200.0, 256: 1.0}, figures).iterate(6).minibatches.size == 256


def test_nothing_is_tried_that_memory_may_not_hold() -> None:
    world = World({64: 100.0})
    world.used, world.free = 100 + 80 * 2**20, 99 * 2**20
    world.iterate()
    assert world.minibatches.size == 64
    assert world.callback.settled == "80 MiB more may be needed, and 99 are free"


def test_a_whole_rollout_is_the_largest_minibatch() -> None:
    world = World({size: float(size) for size in (64, 128, 256, 512, 1024)})
    world.callback.cfg = AdaptiveBatchConfig(base_batch=64, max_batch=8192, updates=3)
    world.rates[2048] = 1e9
    world.iterate(20)
    assert world.minibatches.size == 1024 and world.callback.settled == "it is a whole rollout"


def test_the_first_update_of_a_size_does_not_count() -> None:
    world = World({64: 1.0, 128: 200.0})
    world.iterate(1)
    world.rates[64] = 100.0
    world.iterate(2)
    assert world.callback.rates == pytest.approx([100.0])


def test_what_was_found_is_saved() -> None:
    rates = {64: 100.0, 128: 150.0, 256: 160.0}
    world, other = World(rates).iterate(4), World(rates)  # in the middle of measuring 128
    other.callback.load_state_dict(world.callback.state_dict())
    other.callback.on_training_start(other.trainer, TrainingStart(True))
    assert other.minibatches.size == 128
    other.iterate(6)
    assert other.minibatches.size == 128 and "256 rows" in other.callback.settled
    assert other.callback.rates == pytest.approx([100.0, 150.0])


def test_bounds_are_checked_and_memory_is_measured() -> None:
    with pytest.raises(ConfigError, match="less than base_batch") as caught:
        parse(AdaptiveBatchConfig, {"base_batch": 256, "max_batch": 128}, "callbacks.0")
    assert caught.value.path == "callbacks.0.max_batch"
    used, free = memory_of(torch.device("cpu"))
    assert used > 2**20 and free > 2**20


@pytest.mark.parametrize("learner", ["ppo", "dqn"])
def test_the_size_reaches_the_learner(learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"type": "ppo", "n_steps": 64, "n_epochs": 2}
    if learner == "dqn":
        settings = {"type": "dqn", "learning_starts": 64, "updates_per_env_step": 0.25}
    sizes: list[int] = []
    step = Minimize.__call__

    def seen(self: Minimize, loss_fn: Any, batch: Any, optimizer: Any) -> Any:
        sizes.append(len(batch))
        return step(self, loss_fn, batch, optimizer)

    monkeypatch.setattr(Minimize, "__call__", seen)
    callback = AdaptiveBatch(base_batch=16, max_batch=32, updates=3, min_gain=0.0, clock=iter_clock())
    env = make_env(EchoEnv, 2)
    agent = Agent.assemble(env, settings, parts={"buffer": {"capacity": 500}} if learner == "dqn" else None)
    trainer = Trainer(agent, env, callbacks=[callback])
    try:
        trainer.fit(1024)
    finally:
        trainer.close()
    assert set(sizes) == {16, 32} and callback.size == 32 and callback.settled == "it is max_batch"


def iter_clock() -> Any:
    """Each look at the clock comes sooner after the last one than that did: ever faster."""
    state = {"now": 0.0, "step": 1.0}

    def clock() -> float:
        state["now"] += state["step"]
        state["step"] *= 0.99
        return state["now"]

    return clock


def test_a_run_with_it_resumes_with_its_size(tmp_path: Path) -> None:
    config = {
        "environment": "CartPole-v1",
        "agent": {"policy": {"hidden_sizes": [8]}},
        "learner": {"type": "ppo", "n_steps": 32, "n_epochs": 1},
        "training": {"total_timesteps": 192, "n_eval_episodes": 1, "save_every_env_steps": 64},
        "callbacks": [
            {"type": "adaptive_batch", "base_batch": 8, "max_batch": 16, "updates": 2, "min_gain": 0}
        ],
    }
    uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    first = list(read_rows(tmp_path / "run" / "metrics.jsonl"))
    uniarena.resume(tmp_path / "run", ["training.total_timesteps=256"], quiet=True)
    rows = list(read_rows(tmp_path / "run" / "metrics.jsonl"))
    assert {row["batch_size"] for row in first} <= {8.0, 16.0} and len(rows) > len(first)
    assert rows[len(first)]["batch_size"] == first[-1]["batch_size"]
