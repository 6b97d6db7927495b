"""Killed and continued in a new process ≡ never interrupted, with memory: states go on where they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.resume.runs import KILLED, differences, last_checkpoint, resume, train
from uniarena import checkpoint

MEMORY = {"type": "lstm", "hidden_size": 8}
TRANSFORMER = {"type": "gtrxl", "hidden_size": 8, "num_heads": 2, "num_layers": 1, "window": 4}
OFTEN = {"learning_starts": 30, "batch_size": 4, "train_every_env_steps": 4, "updates_per_env_step": 0.25}
PPO = {"type": "ppo", "n_steps": 16, "batch_size": 16, "n_epochs": 2, "sequence_length": 5}


def config(learner: dict[str, Any], env: str = "CartPole-v1", **agent: Any) -> dict[str, Any]:
    """Two environments whose episodes go on over chunks and checkpoints, and statistics of observations."""
    return {
        "experiment": {"seed": 3, "loggers": [{"type": "jsonl"}]},
        "environment": {
            "id": env,
            "num_envs": 2,
            "wrappers": [{"type": "normalize_observation"}],
            "max_episode_steps": 25,
        },
        "learner": learner,
        "agent": {"policy": {"hidden_sizes": [8]}, "memory": MEMORY, **agent},
        "training": {
            "total_timesteps": 192,
            "save_every_env_steps": 64,
            "eval_every_env_steps": 64,
            "n_eval_episodes": 1,
            "device": "cpu",
        },
    }


RUNS = {
    "ppo": config(PPO),
    "gathered": config({**PPO, "train_batch_size": 48}, memory={**MEMORY, "type": "gru", "num_layers": 2}),
    "one memory": config(PPO, "Pendulum-v1", policy={"hidden_sizes": [8], "share_encoder": True}),
    "a2c": config({"type": "a2c", "n_steps": 5}),
    "transformer": config(PPO, memory=TRANSFORMER),
    "key-value": config(PPO, memory={"type": "key_value", "hidden_size": 8, "slots": 4}),
    "dqn, transformer": config(
        {"type": "dqn", **OFTEN}, memory=TRANSFORMER, buffer={"capacity": 90, "length": 5, "burn_in": 4}
    ),
    "dqn": config(
        {"type": "dqn", "double": True, "n_step": 2, **OFTEN},
        buffer={"capacity": 90, "length": 5, "burn_in": 3},
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_resuming_changes_nothing(name: str, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train(RUNS[name], whole) == 0
    rows = RUNS[name]["learner"].get("n_steps", 2) * 2
    assert train(RUNS[name], cut, f"KILL@{150 // rows}") == KILLED
    assert resume(cut) == 0
    assert differences(whole, cut) == []
    learned, _ = checkpoint.load(last_checkpoint(whole))
    assert learned["sampler"]["state"] is not None and learned["trainer"]["counters"]["updates"] >= 3
