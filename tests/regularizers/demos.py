"""Demonstrations recorded for tests, and a lock that chance does not open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from uniarena.data import Episode, Recorder

DIALS = 14


class Lock(gym.Env[np.int64, np.int64]):
    """One of four positions at each of `dials` dials; a wrong one ends the episode, the last right one pays 1."""

    def __init__(self, dials: int = DIALS) -> None:
        self.observation_space, self.action_space = spaces.Discrete(dials + 1), spaces.Discrete(4)
        self.dials, self.dial = dials, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed)
        self.dial = 0
        return np.int64(0), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        right = int(action) == secret(self.dial)
        self.dial += right
        there = self.dial == self.dials
        return np.int64(self.dial), float(there), there or not right, False, {}


def secret(dial: Any) -> int:
    return int(dial) * 7 % 4


def record(
    env: gym.Env[Any, Any], path: Path, pick: Callable[[Any], Any] | None = None, episodes: int = 3
) -> str:
    """Episodes of at most 40 steps of `pick(obs)`, or of random actions → the file."""
    recorder = Recorder(env.observation_space, env.action_space, {}, {"made_by": "tests"})
    env.action_space.seed(0)
    for seed in range(episodes):
        seen, actions, rewards, over = [env.reset(seed=seed)[0]], [], [], []
        while len(actions) < 40 and not (over and any(over[-1])):
            actions.append(env.action_space.sample() if pick is None else pick(seen[-1]))
            after, reward, *flags, _ = env.step(actions[-1])
            seen.append(after), rewards.append(reward), over.append(flags)
        terminated, truncated = np.array(over, bool).T
        truncated[-1] = not terminated[-1]
        stacked = stack(seen), stack(actions), np.array(rewards, np.float64)
        recorder.add(Episode(*stacked, terminated, truncated, True))
    recorder.save(path)
    return str(path)


def stack(rows: list[Any]) -> Any:
    if isinstance(rows[0], dict):
        return {key: stack([row[key] for row in rows]) for key in rows[0]}
    return np.stack(rows)
