"""Counters, schedules, stop conditions and the x-axis of figures go on where they were."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.resume.runs import KILLED, figures, last_checkpoint, resume, train
from tests.resume.test_exact import config, ppo
from uniarena import checkpoint

LINEAR = {"type": "linear", "start": 1e-3, "end": 0.0}


def test_counters_and_schedules_stand_where_they_should_after_stops(tmp_path: Path) -> None:  # case B46
    """A rate that falls over 500 steps with two workers; stopped at 200, continued to 400, then to the end."""
    settings = config(
        {"id": "CartPole-v1", "vectorization": "async", "num_envs": 2},
        ppo(n_steps=20, learning_rate=LINEAR),
        total=500,
        save=500,
    )
    run = tmp_path / "run"
    for start, (disturb, steps) in zip(
        (train, resume, resume), (("stop@5", 200), ("stop@5", 400), ("", 500)), strict=True
    ):
        arguments: tuple[Any, ...] = (settings, run) if start is train else (run,)
        assert start(*arguments, disturb) == 0  # type: ignore[operator]
        state, meta = checkpoint.load(last_checkpoint(run))
        assert meta["counters"] == {
            "env_steps": steps,
            "steps": steps,
            "updates": -(-steps // 40),
            "iterations": -(-steps // 40),
            "epochs": -(-steps // 40) * 2,
            "episodes": meta["counters"]["episodes"],
            "unit": "env_steps",
            "worker_restarts": 0,
        }
        rate = state["agent"]["learner"]["_extra_state"]["optimizers"]["optimizer"]["torch"]["param_groups"][
            0
        ]["lr"]
        assert rate == pytest.approx(1e-3 * (1 - steps / 500))
    rows = figures(run)
    assert [row["env_steps"] for row in rows] == [*range(40, 481, 40), 500]
    for row in rows:
        assert row["learning_rate"] == pytest.approx(1e-3 * (1 - row["env_steps"] / 500), abs=1e-9)
        assert row["updates"] == row["iterations"] == -(-row["env_steps"] // 40)
    assert resume(run) == 3, "there is nothing left to do"


@pytest.mark.slow
def test_the_rate_is_on_its_line_after_4000_and_8000_of_10000_steps(tmp_path: Path) -> None:  # case B46
    settings = config(
        {"id": "CartPole-v1", "vectorization": "async", "num_envs": 2},
        ppo(n_steps=100, batch_size=100, learning_rate=LINEAR),
        total=10_000,
        save=10_000,
    )
    settings["training"]["eval_every_env_steps"] = 10_000
    run = tmp_path / "run"
    assert train(settings, run, "stop@20") == 0
    assert resume(run, "stop@20") == 0
    assert checkpoint.read_meta(last_checkpoint(run))["counters"]["env_steps"] == 8000
    assert [row["env_steps"] for row in figures(run)] == list(range(200, 8001, 200))
    for row in figures(run):
        assert row["learning_rate"] == pytest.approx(1e-3 * (1 - row["env_steps"] / 10_000), abs=1e-9)


def test_the_axis_of_figures_goes_on_in_the_same_folder(tmp_path: Path) -> None:  # case B49
    settings = config({"id": "CartPole-v1"}, ppo(), total=768)
    settings["experiment"]["loggers"] = [{"type": "jsonl"}, {"type": "tensorboard"}]
    run = tmp_path / "run"
    assert train(settings, run, "KILL@4") == KILLED
    written = figures(run)
    assert [row["env_steps"] for row in written] == [128, 256, 384]
    assert int(last_checkpoint(run).name) == 256, "the third row is beyond it"
    assert resume(run) == 0
    rows = figures(run)
    assert [row["env_steps"] for row in rows] == [128, 256, 384, 512, 640, 768]
    assert rows[:3] == written, "and what was done again is the same"
    events = EventAccumulator(str(run / "events")).Reload()
    tags = events.Tags()["scalars"]
    assert len(tags) > 10
    for tag in tags:
        steps = [event.step for event in events.Scalars(tag)]
        assert all(a < b for a, b in pairwise(steps)), (tag, steps)
        assert steps[-1] == 768 or "return" in tag or "length" in tag or "success" in tag
    assert [event.step for event in events.Scalars("training/updates")] == [128, 256, 384, 512, 640, 768]
