"""The on-policy work, the same for every contender."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gymnasium as gym
from stopwatch import Stopwatch, VectorStopwatch


@dataclass(frozen=True)
class Work:
    """What a contender does: PPO with two networks of 64×64 tanh units, Adam at 3e-4, γ 0.99, λ 0.95, no entropy bonus.

    Attributes:
        envs: environments.
        steps: rows of each in one rollout.
        epochs, batch: of its update.
        native: whether the batch of environments is one object, for contenders that can use one.
        images: four grey frames of 84×84, one NatureCNN for policy and value, Adam at 2.5e-4, clip range 0.1.
    """

    env_id: str
    envs: int
    steps: int
    epochs: int
    batch: int
    native: bool = False
    images: bool = False


WORK = {
    "ppo-cartpole": Work("CartPole-v1", 8, 128, 4, 256),
    "ppo-cartpole-64": Work("CartPole-v1", 64, 32, 4, 256, native=True),
    "ppo-halfcheetah": Work("HalfCheetah-v5", 8, 256, 10, 64),
    "ppo-pong": Work("Pong-v5", 8, 128, 4, 256, images=True),
}


PONG = {
    "frame_skip": 4,
    "stack_num": 4,
    "noop_max": 30,
    "reward_clip": True,
    "repeat_action_probability": 0.0,
}
"""EnvPool's form of it, for `envpool.make`: what the usual wrappers do to ALE/Pong-v5."""


def column(work: Work, first: int, last: int, made: list[Stopwatch]) -> Callable[[], gym.Env]:
    """A maker of single environments; the first one that it makes is watched, and put into `made`."""

    def make() -> gym.Env:
        env = gym.make(work.env_id)
        if made:
            return env
        made.append(Stopwatch(env, first, last, work.envs))
        return made[0]

    return make


def batch(
    work: Work, first: int, last: int, made: list[VectorStopwatch]
) -> Callable[[], gym.vector.VectorEnv]:
    """A maker of all environments as one object."""

    def make() -> gym.vector.VectorEnv:
        vector = gym.make_vec(work.env_id, work.envs, vectorization_mode="vector_entry_point")
        made.append(VectorStopwatch(vector, first, last))
        return made[0]

    return make
