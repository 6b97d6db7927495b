"""The single environments inside of a batched one, for those who must know how they were made."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv

from uniarena.envs.column import layers
from uniarena.envs.protocol import Env

REWARD_WRAPPERS = (
    gym.RewardWrapper,
    gym.wrappers.NormalizeReward,
    gym.vector.VectorRewardWrapper,
    gym.wrappers.vector.NormalizeReward,
)


def single_envs(env: Env) -> tuple[list[gym.Env[Any, Any]], bool]:
    """Those below the wrappers of a batched environment; none where it is not made of single ones.

    Returns:
        the environments, and whether they were made only now, which is for the caller to close: where columns live in
        worker processes, it is another one like the first of them.
    """
    base = innermost(env)
    example, vector = getattr(base, "example", None), getattr(base, "vector", None)
    inner = None if vector is None else vector.unwrapped
    if example is not None:
        return ([example], False) if isinstance(example, gym.Env) else ([example()], True)
    if isinstance(inner, AsyncVectorEnv):
        return [inner.env_fns[0]()], True
    return list(getattr(base if inner is None else inner, "envs", ())), False


def innermost(env: Env) -> Any:
    """The batched environment without our wrappers."""
    layer: Any = env
    while hasattr(layer, "env"):
        layer = layer.env
    return layer


def changes_reward(env: Env, single: gym.Env[Any, Any] | None) -> str | None:
    """The name of a gymnasium wrapper, around a single environment or the whole vector, that changes rewards."""
    vector = getattr(innermost(env), "vector", None)
    for layer in (*([] if single is None else layers(single)), *([] if vector is None else layers(vector))):
        if isinstance(layer, REWARD_WRAPPERS):
            return type(layer).__name__
    return None
