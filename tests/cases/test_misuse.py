"""Objects that were shared by accident, arguments that were changed, and threads that only get in the way."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

import uniarena
from tests.fakes.envs import CounterEnv, CounterVectorEnv
from tests.learning.tasks import BrightSide
from uniarena import Agent, Trainer, make_env
from uniarena.assembly import choose_threads

SHORT = {"type": "ppo", "n_steps": 8, "batch_size": 16, "n_epochs": 1}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A run sets torch's threads for the process; the next test finds them as before."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# -- one instance where several are due ------------------------------------------------------------------------
ONE = CounterEnv()
SHARED: dict[str, Any] = {
    "functions that return one": [lambda: ONE] * 4,
    "one listed several times": [ONE] * 4,
    "one inside several wrappers": [lambda: gym.Wrapper(ONE)] * 2,
    "a wrapper around one": [lambda: gym.wrappers.TimeLimit(ONE, 5), lambda: ONE],
    "one function for several columns": lambda: ONE,
}


@pytest.mark.parametrize("how", ["serial", "sync"])
@pytest.mark.parametrize("kind", SHARED)
def test_one_instance_for_several_columns_is_refused(kind: str, how: str):  # case B88
    spec = SHARED[kind]
    columns = len(spec) if isinstance(spec, list) else 3
    with pytest.raises(ValueError, match="same object"):
        make_env(spec, columns, vectorization=how)


def test_one_instance_in_a_given_vector_environment_is_refused():  # case B88
    with pytest.raises(ValueError, match="same object"):
        make_env(SyncVectorEnv([lambda: ONE] * 2))


def test_an_instance_is_one_column_and_is_not_multiplied(tmp_path: Path):  # case B88
    config = {"environment": {"id": lambda: ONE, "num_envs": 2}, "learner": SHORT}
    with pytest.raises((ValueError, uniarena.ConfigError), match="same object"):
        uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    with pytest.raises(uniarena.ConfigError, match="cannot be 2 environments"):
        make_env(ONE, 2)


# -- arguments and defaults ------------------------------------------------------------------------------------
def test_two_agents_with_default_arguments_share_nothing():  # case B89
    env = make_env(CounterEnv, 2)
    one, other = (
        Agent.assemble(env),
        Agent.assemble(env, parts={"buffer": {"type": "rollout", "train_batch_size": 512}}),
    )
    assert one.buffer.cfg.train_batch_size is None and other.buffer.cfg.train_batch_size == 512
    one.spec["policy"]["hidden_sizes"] = [1]
    one.spec["intrinsic"].append("x")
    assert "hidden_sizes" not in other.spec["policy"] and other.spec["intrinsic"] == []
    third = Agent.assemble(env)
    assert third.spec["policy"] == {} and third.spec["intrinsic"] == []
    storages = [{p.data_ptr() for p in agent.model.parameters()} for agent in (one, other, third)]
    assert not storages[0] & storages[1] and not storages[1] & storages[2]
    env.close()


def test_two_trainers_in_one_process_do_not_meet():  # case B89
    """Interleaved or one after the other: each ends where it would alone."""

    def trainer(seed: int) -> Trainer:
        env = make_env("CartPole-v1", 2, wrappers=["normalize_observation"])
        return Trainer(Agent.assemble(env, SHORT, seed=seed), env)

    alone = [trainer(0), trainer(1)]
    for each in alone:
        each.fit(64)
    mixed = [trainer(0), trainer(1)]
    for steps in (16, 32, 48, 64):
        for each in mixed:
            each.fit(steps)
    for a, b in zip(alone, mixed, strict=True):
        ours, theirs = a.agent.model.state_dict(), b.agent.model.state_dict()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_what_the_user_hands_over_is_not_changed(tmp_path: Path):  # case B89
    config: dict[str, Any] = {
        "environment": {"id": "CartPole-v1", "wrappers": ["normalize_observation", {"type": "frame_stack"}]},
        "agent": {"policy": {"hidden_sizes": [8]}},
        "learner": dict(SHORT),
        "training": {"total_timesteps": 16, "n_eval_episodes": 1},
    }
    before, overrides = copy.deepcopy(config), ["learner.gamma=0.9"]
    uniarena.train(config, overrides, run_dir=tmp_path / "run", quiet=True)
    assert config == before and overrides == ["learner.gamma=0.9"]
    policy, value, parts = {"hidden_sizes": [8]}, {"hidden_sizes": [4]}, {"intrinsic": {"type": "rnd"}}
    given = copy.deepcopy((policy, value, parts))
    env = make_env("CartPole-v1", 1, wrappers=(wrappers := ["normalize_observation"]), kwargs=(kwargs := {}))
    Agent.assemble(env, policy=policy, value=value, parts=parts)
    assert (policy, value, parts) == given and wrappers == ["normalize_observation"] and kwargs == {}


# -- threads ---------------------------------------------------------------------------------------------------
def test_small_networks_get_one_thread_and_the_run_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):  # case B93
    torch.set_num_threads(2)
    config = {"environment": {"id": "CartPole-v1"}, "learner": SHORT}
    limits = ["training.total_timesteps=8", "training.n_eval_episodes=1"]
    with caplog.at_level(logging.INFO, "uniarena"):
        uniarena.train(config, limits, run_dir=tmp_path / "auto", quiet=True)
    assert torch.get_num_threads() == 1 and "1 torch thread" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "uniarena"):
        uniarena.train(config, [*limits, "training.threads=2"], run_dir=tmp_path / "two", quiet=True)
    assert torch.get_num_threads() == 2 and "2 torch threads" in caplog.text


def test_a_resumed_run_takes_the_threads_that_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # B93
    config = {"environment": {"id": "CartPole-v1"}, "learner": SHORT}
    limits = ["training.total_timesteps=8", "training.n_eval_episodes=1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    uniarena.train(config, limits, run_dir=tmp_path / "run", quiet=True)
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(1)
    uniarena.resume(tmp_path / "run", ["training.total_timesteps=128"], quiet=True)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("spec", "policy", "one"),
    [
        (CounterVectorEnv, {}, True),
        (CounterVectorEnv, {"hidden_sizes": [256, 256]}, True),
        (CounterVectorEnv, {"hidden_sizes": [2048, 2048]}, False),
        (BrightSide, {}, False),
    ],
)
def test_large_networks_and_images_get_the_cores(
    spec: type, policy: dict[str, Any], one: bool, monkeypatch: pytest.MonkeyPatch
):  # case B93
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    agent = Agent.assemble(make_env(spec), policy=policy)
    assert choose_threads("auto", agent) == (1 if one else 3)
    assert choose_threads(2, agent) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert choose_threads("auto", agent) == 2, "who sets it knows the machine"
