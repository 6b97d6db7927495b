"""A user's own package adds a learner, a wrapper, a callback, a network and an environment, each in one file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import uniarena
from tests.plugins.time_left import TimeLeftConfig
from uniarena import registry
from uniarena.checkpoint import CheckpointError

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "learner": (ROOT / "examples" / "own_learner.py", "Reinforce"),
    "callback": (ROOT / "examples" / "own_callback.py", "Gentle"),
    "network": (ROOT / "examples" / "shared_trunk.py", "SharedTrunk"),
    "wrapper": (ROOT / "tests" / "plugins" / "time_left.py", "TimeLeft"),
    "env": (ROOT / "examples" / "own_environment.py", "Thermostat"),
}
# The same text for both ways; only what a component is called differs.
CONFIG = """
environment:
  id: {env}
  num_envs: 4
  kwargs: {{outside: -5.0}}
  wrappers:
    - {{type: {wrapper}, limit: 96}}
    - normalize_observation
agent:
  policy: {{network: {network}, width: 16}}
learner: {{type: {learner}, n_steps: 32, learning_rate: 1e-3}}
callbacks:
  - {{type: {callback}, limit: 1e-4, halve_at: 2}}
training: {{total_timesteps: 512, n_eval_episodes: 2}}
"""
BY_PATH = {kind: f"arm_lab.{kind}:{name}" for kind, (_, name) in FILES.items()}
BY_NAME = {kind: f"arm_{kind}" for kind in FILES}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path with a package of five files, and what pip leaves behind of it."""
    home = tmp_path / "site"
    (home / "arm_lab").mkdir(parents=True)
    (home / "arm_lab" / "__init__.py").write_text("")
    info = home / "arm_lab-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: arm-lab\nVersion: 1.0\n")
    lines = []
    for kind, (source, name) in FILES.items():
        shutil.copy(source, home / "arm_lab" / f"{kind}.py")
        lines.append(f"[uniarena.{kind}s]\narm_{kind} = arm_lab.{kind}:{name}\n")
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(home))
    registry._entry_points.cache_clear()
    yield home
    registry._entry_points.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "arm_lab"]:
        del sys.modules[name]


def rows_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("names", [BY_PATH, BY_NAME], ids=["import path", "entry point"])
def test_everything_of_ones_own_trains_together(names: dict[str, str], package: Path, tmp_path: Path):
    config = tmp_path / "own.yaml"
    config.write_text(CONFIG.format(**names))
    result = uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    assert result.env_steps == 512 and result.eval is not None and result.eval.length_mean == 96

    agent = uniarena.Agent.load(result.run, trust=True)
    assert type(agent.learner).__name__ == "Reinforce"
    assert agent.observation_space.shape == (3,)  # the wrapper's third number
    assert agent.act(np.array([0.0, 0.0, 1.0], np.float32)) in (0, 1)
    kinds = [type(module).__module__ for module in agent.model.modules()]
    assert kinds.count("arm_lab.network") == 1
    rows = rows_of(result.run)
    assert rows[0]["clipped_gradients"] > 0
    assert rows[-1]["error_celsius"] > 0  # what the environment reports
    assert agent.learner.optimizer.lr == pytest.approx(5e-4)  # halved by the callback, and saved so

    uniarena.evaluate(result.run, 2, trust=True)
    if names is BY_PATH:  # a file alone must not be able to run code
        with pytest.raises(CheckpointError, match="trust"):
            uniarena.Agent.load(result.run)
    else:
        uniarena.Agent.load(result.run)


def test_a_run_of_ones_own_resumes(package: Path, tmp_path: Path):
    config = tmp_path / "own.yaml"
    config.write_text(CONFIG.format(**BY_NAME))
    whole = uniarena.train(config, run_dir=tmp_path / "whole", quiet=True)
    half = uniarena.train(config, callbacks=[StopAfter(256)], run_dir=tmp_path / "half", quiet=True)
    assert half.env_steps == 256
    resumed = uniarena.resume(half.run, callbacks=[StopAfter(10_000)], quiet=True)
    assert resumed.env_steps == 512
    ends = [uniarena.Agent.load(run, trust=True).model.state_dict() for run in (whole.run, half.run)]
    assert ends[0].keys() == ends[1].keys()
    assert all((ends[0][key] == ends[1][key]).all() for key in ends[0])


class StopAfter:
    """Stops a run as Ctrl-C does, once `env_steps` are collected."""

    def __init__(self, env_steps: int) -> None:
        self.env_steps = env_steps

    def on_iteration_end(self, trainer: uniarena.Trainer, event: object) -> None:
        if trainer.counters.env_steps >= self.env_steps:
            trainer.request_stop("interrupted")


def test_the_command_line_knows_installed_plugins(package: Path, tmp_path: Path):
    (tmp_path / "own.yaml").write_text(CONFIG.format(**BY_NAME))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(package)])}

    def uniarena_command(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "uniarena", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    listed = uniarena_command("list", "learners")
    assert listed.returncode == 0 and "arm_learner" in listed.stdout
    done = uniarena_command("train", "own.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["env_steps"] == 512


@pytest.mark.parametrize("key", ["limit: 96", "limit: 1e-4", "width: 16", "learning_rate: 1e-3"])
def test_a_wrong_key_of_ones_own_component_is_answered(key: str, package: Path, tmp_path: Path):
    right = key.partition(":")[0]
    wrong = right[:-1] + "_" + right[-1]  # widt_h
    (tmp_path / "wrong.yaml").write_text(CONFIG.format(**BY_PATH).replace(key, key.replace(right, wrong), 1))
    with pytest.raises(uniarena.ConfigError, match=wrong) as caught:
        uniarena.train(tmp_path / "wrong.yaml", run_dir=tmp_path / "run", quiet=True)
    assert right in str(caught.value).replace(wrong, "")  # what was meant is named
    assert not (tmp_path / "run").exists()


def test_the_decorator_serves_a_notebook(tmp_path: Path):
    from examples.own_learner import Reinforce

    uniarena.register("learner", "notebook_reinforce")(Reinforce)
    try:
        config = {
            "environment": {"id": "CartPole-v1"},
            "learner": {"type": "notebook_reinforce", "n_steps": 64},
        }
        limits = ["training.total_timesteps=128", "training.n_eval_episodes=1"]
        result = uniarena.train(config, limits, run_dir=tmp_path / "run", quiet=True)
    finally:
        del registry._registered["learner"]["notebook_reinforce"]
    assert result.env_steps == 128


def test_the_wrapper_shows_time_left_at_ends_too():
    from tests.fakes.envs import CounterEnv
    from tests.plugins.time_left import TimeLeft

    env = TimeLeft(uniarena.make_env(lambda: CounterEnv(2), 1), TimeLeftConfig(limit=2))
    assert env.reset(seed=0).tolist() == [[0.0, 1.0]]
    assert env.step(np.zeros(1, np.int64)).obs.tolist() == [[1.0, 0.5]]
    step = env.step(np.zeros(1, np.int64))
    assert step.obs.tolist() == [[0.0, 1.0]] and step.final.obs.tolist() == [[2.0, 0.0]]
