"""Environments with goals, whose rewards for other goals are pure functions of what was reached."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Obs = dict[str, np.ndarray]


class BitFlip(gym.Env[Obs, int]):
    """Flip one bit at a time until all equal the goal: reward 0 there, else −1. Cut off after `limit` steps.

    Andrychowicz et al. 2017 (arXiv:1707.01495), section 3.1.
    """

    def __init__(self, bits: int = 15, limit: int | None = None) -> None:
        self.bits, self.limit = bits, bits if limit is None else limit
        bit = spaces.Box(0, 1, (bits,), np.float32)
        self.observation_space: spaces.Space[Any] = spaces.Dict(
            {"achieved_goal": bit, "desired_goal": bit, "observation": bit}
        )
        self.action_space = spaces.Discrete(bits)
        self.state, self.goal, self.t = np.zeros(bits, np.float32), np.zeros(bits, np.float32), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self.goal = (
            self.np_random.integers(0, 2, self.bits).astype(np.float32) for _ in range(2)
        )
        self.t = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self.state[action] = 1 - self.state[action]
        self.t += 1
        done = bool(self.compute_terminated(self.state, self.goal, {}))
        reward = float(self.compute_reward(self.state, self.goal, {}))
        return self._obs(), reward, done, self.t >= self.limit, {"is_success": done}

    def _obs(self) -> Obs:
        return {
            "observation": self.state.copy(),
            "achieved_goal": self.state.copy(),
            "desired_goal": self.goal.copy(),
        }

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.where((achieved == desired).all(-1), 0.0, -1.0)

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
        return (achieved == desired).all(-1)


class MaskedBits(BitFlip):
    """The same, where the bit that was flipped last may not be flipped back; told by info, and enforced."""

    last = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Obs, dict[str, Any]]:
        self.last = -1
        obs, info = super().reset(seed=seed, options=options)
        return obs, {**info, "action_mask": self.mask()}

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        if not self.mask()[action]:
            raise ValueError(f"bit {action} was flipped just now")
        obs, reward, terminated, truncated, info = super().step(action)
        self.last = int(action)
        return obs, reward, terminated, truncated, {**info, "action_mask": self.mask()}

    def mask(self) -> np.ndarray:
        """int8 `[bits]`, 1 = allowed."""
        return (np.arange(self.bits) != self.last).astype(np.int8)


class Reach(gym.Env[Obs, np.ndarray]):
    """A point in a square that is pushed by at most 0.2 a step; reward −1 until it is near its goal.

    An episode is cut off after `limit` steps and never ends before, as in most tasks of this kind.
    """

    def __init__(self, limit: int = 10) -> None:
        place = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space: spaces.Space[Any] = spaces.Dict(
            {
                "achieved_goal": place,
                "desired_goal": place,
                "observation": spaces.Box(-1.0, 1.0, (3,), np.float32),
            }
        )
        self.action_space = spaces.Box(-0.2, 0.2, (2,), np.float32)
        self.limit, self.t = limit, 0
        self.at = self.goal = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.goal = (self.np_random.uniform(-1, 1, 2).astype(np.float32) for _ in range(2))
        self.t = 0
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self.at = np.clip(self.at + action, -1.0, 1.0).astype(np.float32)
        self.t += 1
        reward = float(self.compute_reward(self.at, self.goal, {}))
        return self._obs(), reward, False, self.t >= self.limit, {"is_success": reward == 0.0}

    def _obs(self) -> Obs:
        seen = np.append(self.at, self.t / self.limit).astype(np.float32)
        return {"observation": seen, "achieved_goal": self.at.copy(), "desired_goal": self.goal.copy()}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        near = np.linalg.norm(np.asarray(achieved) - np.asarray(desired), axis=-1) < 0.3
        return np.where(near, 0.0, -1.0)
