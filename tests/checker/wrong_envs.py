"""Environments with one fault each. The line that must change carries the comment `# <- here`."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Good(gym.Env):
    """obs [3] float32 in [-1, 1], two actions, episodes of five steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), 1.0, self.t >= 5, False, {}

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


class WrongShape(Good):
    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return np.zeros((3, 1), np.float32), *rest  # <- here


class WrongDtype(Good):
    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return (obs * 10).astype(np.int64) // 10, *rest  # <- here


class MissingKey(Good):
    def __init__(self) -> None:
        super().__init__()
        box = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.observation_space = spaces.Dict({"pos": box, "vel": spaces.Dict({"x": box, "y": box})})

    def observe(self) -> Any:
        return {"pos": super().observe(), "vel": {"x": super().observe(), "y": super().observe()}}

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        del obs["vel"]["y"]
        return obs, *rest  # <- here


class ExtraKey(MissingKey):
    def step(self, action: Any) -> Any:
        obs, *rest = Good.step(self, action)
        obs["time"] = self.t
        return obs, *rest  # <- here


class RewardShape(Good):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, np.ones(2), *rest  # <- here


class NoneInfo(Good):
    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        return *rest, None  # <- here


class OutOfBounds(Good):
    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        obs[1] = 1.5
        return obs, *rest  # <- here


class ForgottenReturn(Good):
    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:  # <- here
        super().reset(seed=seed)


class FourTuple(Good):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info  # <- here


class NotANumber(Good):
    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        obs[2] = np.nan
        return obs, *rest  # <- here


class ChangedInPlace(Good):
    def __init__(self) -> None:
        super().__init__()
        self.state = np.zeros(3, np.float32)

    def observe(self) -> Any:
        self.state[0] = self.t / 10
        return self.state

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), 1.0, self.t >= 5, False, {}  # <- here


class NotRepeatable(Good):
    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        obs[0] = random.uniform(-1, 1)
        return obs, *rest  # <- here


class Huge(Good):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (2, 5), np.float32)

    def observe(self) -> Any:
        return np.full((2, 5), 2e6, np.float32)

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, -3e7, *rest  # <- here


class Raises(Good):
    def step(self, action: Any) -> Any:
        return {}["speed"]  # <- here


class ManyFaults(Good):
    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        obs, _ = super().reset(seed=seed)
        return obs[:2], None

    def step(self, action: Any) -> Any:
        obs, *_ = super().step(action)
        obs[0] = np.inf
        return obs, "good", 1, None, []
