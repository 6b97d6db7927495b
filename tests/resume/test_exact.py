"""Killed and continued in a new process ≡ never interrupted: every tensor, stream, counter and figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.resume.runs import KILLED, differences, figures, resume, train

NORMALIZED = [{"type": "normalize_observation"}, {"type": "normalize_reward"}]


def ppo(**fields: Any) -> dict[str, Any]:
    return {"type": "ppo", "n_steps": 32, "n_epochs": 2, "batch_size": 64, **fields}


def a2c(**fields: Any) -> dict[str, Any]:
    return {"type": "a2c", "n_steps": 16, **fields}


def config(
    env: dict[str, Any], learner: dict[str, Any], total: int = 768, save: int = 256, **agent: Any
) -> dict[str, Any]:
    """Observation and reward normalisation, RND, evaluations and checkpoints; everything else as given."""
    return {
        "experiment": {"seed": 3, "loggers": [{"type": "jsonl"}]},
        "environment": {"num_envs": 4, "wrappers": NORMALIZED, **env},
        "learner": learner,
        "agent": {"intrinsic": {"type": "rnd", "hidden_sizes": [16], "feature_dim": 8}, **agent},
        "training": {
            "total_timesteps": total,
            "save_every_env_steps": save,
            "eval_every_env_steps": 200,
            "n_eval_episodes": 2,
            "device": "cpu",
        },
    }


def pendulum(**fields: Any) -> dict[str, Any]:
    return {"id": "Pendulum-v1", "max_episode_steps": 30, **fields}


SCHEDULES = {
    "learning_rate": {"type": "linear", "start": 1e-3},
    "clip_range": {"type": "cosine", "start": 0.3, "end": 0.1},
    "ent_coef": {"type": "linear", "start": 0.02},
}
ALL_WRAPPERS = [
    {"type": "sticky_actions"},
    {"type": "time_limit", "max_episode_steps": 20},
    {"type": "frame_stack", "n_frames": 3},
    {"type": "clip_reward", "low": -0.5, "high": 0.5},
    *NORMALIZED,
]
TENSOR = {"id": "examples.tensor_cartpole:make", "num_envs": 16}
RUNS = {
    "ppo_cartpole": config({"id": "CartPole-v1"}, ppo(**SCHEDULES)),
    "a2c_cartpole": config({"id": "CartPole-v1"}, a2c(learning_rate=SCHEDULES["learning_rate"])),
    "ppo_pendulum": config(pendulum(), ppo(**SCHEDULES)),
    "a2c_pendulum_sync": config(pendulum(vectorization="sync"), a2c()),
    "ppo_cartpole_sync": config({"id": "CartPole-v1", "vectorization": "sync"}, ppo()),
    "ppo_cartpole_async": config({"id": "CartPole-v1", "vectorization": "async", "num_envs": 2}, ppo()),
    "two_columns_a_worker": config(
        {
            "id": "tests.resume.envs:CarelessEnv",
            "vectorization": "async",
            "workers": {"processes": 2, "on_fault": "restart"},
        },
        ppo(),
    ),
    "ppo_cartpole_native": config({"id": "CartPole-v1", "vectorization": "native"}, ppo()),
    "ppo_tensor": config(TENSOR, ppo(n_steps=16)),
    "wrappers_serial": config({"id": "CartPole-v1", "wrappers": ALL_WRAPPERS}, ppo()),
    "wrappers_tensor": config({**TENSOR, "wrappers": ALL_WRAPPERS}, ppo(n_steps=16)),
    "global_streams": config(  # NumPy's in the environment, torch's in the update
        {"id": "tests.resume.envs:CarelessEnv"},
        ppo(),
        policy={"network": "tests.fakes.models:DropoutNet"},
        value={"network": "mlp"},
    ),
    "global_streams_async": config(
        {"id": "tests.resume.envs:CarelessEnv", "vectorization": "async", "num_envs": 2}, ppo()
    ),
    "recurrent": config(
        {"id": "CartPole-v1"},
        ppo(sequence_length=8),
        policy={"network": "tests.fakes.models:RecurrentToy"},
    ),
    "half_full_buffer": config({"id": "CartPole-v1"}, ppo(n_steps=16, train_batch_size=192), save=64),
    "target_kl": config({"id": "CartPole-v1"}, ppo(learning_rate=0.02, target_kl=0.01, n_epochs=6)),
    "learned_scale": config(
        {"id": "CartPole-v1"}, ppo(), intrinsic={"type": "rnd", "scale": "learned", "hidden_sizes": [16]}
    ),
    "several_bonuses": config(
        {"id": "CartPole-v1"},
        ppo(),
        intrinsic=[
            {"type": "icm", "hidden_sizes": [16], "feature_dim": 8},
            {"type": "count", "statistics_rows": 300},
            {"type": "information_gain", "hidden_sizes": [16], "feature_dim": 8, "members": 3},
        ],
    ),
    "curriculum": config({"id": "tests.fakes.envs:GrowingCorridor"}, ppo())
    | {"callbacks": [{"type": "curriculum", "window": 4, "start": 1, "end": 12, "step": 1}]},
    "curriculum_without_native_state": config({"id": "tests.fakes.envs:OpaqueCorridor"}, ppo())
    | {"callbacks": [{"type": "curriculum", "window": 4, "start": 1, "end": 12, "step": 1}]},
    "lunarlander": config({"id": "LunarLander-v3", "max_episode_steps": 60}, ppo()),
    "no_native_state": config({"id": "tests.resume.envs:OpaqueEnv"}, ppo()),
    "no_native_state_wrappers": config(
        {"id": "tests.resume.envs:OpaqueEnv", "wrappers": ALL_WRAPPERS}, ppo()
    ),
}


KILL_AT = {
    "no_native_state_wrappers": 6,  # a best checkpoint is newer there than the one that is exact
    "half_full_buffer": 6,  # the last checkpoint has two of three rollouts
}
SLOW = ("ppo_cartpole_sync", "ppo_cartpole_async", "learned_scale", "no_native_state", "wrappers_tensor")
MARKS = {"lunarlander": pytest.mark.extra("box2d"), **dict.fromkeys(SLOW, pytest.mark.slow)}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in RUNS])
def test_a_killed_and_resumed_run_ends_as_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train(RUNS[name], whole) == 0
    at = KILL_AT.get(name, len(figures(whole)) // 2 + 1)
    assert train(RUNS[name], cut, f"KILL@{at}") == KILLED
    assert resume(cut) == 0
    assert differences(whole, cut) == []
