"""Columns of gymnasium's serial vector environment: what runs around each single one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from uniarena.envs.column import begin, explain_step, refuse_none, scalar_reward
from uniarena.envs.info import plain_info, reports
from uniarena.envs.score import Score


class Column(gym.Wrapper):
    """Around one environment of a vector: seeds its spaces, reduces its info, keeps its last observation."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.seen = 0  # games that were reported; plain data, as native state wants it

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset; with a seed, the spaces' own sampling is seeded too."""
        return begin(self.env, seed, options), self._score("ended")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; of info only what we reduce to numbers is kept."""
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
        except ValueError as error:
            raise explain_step(self.env, error) from error
        if terminated is None or truncated is None:
            refuse_none(self.env, terminated, truncated)  # type: ignore[unreachable]
        if terminated or truncated:
            obs = copy.deepcopy(obs)  # the reset that follows may write to the same memory
            info = {**info, **self._score("at_end")}
        told = plain_info(info) if info and reports(info) else {}
        return obs, scalar_reward(reward), bool(terminated), bool(truncated), told

    def _score(self, question: str) -> dict[str, float]:
        score = Score(self.env, self.seen)
        told: dict[str, float] = getattr(score, question)()
        self.seen = score.seen
        return told


def sync_vector(makers: Sequence[Callable[[], gym.Env]]) -> SyncVectorEnv:
    """Gymnasium's serial vector environment over these makers, resetting in the same step."""
    columns = [lambda make=make: Column(make()) for make in makers]
    return SyncVectorEnv(columns, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
