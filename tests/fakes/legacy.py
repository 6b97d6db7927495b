"""Environments written against the old gym, without importing it: the same names, by shape only."""

from __future__ import annotations

from typing import Any

import numpy as np


def _as_gym_class(cls: type) -> type:
    """Old gym spaces are recognised by module name, so the fakes claim it."""
    cls.__module__ = "gym.spaces." + cls.__name__.lower().removeprefix("legacy")
    cls.__name__ = cls.__name__.removeprefix("Legacy")
    return cls


@_as_gym_class
class LegacyBox:
    """gym.spaces.Box of gym 0.21, as far as its attributes go."""

    def __init__(self, low: float, high: float, shape: tuple[int, ...], dtype: Any = np.float32) -> None:
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)
        self.shape, self.dtype = shape, np.dtype(dtype)


@_as_gym_class
class LegacyDiscrete:
    """gym.spaces.Discrete of gym 0.21 (no start)."""

    def __init__(self, n: int) -> None:
        self.n, self.shape, self.dtype = n, (), np.dtype(np.int64)


@_as_gym_class
class LegacyDict:
    """gym.spaces.Dict of gym 0.21."""

    def __init__(self, spaces: dict[str, Any]) -> None:
        self.spaces, self.shape, self.dtype = spaces, None, None


class LegacyBareEnv:
    """reset() -> obs without info or seed; step -> 4-tuple; a time limit marks
    info["TimeLimit.truncated"].
    """

    def __init__(self, length: int = 3, end: str = "termination", last_reward: float = 1.0) -> None:
        self.observation_space = LegacyBox(0.0, np.inf, (1,))
        self.action_space = LegacyDiscrete(2)
        self.length, self.end, self.last_reward, self.t = length, end, last_reward, 0
        self.seeded: list[int | None] = []

    def seed(self, seed: int | None = None) -> list[int | None]:
        self.seeded.append(seed)
        return [seed]

    def reset(self) -> np.ndarray:
        self.t = 0
        return np.array([0.0], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        self.t += 1
        done = self.t >= self.length
        info = {"TimeLimit.truncated": True} if done and self.end == "truncation" else {}
        return np.array([self.t], np.float32), self.last_reward if done else 1.0, done, info

    def render(self, mode: str = "human") -> np.ndarray | None:
        return np.zeros((4, 4, 3), np.uint8) if mode == "rgb_array" else None


class LegacyFiveEnv(LegacyBareEnv):
    """The 0.26 form: reset(seed, options) -> (obs, info), step -> 5-tuple."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:  # type: ignore[override]
        self.seeded.append(seed)
        return super().reset(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        obs, reward, done, info = super().step(action)
        truncated = bool(info)
        return obs, reward, done and not truncated, truncated, {}


class LegacyNoResetEnv:
    """A class in the old style that forgot reset."""

    def __init__(self) -> None:
        self.observation_space = LegacyBox(0.0, 1.0, (1,))
        self.action_space = LegacyDiscrete(2)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, False, {}
