"""Rules over figures warn, lower the learning rate or stop, and remember what they saw over a resume."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import uniarena
from tests.callbacks.fake_trainer import FakeTrainer
from uniarena.config import ConfigError
from uniarena.trainer.callbacks.rules import Rule, Rules
from uniarena.trainer.loggers.jsonl import read_rows

TINY = {
    "environment": "CartPole-v1",
    "agent": {"policy": {"hidden_sizes": [8]}},
    "learner": {"type": "ppo", "n_steps": 32, "n_epochs": 1, "batch_size": 32},
    "training": {"total_timesteps": 192, "n_eval_episodes": 1, "save_every_env_steps": 64},
}


class Rate:
    def __init__(self) -> None:
        self.factors: list[float] = []

    def scale(self, factor: float) -> None:
        self.factors.append(factor)


def watched(**fields: Any) -> tuple[FakeTrainer, Rate]:
    rate = Rate()
    trainer = FakeTrainer(Rules(rules=(Rule(metric="kl", **fields),))).start()
    trainer.agent.learner = SimpleNamespace(optimizers={"optimizer": rate})
    return trainer, rate


def feed(trainer: FakeTrainer, *values: float) -> None:
    for value in values:
        trainer.iterate(kl=value)


def test_a_mean_above_the_bound_stops_and_a_single_value_does_not():
    trainer, _ = watched(above=0.1, window=3, action="stop")
    feed(trainer, 0.25, 0.0, 0.0, 0.0)
    assert not trainer.should_stop
    feed(trainer, 0.2, 0.2)
    assert trainer.requested == ["kl is 0.1333 on average over 3 values, above 0.1"]


def test_a_mean_below_the_bound():
    trainer, _ = watched(below=0.1, window=2, action="stop", min_env_steps=400)
    feed(trainer, 0.0, 0.0, 0.0)
    assert not trainer.should_stop
    feed(trainer, 0.0)
    assert trainer.should_stop


def test_the_rate_falls_again_only_after_the_pause():
    trainer, rate = watched(above=0.1, window=1, action="lower_lr", factor=0.1, cooldown=3)
    feed(trainer, 1, 1, 1)
    assert rate.factors == [0.1]
    feed(trainer, 1)
    assert rate.factors == [0.1, 0.1]


@pytest.mark.parametrize(("trend", "values"), [("falling", (10, 10, 7, 7)), ("rising", (-10, -10, -7, -7))])
def test_a_trend_compares_two_halves(trend: Any, values: tuple[float, ...]):
    trainer, _ = watched(trend=trend, by=0.25, window=4, action="stop")
    feed(trainer, *reversed(values))
    assert not trainer.should_stop
    feed(trainer, *values)
    assert trainer.requested and trend in trainer.requested[0]


def test_a_warning_is_said_once_and_nan_breaks_every_rule(caplog: pytest.LogCaptureFixture):
    trainer, _ = watched(above=1.0, window=3, cooldown=1)
    feed(trainer, float("nan"), float("nan"))
    assert [record.message for record in caplog.records] == [
        "at 100 env steps kl is not a number. Said once."
    ]


def test_a_figure_that_never_came_is_told(caplog: pytest.LogCaptureFixture):
    trainer = FakeTrainer(Rules(rules=(Rule(metric="kll", above=1.0),))).start()
    trainer.iterate(kl=0.0)
    trainer.end()
    assert "rules watched kll, which never came up; figures: kl" in caplog.text
    caplog.clear()
    trainer = FakeTrainer(Rules(rules=(Rule(metric="eval/return_mean", above=1.0),))).start()
    trainer.iterate(kl=0.0)
    trainer.end("interrupted")
    assert not caplog.records


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "would never act"),
        ({"trend": "rising", "window": 3}, "two halves"),
        ({"above": 1, "factor": 0}, "above"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(fields: dict[str, Any], said: str, tmp_path: Path):
    config = {**TINY, "callbacks": [{"type": "rules", "rules": [{"metric": "kl", **fields}]}]}
    with pytest.raises(ConfigError, match=said):
        uniarena.train(config, run_dir=tmp_path / "run", quiet=True)


def test_a_resumed_run_acts_where_the_uninterrupted_one_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rule = {
        "metric": "entropy",
        "above": 0.0,
        "window": 2,
        "action": "lower_lr",
        "factor": 0.5,
        "cooldown": 3,
    }
    config = {**TINY, "callbacks": [{"type": "rules", "rules": [rule]}]}
    caplog.set_level(logging.WARNING)
    whole = uniarena.train(config, run_dir=tmp_path / "whole", quiet=True)
    half = uniarena.train(config, ["training.total_timesteps=96"], run_dir=tmp_path / "half", quiet=True)
    uniarena.resume(half.run, ["training.total_timesteps=192"], quiet=True)
    ours, theirs = (
        [row["learning_rate"] for row in read_rows(run / "metrics.jsonl")] for run in (whole.run, half.run)
    )
    assert ours == theirs == [3e-4, 3e-4, 1.5e-4, 1.5e-4, 1.5e-4, 7.5e-5]
