"""Environments in worker processes: reached, fed and batched as in this one, and gone when a run ends badly."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import uniarena
from tests.fakes.envs import CounterEnv, HybridActionEnv, MaskInfoEnv, NestedObsEnv
from uniarena import Agent, Trainer, make_env
from uniarena.trainer.events import BatchCollected, IterationEnd

SHORT = {"type": "ppo", "n_steps": 8, "batch_size": 16, "n_epochs": 1}
each_way = pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])


class Harder(CounterEnv):
    """Pays its difficulty, a plain attribute."""

    def step(self, action: int) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(self.difficulty), terminated, truncated, info


class Curriculum:
    """Raises the difficulty after every iteration, and keeps what was paid in it."""

    def __init__(self) -> None:
        self.paid: list[float] = []

    def on_batch_collected(self, trainer: Trainer, event: BatchCollected) -> None:
        self.paid.append(float(event.rollout.rows.reward.mean()))

    def on_iteration_end(self, trainer: Trainer, event: IterationEnd) -> None:
        env = trainer.sampler.env
        assert env.get_attr("difficulty") == [trainer.counters.iterations - 1] * 2
        env.set_attr("difficulty", trainer.counters.iterations)
        assert env.call("double", 10) == [20 + trainer.counters.iterations] * 2


@each_way
def test_a_curriculum_reaches_the_base_through_wrappers_and_processes(vectorization: str):  # case B69
    wrappers = [gym.Wrapper, "normalize_observation", {"type": "frame_stack", "n_frames": 2}, "clip_reward"]
    env = make_env(Harder, 2, vectorization=vectorization, wrappers=wrappers)
    curriculum = Curriculum()
    trainer = Trainer(Agent.assemble(env, SHORT), env, callbacks=[curriculum])
    trainer.fit(16 * 3)
    trainer.close()
    assert curriculum.paid == [0.0, 1.0, 1.0]  # clipped to 1


@pytest.mark.parametrize("env_class", [NestedObsEnv, HybridActionEnv, MaskInfoEnv])
def test_training_by_workers_is_training_here(env_class: type):  # case B66: batched alike, masks included
    ends = []
    for vectorization in ("serial", "async"):
        env = make_env(env_class, 2, vectorization=vectorization)
        agent = Agent.assemble(env, SHORT, policy={"layout": "flat", "hidden_sizes": [8]})
        trainer = Trainer(agent, env)
        trainer.fit(32)
        trainer.close()
        ends.append(agent.model.state_dict())
    assert all(bool((ends[0][key] == ends[1][key]).all()) for key in ends[0])


@pytest.mark.parametrize(
    "leaf", [spaces.Text(4), spaces.Graph(spaces.Discrete(2), None)], ids=["text", "graph"]
)
def test_what_cannot_be_batched_is_refused_before_a_worker_starts(
    leaf: spaces.Space, tmp_path: Path
):  # case B66
    class Odd(CounterEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Dict({"x": self.observation_space, "odd": leaf})

    config = {"environment": {"id": Odd, "num_envs": 2, "vectorization": "async"}, "learner": SHORT}
    with pytest.raises(uniarena.ConfigError, match=f"'odd'.*{type(leaf).__name__}"):
        uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    assert not multiprocessing.active_children()


class FallsOver(CounterEnv):
    """Raises, or kills its process, in its fifth step."""

    def __init__(self, how: str) -> None:
        super().__init__(length=100)
        self.how = how

    def step(self, action: int) -> Any:
        if self.t == 4:
            if self.how == "raises":
                raise KeyError("wheel")
            if self.how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize(("how", "message"), [("raises", "wheel"), ("dies", r"SIGKILL \(exit code -9\)")])
def test_a_worker_that_falls_over_ends_the_run_and_leaves_nobody(
    how: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    environment = {"id": FallsOver, "num_envs": 2, "vectorization": "async", "kwargs": {"how": how}}
    with pytest.raises(Exception, match=message):
        uniarena.train({"environment": environment, "learner": SHORT}, run_dir=tmp_path / "run", quiet=True)
    assert not multiprocessing.active_children()
    assert capfd.readouterr().err == ""  # the error says it all, and nobody else does


def test_a_callback_that_raises_leaves_no_worker(tmp_path: Path):  # case B63
    class Raises:
        def on_iteration_end(self, trainer: Trainer, event: IterationEnd) -> None:
            raise RuntimeError("mine")

    environment = {"id": CounterEnv, "num_envs": 2, "vectorization": "async"}
    with pytest.raises(RuntimeError, match="mine"):
        uniarena.train(
            {"environment": environment, "learner": SHORT},
            callbacks=[Raises()],
            run_dir=tmp_path / "run",
            quiet=True,
        )
    assert not multiprocessing.active_children()


SCRIPT = """
import multiprocessing, sys
import gymnasium as gym, numpy as np
import uniarena
from tests.fakes.envs import CounterEnv

if __name__ == "__main__":
    gym.register("RegisteredHere-v0", entry_point=lambda: CounterEnv(4))
    multiprocessing.set_start_method(sys.argv[2])
    environment = {"id": "RegisteredHere-v0", "num_envs": 2, "vectorization": "async"}
    learner = {"type": "ppo", "n_steps": 8, "batch_size": 16, "n_epochs": 1}
    limits = ["training.total_timesteps=16", "training.n_eval_episodes=2"]
    result = uniarena.train({"environment": environment, "learner": learner}, limits, run_dir=sys.argv[1], quiet=True)
    print(result.env_steps, result.eval.return_mean)
"""


@pytest.mark.slow  # four processes import torch
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_id_registered_in_the_script_trains_in_spawned_workers(method: str, tmp_path: Path):  # case B65
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run"), method],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["16", "4.0"]


def test_infos_of_workers_reach_the_figures():
    env = make_env(CounterEnv, 2, vectorization="async", kwargs={"metrics": True})
    trainer = Trainer(Agent.assemble(env, SHORT), env)
    trainer.fit(16)
    trainer.close()
    assert trainer.metrics["progress"] == pytest.approx(np.mean([1, 2, 3, 1, 2, 3, 1, 2]))
    assert trainer.metrics["success_rate"] == 1.0
