"""One seed, one result, whatever watches the run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import uniarena
from tests.resume.runs import differ, differences, figures, hurry, last_checkpoint
from tests.resume.runs import train as start
from uniarena import checkpoint

DROPOUT = {"network": "tests.fakes.models:DropoutNet"}


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def config(learner: str = "ppo", seed: int = 0, **environment: Any) -> dict[str, Any]:
    """Everything that draws: an environment and a network on global streams, RND, normalisation."""
    lengths = {"ppo": {"n_steps": 32, "n_epochs": 2, "batch_size": 64}, "a2c": {"n_steps": 16}}
    return {
        "experiment": {"seed": seed, "loggers": [{"type": "jsonl"}]},
        "environment": {
            "id": "tests.resume.envs:CarelessEnv",
            "num_envs": 4,
            "wrappers": [{"type": "normalize_observation"}, {"type": "normalize_reward"}],
            **environment,
        },
        "learner": {"type": learner, **lengths[learner]},
        "agent": {
            "policy": DROPOUT,
            "value": {"network": "mlp"},
            "intrinsic": {"type": "rnd", "hidden_sizes": [8], "feature_dim": 4},
        },
        "training": {"total_timesteps": 384, "n_eval_episodes": 1, "device": "cpu"},
    }


def train(settings: dict[str, Any], folder: Path, callbacks: tuple[Any, ...] = ()) -> Path:
    uniarena.train(settings, run_dir=folder, quiet=True, callbacks=callbacks)
    return folder


class Noisy:
    """Draws from every global stream whenever it is called, and acts with the agent as users' callbacks do."""

    def _draw(self, trainer: Any, event: Any) -> None:
        random.random(), np.random.rand(3), torch.rand(5)  # noqa: NPY002

    on_training_start = on_episode_end = on_env_step = on_batch_collected = _draw
    on_learn_step = on_update_end = on_validation_epoch = on_checkpoint = on_training_end = _draw

    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        self._draw(trainer, event)
        for deterministic in (True, False):
            trainer.agent.act(np.zeros(2, np.float32), deterministic=deterministic)
        trainer.log("mine", random.random())


@pytest.mark.parametrize("learner", ["ppo", "a2c"])
def test_the_same_seed_gives_the_same_run_twice(learner: str, tmp_path: Path) -> None:  # case B59
    """Weights, optimisers, statistics, streams, counters, evaluations."""
    torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    first = train(config(learner), tmp_path / "first")
    torch.rand(7), random.random(), np.random.rand()  # noqa: NPY002
    assert differences(first, train(config(learner), tmp_path / "second")) == []
    other = train(config(learner, seed=1), tmp_path / "other")
    assert figures(first) != figures(other)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_it_does_so_in_worker_processes(vectorization: str, tmp_path: Path) -> None:
    settings = config(num_envs=2, vectorization=vectorization)
    assert differences(train(settings, tmp_path / "first"), train(settings, tmp_path / "second")) == []


def test_evaluation_video_logging_and_callbacks_that_draw_change_nothing(
    tmp_path: Path,
) -> None:  # cases B57, B59
    def settings(**training: Any) -> dict[str, Any]:
        found = config()
        found["training"] |= {"eval_every_env_steps": 10**9, "save_every_env_steps": 10**9, **training}
        return found

    plain = train(settings(), tmp_path / "plain")
    watched = settings(eval_every_env_steps=128, save_every_env_steps=128, n_eval_episodes=3)
    watched["callbacks"] = [
        {"type": "video", "every_env_steps": 256, "max_episode_steps": 5},
        {"type": "log", "histograms": True},
    ]
    again = train(settings(), tmp_path / "again")
    seen = train(watched, tmp_path / "watched", (Noisy(),))
    assert list((tmp_path / "watched" / "videos").iterdir())
    assert [*differ(_trained(plain), _trained(again), "again")] == []
    assert [*differ(_trained(plain), _trained(seen), "watched")] == []


def _trained(folder: Path) -> dict[str, Any]:
    """All of the last checkpoint that training depends on, and nothing that watches it."""
    state, _ = checkpoint.load(last_checkpoint(folder))
    streams = {
        name: generator for name, _, generator in state["trainer"]["streams"]["torch"] if name != "agent"
    }
    kept = {name: state["trainer"][name] for name in ("counters", "episodes", "globals")}
    return {"agent": state["agent"], "sampler": state["sampler"], "streams": streams, **kept}


def test_evaluations_have_a_seed_of_their_own(tmp_path: Path) -> None:
    """As many as one likes, whenever one likes: each is what it would be alone."""
    rare, often = config(), config()
    rare["training"] |= {"eval_every_env_steps": 384}
    often["training"] |= {"eval_every_env_steps": 128}
    last = [
        figures(train(settings, tmp_path / name))[-1] for name, settings in (("rare", rare), ("often", often))
    ]
    assert last[0] == last[1] and "eval/return_mean" in last[0] and "eval_stochastic/return_mean" in last[0]


# -- off-policy, across processes ----------------------------------------------------------------------------------
def td3(env: str, steps: int, evaluations: int | None) -> dict[str, Any]:
    """TD3 with its warm-up; without evaluations only the one at the end."""
    return {
        "experiment": {"loggers": [{"type": "jsonl"}]},
        "environment": {"id": env},
        "learner": {"type": "td3", "learning_starts": steps // 4, "batch_size": 32},
        "agent": {"policy": {"hidden_sizes": [32, 32]}, "buffer": {"capacity": 10_000}},
        "training": {
            "total_timesteps": steps,
            "save_every_env_steps": steps,
            "log_every_env_steps": steps // 5,  # off-policy the least interval is the length of an iteration
            "eval_every_env_steps": evaluations or steps,
            "n_eval_episodes": 2,
            "device": "cpu",
        },
    }


def same_twice(env: str, steps: int, tmp_path: Path) -> None:
    """Two processes, then one that evaluates often: equal weights and equal last evaluations."""
    runs = [tmp_path / name for name in ("first", "second", "watched")]
    for run, evaluations in zip(runs, (None, None, steps // 5), strict=True):
        assert start(td3(env, steps, evaluations), run) == 0
    assert differences(runs[0], runs[1]) == []
    assert [*differ(_trained(runs[0]), _trained(runs[2]), "watched")] == []
    last = [figures(run)[-1] for run in runs]
    evaluated = [sum("eval/return_mean" in row for row in figures(run)) for run in runs]
    assert evaluated == [1, 1, 5]
    for mode in ("eval", "eval_stochastic"):
        assert len({row[f"{mode}/return_mean"] for row in last}) == 1


def test_td3_repeats_in_another_process_with_and_without_evaluation(tmp_path: Path) -> None:  # case B59
    same_twice("Pendulum-v1", 400, tmp_path)


@pytest.mark.slow
@pytest.mark.extra("mujoco")
def test_td3_repeats_on_the_inverted_double_pendulum(tmp_path: Path) -> None:  # case B59
    same_twice("InvertedDoublePendulum-v5", 5_000, tmp_path)
