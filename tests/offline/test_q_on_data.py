"""Q on the data as a health figure, and the doctor who reads it: runs that are made ill, and one that is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.offline.test_regime import config, rows_of
from uniarena import Agent, train
from uniarena.data import Episode, Recorder
from uniarena.run import doctor, said

ILLNESSES = ("offline_q_diverged", "offline_q_overestimation")


def narrow(path: Path, episodes: int = 20, steps: int = 50) -> Path:
    """Torques near 0 alone, in a world that goes its own way; the more torque, the better, as far as anybody tried."""
    rng = np.random.default_rng(0)
    env = gym.make("Pendulum-v1")
    recorder = Recorder(env.observation_space, env.action_space, {"id": "Pendulum-v1"}, {"made_by": "a test"})
    env.close()
    for _ in range(episodes):
        angle = np.cumsum(rng.normal(0.0, 0.3, steps + 1)) + rng.uniform(-np.pi, np.pi)
        obs = np.stack([np.cos(angle), np.sin(angle), np.zeros(steps + 1)], 1).astype(np.float32)
        ends = np.zeros((2, steps), bool)
        ends[1, -1] = True
        action = rng.normal(0.0, 0.05, (steps, 1)).astype(np.float32)
        reward = obs[:-1, 0] - 1.5 + 5.0 * action[:, 0]
        recorder.add(Episode(obs, action, reward, ends[0], ends[1], True))
    return recorder.save(path)


def learned(run: Path, data: Path, learner: dict[str, Any], updates: int = 600) -> list[dict[str, Any]]:
    part = updates // 10
    settings = config("td3", "Pendulum-v1", total_updates=updates, log_interval=part, save_interval=updates)
    every = {"type": "monitor", "every_env_steps": part}
    settings |= {
        "data": {"path": str(data)},
        "agent": {"policy": {"hidden_sizes": [32, 32]}},
        "learner": {"batch_size": 64, "gamma": 0.9, "learning_rate": 3e-3, "tau": 0.1, **learner},
        "callbacks": [every, {"type": "evaluate", "at_end": False, "every_env_steps": updates}],
    }
    train(settings, run_dir=run, quiet=True)
    return rows_of(run)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return narrow(tmp_path_factory.mktemp("data") / "narrow.npz")


@pytest.mark.parametrize("name", ["td3", pytest.param("sac", marks=pytest.mark.slow)])
def test_a_learner_that_is_not_held_believes_in_what_was_never_tried(
    name: str, data: Path, tmp_path: Path
) -> None:
    rows = learned(tmp_path / "run", data, {"type": name, "n_critics": 1})
    assert rows[-1]["health/data_q_policy"] > rows[-1]["health/data_return_best"]
    findings, _ = doctor(tmp_path / "run")
    [finding] = [f for f in findings if f.illness in ILLNESSES]
    assert finding.unit == "updates" and finding.changes


def test_one_that_is_held_too_weakly_diverges(data: Path, tmp_path: Path) -> None:
    rows = learned(tmp_path / "run", data, {"type": "td3_bc"})
    assert rows[-1]["health/data_q"] > rows[-1]["health/data_return_high"]
    assert "offline_q_diverged" in [finding.illness for finding in doctor(tmp_path / "run")[0]]


@pytest.mark.parametrize("learner", [{"type": "iql"}, pytest.param({"type": "awac"}, marks=pytest.mark.slow)])
def test_one_that_is_held_does_not(learner: dict[str, Any], data: Path, tmp_path: Path) -> None:
    rows = learned(tmp_path / "run", data, learner)
    last = rows[-1]
    assert last["health/data_return_low"] < last["health/data_q"] < last["health/data_return_high"]
    assert [f.illness for f in doctor(tmp_path / "run")[0] if f.illness in ILLNESSES] == []
    [sentence] = said(tmp_path / "run")
    assert sentence.startswith("Q on the data: ")


def test_cloning_has_no_q(data: Path, tmp_path: Path) -> None:
    rows = learned(tmp_path / "run", data, {"type": "bc", "tau": None}, 20)
    assert not any("data_q" in name for row in rows for name in row)
    assert said(tmp_path / "run") == ["Q on the data was not measured: bc learns no Q"]


def short(run: Path, data: Path, monitor: dict[str, Any], extra: Any = ()) -> Any:
    """A run that ends long before the first look."""
    settings = config("iql", "Pendulum-v1", total_updates=40, n_eval_episodes=1)
    settings |= {"data": {"path": str(data)}, "callbacks": [{"type": "monitor", **monitor}]}
    train(settings, run_dir=run, quiet=True, callbacks=extra)
    return Agent.load(run / "checkpoints" / "40", trust=True) if not extra else None


def test_a_short_run_is_looked_at_where_it_ends(data: Path, tmp_path: Path) -> None:
    watched, blind = (
        short(tmp_path / name, data, {"networks": name == "watched"}) for name in ("watched", "blind")
    )
    state, other = watched.model.state_dict(), blind.model.state_dict()
    assert state and all(torch.equal(state[key], other[key]) for key in other)
    assert ["health/data_q" in row for row in rows_of(tmp_path / "watched")] == [False, False, False, True]
    [sentence] = said(tmp_path / "watched")
    assert sentence.startswith("Q on the data: ") and "nan" not in sentence
    assert said(tmp_path / "blind") == [
        "Q on the data was not measured: the callback monitor has networks: false"
    ]


class AsksToStop:
    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        if trainer.counters.updates == 20:
            trainer.request_stop("it is enough")


def test_so_is_one_that_a_callback_ends(data: Path, tmp_path: Path) -> None:
    short(tmp_path / "run", data, {}, [AsksToStop()])
    rows = rows_of(tmp_path / "run")
    assert rows[-1]["updates"] == 20 and "health/data_q" in rows[-1] and "value_loss" in rows[-1]
