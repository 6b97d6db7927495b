"""Columns of gymnasium's serial vector environment: what runs around each single one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from uniarena.envs.column import begin, explain_step, scalar_reward
from uniarena.envs.info import plain_info, reports


class Column(gym.Wrapper):
    """Around one environment of a vector: seeds its spaces, reduces its info, keeps its last observation."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset; with a seed, the spaces' own sampling is seeded too."""
        return begin(self.env, seed, options), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; of info only what we reduce to numbers is kept."""
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
        except ValueError as error:
            raise explain_step(self.env, error) from error
        if terminated or truncated:
            obs = copy.deepcopy(obs)  # the reset that follows may write to the same memory
        told = plain_info(info) if info and reports(info) else {}
        return obs, scalar_reward(reward), bool(terminated), bool(truncated), told


def sync_vector(makers: Sequence[Callable[[], gym.Env]]) -> SyncVectorEnv:
    """Gymnasium's serial vector environment over these makers, resetting in the same step."""
    columns = [lambda make=make: Column(make()) for make in makers]
    return SyncVectorEnv(columns, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
