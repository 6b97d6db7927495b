"""The same from Python: a dict as config, classes in place of names, scripts and notebooks without a main guard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import uniarena
from tests.cli import users
from uniarena.trainer.callbacks import Evaluate

ROOT = Path(__file__).resolve().parents[2]
CONFIG: dict[str, Any] = {
    "environment": {"id": "CartPole-v1", "num_envs": 2},
    "learner": {"type": "ppo", "n_steps": 16, "n_epochs": 1, "batch_size": 16},
    "agent": {"policy": {"hidden_sizes": [8]}},
    "training": {"total_timesteps": 64, "n_eval_episodes": 1},
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_dict_trains_and_its_run_acts() -> None:
    result = uniarena.train(CONFIG, ["learner.gamma=0.9"], quiet=True)
    assert result.env_steps == 64 and result.stop_reason == "finished" and not result.resumable
    assert result.eval is not None and result.eval.mode == "deterministic"
    agent = uniarena.Agent.load(result.run)
    assert agent.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert uniarena.evaluate(result.run, 2).episodes == 2


def test_several_configs_merge_and_callbacks_are_given_as_objects() -> None:
    seen: list[int] = []

    class Watch:
        def on_iteration_end(self, trainer: Any, event: Any) -> None:
            seen.append(trainer.counters.env_steps)

    uniarena.train([CONFIG, {"training": {"total_timesteps": 96}}], quiet=True, callbacks=[Watch()])
    assert seen == [32, 64, 96]


def test_a_class_names_the_run_and_is_saved_by_its_import_path() -> None:
    result = uniarena.train({**CONFIG, "environment": {"id": users.Walk}}, quiet=True)
    assert result.run.name.startswith("ppo-Walk-s0-")
    assert "tests.cli.users:Walk" in (result.run / "config.yaml").read_text()
    assert result.trusting
    assert uniarena.evaluate(result.run, 1, trust=True).return_mean == 10.0


def test_the_story_from_parts_evaluates_in_the_same_pipeline() -> None:
    class MyEarlyStop:
        def on_validation_epoch(self, trainer: Any, event: Any) -> None:
            if trainer.counters.env_steps >= 128:
                trainer.should_stop = True

    env = uniarena.make_env("CartPole-v1", num_envs=8, wrappers=["normalize_observation"])
    learner = {"type": "ppo", "n_steps": 8, "n_epochs": 1}
    agent = uniarena.Agent.assemble(env, learner=learner, policy={"hidden_sizes": [64, 64]})
    trainer = uniarena.Trainer(
        agent, env, callbacks=[Evaluate(every_env_steps=64, n_episodes=2), MyEarlyStop()]
    )
    counters = trainer.fit(env_steps=1_000_000)
    assert counters.env_steps == 128
    assert trainer.last_evaluation.episodes == 2
    assert agent.act(env.reset()).shape == (8,)


SCRIPT = """
import multiprocessing
START = {start!r}
if START: multiprocessing.set_start_method(START)
import gymnasium as gym, numpy as np, uniarena

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {{}}
    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), 1.0, self.t >= 5, False, {{}}

config = {config!r}
config["environment"] = {{"id": Mine, "num_envs": 2, "vectorization": "async"}}
print("return", uniarena.train(config, quiet=True).eval.return_mean)
"""


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_script_without_a_main_guard_uses_worker_processes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(start=None, config=CONFIG))
    assert "return 5.0" in run(tmp_path, "script.py")


@pytest.mark.slow
def test_a_notebook_may_start_its_workers_by_spawn(tmp_path: Path) -> None:
    """Code that came from no file, with a class defined in it, as in a notebook."""
    assert "return 5.0" in run(tmp_path, "-c", SCRIPT.format(start="spawn", config=CONFIG))
