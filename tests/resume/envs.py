"""Environments that make an exact resume hard: careless with random streams, or with state nobody can read."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class CarelessEnv(gym.Env[np.ndarray, int]):
    """Draws from NumPy's global stream, as much code does: a random walk that action 1 pushes up.

    It ends where it leaves [-2, 2], or after 25 steps; the reward is higher near the middle.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012  (as gymnasium.Env declares it)

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.render_mode = render_mode
        self.at, self.t = 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        self.at, self.t = float(np.random.rand()) - 0.5, 0  # noqa: NPY002
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at += float(np.random.rand()) - 0.75 + 0.5 * action  # noqa: NPY002
        self.t += 1
        return self._obs(), 1.0 - abs(self.at), abs(self.at) > 2.0, self.t >= 25, {}

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), self.t, np.uint8)

    def _obs(self) -> np.ndarray:
        return np.array([self.at, self.t / 25], np.float32)


class OpaqueEnv(CarelessEnv):
    """The same with a part that has no state to give: its native state cannot be saved."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
