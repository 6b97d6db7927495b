"""Where rewards for other goals come from: environments of every form, behind wrappers, in worker processes."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv

from tests.fakes.goals import BitFlip, Reach
from uniarena import Agent, Trainer
from uniarena.buffers.frames import StackedLeaf, find_stacks
from uniarena.buffers.her import goal_reward_of
from uniarena.config import ConfigError
from uniarena.envs import make_env

ACHIEVED = np.array([[0.0, 0.0], [0.5, 0.5], [0.1, 0.9]], np.float32)
DESIRED = np.array([[0.1, 0.0], [-0.5, 0.5], [0.1, 0.9]], np.float32)


class OneByOne(Reach):
    """Rewards and ends written for a single goal; of many they would say one thing for all, or fail."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return 0.0 if np.linalg.norm(achieved - desired, axis=-1) < 0.3 else -1.0

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> bool:
        return bool(np.linalg.norm(achieved - desired) < 0.3)


class Column(Reach):
    """Rewards as a column `[N, 1]`."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.atleast_1d(super().compute_reward(achieved, desired, info))[:, None]


class Opaque(Reach):
    """Cannot be sent to another process."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize("make", [Reach, OneByOne, Column])
def test_every_goal_gets_its_own_reward(make: Any) -> None:
    env = make_env(make, 2)
    judge = goal_reward_of(env)
    assert judge is not None
    reward, over = judge(ACHIEVED, DESIRED, {})
    assert np.asarray(reward).tolist() == [0.0, -1.0, 0.0]
    assert np.broadcast_to(over, 3).tolist() == ([True, False, True] if make is OneByOne else [False] * 3)
    one, _ = judge(ACHIEVED[1:2], DESIRED[1:2], {})
    assert np.asarray(one).tolist() == [-1.0]
    env.close()


@pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])
@pytest.mark.parametrize("make", [partial(BitFlip, 4), Opaque])
def test_hindsight_under_every_vectorization(make: Any, vectorization: str) -> None:
    env = make_env(make, 2, vectorization=vectorization)
    learner = {"type": "sac" if make is Opaque else "dqn", "learning_starts": 10, "batch_size": 8}
    agent = Agent.assemble(
        env, learner, policy={"hidden_sizes": [8]}, parts={"buffer": {"capacity": 60, "her": {}}}
    )
    trainer = Trainer(agent, env)
    trainer.fit(60)
    trainer.close()
    assert trainer.counters.updates > 0 and agent.buffer.size == 60


def test_an_environment_without_goals_has_none_in_worker_processes_either() -> None:
    env = make_env("CartPole-v1", 2, vectorization="async")
    assert goal_reward_of(env) is None
    env.reset(seed=0)
    env.step(np.zeros(2, np.int64))  # to ask did the workers no harm
    env.close()


@pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])
def test_a_wrapper_around_single_environments_that_changes_rewards_is_refused(vectorization: str) -> None:
    def twice() -> gym.Env[Any, Any]:
        return gym.wrappers.TimeLimit(gym.wrappers.TransformReward(BitFlip(4), lambda r: 2 * r), 3)

    env = make_env(twice, 2, vectorization=vectorization)
    with pytest.raises(ConfigError, match="TransformReward changes the reward"):
        goal_reward_of(env)
    env.close()
    vector = gym.wrappers.vector.NormalizeReward(gym.vector.SyncVectorEnv([lambda: BitFlip(4)] * 2))
    with pytest.raises(ConfigError, match="NormalizeReward changes the reward"):
        goal_reward_of(make_env(vector))


@pytest.mark.parametrize("given", ["ours", "user's"])
def test_stacks_made_in_worker_processes_are_found(given: str) -> None:  # case B25
    def stacked() -> gym.Env[Any, Any]:
        return gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 4)

    env = (
        make_env(stacked, 2, vectorization="async")
        if given == "ours"
        else make_env(AsyncVectorEnv([stacked] * 2, autoreset_mode="SameStep"))
    )
    assert find_stacks(env) == (StackedLeaf("", 4, 0),)
    env.close()
