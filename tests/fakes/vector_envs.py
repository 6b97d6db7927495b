"""A native gymnasium vector env that counts, in each of the three autoreset modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv


class CounterVectorEnv(VectorEnv):
    """obs [B, 1] float32 = steps since the reset; episodes of column b last lengths[b] steps; reward 1.

    The arrays are reused between steps, as fast native vector envs do, so an adapter that keeps one without
    a copy fails.
    """

    def __init__(
        self,
        num_envs: int = 4,
        lengths: Sequence[int] = (1, 2, 3, 5),
        mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        end: str = "termination",
        render_mode: str | None = None,
    ) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode(mode), "render_modes": ["rgb_array"]}
        self.mode, self.end = AutoresetMode(mode), end
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(0.0, np.inf, (num_envs, 1), np.float32)
        self.action_space = spaces.MultiDiscrete([2] * num_envs)
        self.lengths = np.resize(np.asarray(lengths), num_envs)
        self.t = np.zeros(num_envs, np.int64)
        self.done = np.zeros(num_envs, bool)
        self.real_steps = np.zeros(num_envs, np.int64)
        self._obs = np.zeros((num_envs, 1), np.float32)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        mask = (options or {}).get("reset_mask")
        mask = np.ones(self.num_envs, bool) if mask is None else mask
        self.t[mask], self.done[mask] = 0, False
        self._obs[:, 0] = self.t
        return self._obs, {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        assert actions.shape == (self.num_envs,)
        resetting = (
            self.done.copy() if self.mode == AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        )
        if self.mode == AutoresetMode.DISABLED and self.done.any():
            raise RuntimeError("a finished env was stepped without a reset")
        self.t = np.where(resetting, 0, self.t + 1)
        self.real_steps += ~resetting
        self.done = ~resetting & (self.t >= self.lengths)
        ended, info = self.done.copy(), {}
        if self.mode == AutoresetMode.SAME_STEP and ended.any():
            final = np.empty(self.num_envs, object)
            for b in np.flatnonzero(ended):
                final[b] = np.array([self.t[b]], np.float32)
            info = {"final_obs": final, "_final_obs": ended, "final_info": {}, "_final_info": ended}
            self.t[ended] = 0
            self.done[:] = False
        self._obs[:, 0] = self.t
        none = np.zeros(self.num_envs, bool)
        reward = np.where(resetting, 0.0, 1.0)
        flags = (ended, none) if self.end == "termination" else (none, ended)
        return self._obs, reward, *flags, info
