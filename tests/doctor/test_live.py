"""The doctor beside a run, and as a command on what it left."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import uniarena
from tests.callbacks.fake_trainer import FakeTrainer
from uniarena import cli
from uniarena.analysis.doctor.callback import Doctor
from uniarena.config import ConfigError
from uniarena.trainer.loggers.jsonl import read_rows

SMALL = {"policy": {"hidden_sizes": [8]}}


class AtOnce(gymnasium.Env):
    """Is over with the first step."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), float(action), True, False, {}


def run(folder: Path, env: Any, learner: dict[str, Any], steps: int, **more: Any) -> Any:
    config = {
        "experiment": {"loggers": ["jsonl"]},
        "environment": env,
        "agent": SMALL,
        "learner": {"type": "ppo", "n_epochs": 1, **learner},
        "training": {"total_timesteps": steps, "n_eval_episodes": 1},
        **more,
    }
    return uniarena.train(config, run_dir=folder, quiet=True)


def test_episodes_of_length_one_are_diagnosed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):  # case B91
    ended = run(tmp_path / "run", {"id": AtOnce}, {"n_steps": 32, "batch_size": 32}, 128)
    capsys.readouterr()
    assert cli.invoke(["doctor", str(ended.run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == 4
    assert [finding["illness"] for finding in told["findings"]] == ["episodes_of_length_one"]
    assert cli.invoke(["doctor", str(ended.run)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("episodes of length one: episodes end with their first step (32 to 128 env steps)")
    assert "cause 1: the environment says terminated at once" in text


@pytest.mark.parametrize("sampling", ["local", "pipelined"])
def test_updates_that_go_too_far_are_told_while_the_run_goes_on(
    sampling: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):  # case B31
    caplog.set_level(logging.WARNING)
    learner = {"n_steps": 128, "n_epochs": 10, "batch_size": 64, "learning_rate": 0.03, "max_grad_norm": None}
    doctor = {"type": "doctor", "every_env_steps": 512, "stop_on": ["kl_too_high"]}
    ended = run(
        tmp_path / "run",
        {"id": "Pendulum-v1", "num_envs": 4, "wrappers": ["normalize_reward"]},
        learner,
        50_000,
        agent={"policy": {"hidden_sizes": [8], "gsde": True}},
        callbacks=[doctor, {"type": "monitor", "every_env_steps": 2_000}],
        sampling=sampling,
    )
    assert ended.env_steps <= 5_000
    assert ended.stop_reason == "the doctor found kl too high: updates move the policy much too far"
    said = [record.message for record in caplog.records if "the doctor finds kl too high" in record.message]
    assert len(said) == 1 and "try: 'learner.learning_rate=0.0003'" in said[0]
    rows = read_rows(ended.run / "metrics.jsonl")
    assert not any("non_finite" in row for row in rows)  # long before there is any NaN
    assert max(row["kl"] for row in rows) > 0.1 and max(row["clip_fraction"] for row in rows) > 0.6
    lags = [row["health/policy_lag"] for row in rows if "health/policy_lag" in row]
    assert set(lags) == ({1.0} if sampling == "pipelined" else set())


def test_a_temperature_that_runs_away_is_told(tmp_path: Path):  # case B32
    learner = {
        "type": "sac",
        "learning_starts": 50,
        "batch_size": 8,
        "alpha_learning_rate": 0.05,
        "target_entropy": 0.7,
        "updates_per_env_step": 0.5,
    }
    config = {
        "experiment": {"loggers": ["jsonl"]},
        "environment": "CartPole-v1",
        "agent": SMALL,
        "learner": learner,
        "training": {"total_timesteps": 2000, "n_eval_episodes": 1, "log_every_env_steps": 100},
        "callbacks": [{"type": "log", "every_env_steps": 100}],
    }
    ended = uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    found = [finding.illness for finding in uniarena.run.doctor(ended.run)[0]]
    assert "temperature_runs_away" in found


def test_what_was_said_is_not_said_again_after_a_resume(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    first = Doctor(every_env_steps=100)
    trainer = FakeTrainer(first).start()
    trainer.meta = {}
    for _ in range(4):
        trainer.iterate(length_mean=1.0)
    assert trainer.metrics["doctor/findings"] == 1.0
    second = Doctor(every_env_steps=100)
    second.load_state_dict(first.state_dict())
    trainer.callbacks[0] = second
    for _ in range(4):
        trainer.iterate(length_mean=1.0)
    assert len(caplog.records) == 1


def test_unknown_illnesses_and_folders_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ConfigError, match="the doctor knows no flu"):
        Doctor(stop_on=("flu",))
    assert cli.invoke(["doctor", str(tmp_path)]) == 2
    (tmp_path / "config.yaml").write_text("learner: ppo\n")
    assert cli.invoke(["doctor", str(tmp_path)]) == 2
    assert "holds no figures yet" in capsys.readouterr().err
