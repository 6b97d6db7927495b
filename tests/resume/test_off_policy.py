"""Killed and continued in a new process ≡ never interrupted, with replay: rows, cursor, priorities, noise, targets."""

from __future__ import annotations

import copy
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.resume.runs import KILLED, differences, last_checkpoint, resume, train
from uniarena import checkpoint

OBSERVATION = {"type": "normalize_observation"}
NORMALIZED = [OBSERVATION, {"type": "normalize_reward"}]
STARTS, SAVE, TOTAL = 30, 40, 160
PER = {"type": "prioritized"}
DECAY = {"type": "linear", "start": 3e-3}


def config(
    learner: str | dict[str, Any], env: str | dict[str, Any] = "CartPole-v1", **agent: Any
) -> dict[str, Any]:
    """Two environments, statistics of observations and rewards, a warm-up, a ring that wraps, evaluations."""
    chosen = {"type": learner} if isinstance(learner, str) else learner
    discrete = ("dqn", "c51", "qr_dqn", "iqn", "rainbow")
    often = {"train_every_env_steps": 4, "updates_per_env_step": 0.5} if chosen["type"] in discrete else {}
    where = {"id": env} if isinstance(env, str) else env
    return {
        "experiment": {"seed": 3, "loggers": [{"type": "jsonl"}]},
        "environment": {"num_envs": 2, "wrappers": NORMALIZED, "max_episode_steps": 25, **where},
        "learner": {"learning_starts": STARTS, "batch_size": 16, **often, **chosen},
        "agent": {
            "policy": {"hidden_sizes": [16]},
            **agent,
            "buffer": {"capacity": 90, **agent.get("buffer", {})},
        },
        "training": {
            "total_timesteps": TOTAL,
            "save_every_env_steps": SAVE,
            "eval_every_env_steps": 50,
            "n_eval_episodes": 1,
            "device": "cpu",
        },
    }


PENDULUM = "Pendulum-v1"
STACKED = {
    "id": "CartPole-v1",
    "wrappers": [{"type": "frame_stack", "n_frames": 3}, OBSERVATION],
}
REACH = {"id": "tests.fakes.goals:Reach", "wrappers": [OBSERVATION]}
EVERYTHING = {  # goals, stacks, priorities, windows and masks at once
    "id": "tests.fakes.goals:MaskedBits",
    "kwargs": {"bits": 4, "limit": 6},
    "wrappers": [{"type": "frame_stack", "n_frames": 3, "keys": ["observation"]}],
}
SLOW_TARGET = {"target_update_updates": 7}
RUNS = {
    "dqn": config({"type": "dqn", "learning_rate": DECAY, **SLOW_TARGET}),
    "c51": config({"type": "c51", "n_step": 3}, buffer=PER),
    "qr_dqn": config({"type": "qr_dqn", "tau": 0.05}, explorer={"type": "boltzmann"}),
    "iqn": config("iqn", STACKED, buffer=PER),
    "rainbow": config({"type": "rainbow", **SLOW_TARGET}),
    "ddpg": config("ddpg", PENDULUM, explorer={"type": "ornstein_uhlenbeck"}),
    "td3": config({"type": "td3", "n_step": 2, "learning_rate": DECAY}, PENDULUM),
    "sac": config("sac", PENDULUM),
    "tqc": config("tqc", PENDULUM, buffer=PER),
    "redq": config({"type": "redq", "updates_per_env_step": 2.0, "policy_delay": 3}, PENDULUM),
    "droq": config({"type": "droq", "updates_per_env_step": 2.0, "policy_delay": 3}, PENDULUM),
    "everything": config({"type": "dqn", "n_step": 3}, EVERYTHING, buffer={**PER, "her": {}}),
    "hindsight": config("sac", REACH, buffer={"her": {"strategy": "final"}}),
    "mapped": config({"type": "dqn", "n_step": 3}, STACKED, buffer={"memory_map": "mapped"}),
    "discrete_sac": config("sac", {"id": "CartPole-v1", "num_envs": 3}),
    "parameter_noise": config("td3", PENDULUM, explorer={"type": "parameter_noise", "redraw_env_steps": 30}),
    "no_native_state": config(
        {"type": "dqn", "n_step": 3}, {"id": "tests.resume.envs:OpaqueEnv"}, buffer=PER
    ),
    "async": config("sac", {"id": PENDULUM, "vectorization": "async"}),
    "careless": config(
        "sac",
        {"id": "tests.resume.envs:CarelessEnv"},
        policy={"network": "tests.fakes.models:DropoutNet"},
        value={"hidden_sizes": [16]},
    ),
    "own_parts": config(
        "sac",
        PENDULUM,
        policy={"network": "tests.off_policy.own_parts:Policy"},
        explorer={"type": "tests.off_policy.own_parts:Bursts"},
    ),
    "tensor": config(
        {"type": "dqn", "train_every_env_steps": 16},
        {"id": "examples.tensor_cartpole:make", "num_envs": 8, "max_episode_steps": None},
    ),
}
FAST = ("dqn", "own_parts", "everything")


def chunk_at(name: str, env_steps: int) -> int:
    """The chunk, counted from 1, during which a run gets beyond these steps."""
    given = RUNS[name]
    columns = given["environment"]["num_envs"]
    every = max(given["learner"].get("train_every_env_steps", 1), columns)
    return env_steps // (-(-every // columns) * columns) + 1


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_a_killed_and_resumed_run_ends_as_one_that_never_stopped(
    name: str, tmp_path: Path
) -> None:  # case B45
    """Killed soon after a checkpoint, or long after it: what came between is done again, and is the same."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    settings = copy.deepcopy(RUNS[name])
    if "memory_map" in (buffer := settings["agent"]["buffer"]):
        buffer["memory_map"] = str(tmp_path / buffer["memory_map"])
    assert train(settings, whole) == 0
    at = STARTS + 20 + 10 * (zlib.crc32(name.encode()) % 10)
    assert train(settings, cut, f"KILL@{chunk_at(name, at)}") == KILLED
    assert int(last_checkpoint(cut).name) <= at
    assert resume(cut) == 0
    assert not list(tmp_path.glob("mapped/*")), (
        "neither the killed process nor its successor leaves memory there"
    )
    assert differences(whole, cut) == []
    learned, _ = checkpoint.load(last_checkpoint(whole))
    assert learned["trainer"]["counters"]["updates"] > 20 and "buffer" in learned
