"""Killed and continued in a new process ≡ never interrupted, with everything that keeps learning steady."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.resume.runs import KILLED, differences, figures, resume, train

RECENT = [
    {"type": "normalize_observation", "statistics": "ema", "outlier": 10.0},
    {"type": "normalize_reward"},
]
FOLLOWS = {"type": "kl_adaptive", "target_kl": 0.01}


def config(env: str, learner: dict[str, Any], **agent: Any) -> dict[str, Any]:
    return {
        "experiment": {"seed": 3, "loggers": [{"type": "jsonl"}]},
        "environment": {"id": env, "num_envs": 4, "wrappers": RECENT, "max_episode_steps": 30},
        "learner": learner,
        "agent": {"policy": {"hidden_sizes": [16]}, **agent},
        "training": {
            "total_timesteps": 768,
            "save_every_env_steps": 256,
            "n_eval_episodes": 1,
            "device": "cpu",
        },
    }


ON_POLICY: dict[str, Any] = {"n_steps": 32, "n_epochs": 3, "batch_size": 32}
OFF_POLICY: dict[str, Any] = {
    "learning_starts": 100,
    "batch_size": 16,
    "n_targets": 2,
    "target_update_updates": 7,
}
RUNS = {
    "ppo": config(
        "CartPole-v1",
        {
            "type": "ppo",
            **ON_POLICY,
            "optimizer": {"type": "sam", "accumulate": 2, "clip_quantile": 0.5},
            "max_grad_norm": {"policy": 0.5, "value": 1.0, "intrinsic": 1.0},
            "clip_range": {**FOLLOWS, "start": 0.2},
            "kl_coef": {**FOLLOWS, "start": 0.5},
            "ent_coef": "auto",
            "normalize_return": "popart",
            "on_high_kl": "shrink_clip",
            "stop_on_loss": "both",
        },
        intrinsic={"type": "rnd", "hidden_sizes": [16], "feature_dim": 8},
    ),
    "a2c": config(
        "Pendulum-v1",
        {
            "type": "a2c",
            "n_steps": 16,
            "learning_rate": {**FOLLOWS, "start": 1e-3},
            "normalize_return": "running",
        },
    ),
    "plateau": config(
        "Pendulum-v1",
        {"type": "ppo", **ON_POLICY, "learning_rate": {"type": "plateau", "start": 1e-3, "patience": 1}},
    ),
    "trpo": config("CartPole-v1", {"type": "trpo", **ON_POLICY}),
    "compiled": config("CartPole-v1", {"type": "ppo", **ON_POLICY, "compile": True}),
    "impala": config("CartPole-v1", {"type": "impala", "n_steps": 32}),
    "appo": config("CartPole-v1", {"type": "appo", **ON_POLICY, "precision": "fp16"}),
    "dqn": config(
        "CartPole-v1", {"type": "dqn", **OFF_POLICY, "optimizer": {"type": "sam", "clip_by": "layer"}}
    ),
    "sac": config(
        "Pendulum-v1",
        {"type": "sac", **OFF_POLICY, "updates_per_env_step": 0.25, "optimizer": {"type": "sam", "agc": 0.1}},
    ),
}
FAST = ("ppo",)


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_a_killed_and_resumed_run_ends_as_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    settings = copy.deepcopy(RUNS[name])
    assert train(settings, whole) == 0
    chunks = 96 if name in ("dqn", "sac") else 8 if name == "a2c" else 4
    assert train(settings, cut, f"KILL@{chunks}") == KILLED
    assert resume(cut) == 0
    assert differences(whole, cut) == []
    assert len(figures(whole)) >= 1
