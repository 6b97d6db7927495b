"""An environment of your own: a Gymnasium class, named by its import path.

    environment: {id: "examples.own_environment:Thermostat", num_envs: 8, kwargs: {outside: -5.0}}

Every key of `kwargs` is an argument of the constructor. Before training time is spent, let the checker look at it:

    uniarena check-env examples.own_environment:Thermostat

Run it:  python examples/own_environment.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import uniarena
from uniarena.envs.checker import check_env, report


class Thermostat(gym.Env[np.ndarray, int]):
    """Keep a room near 21 °C by switching a heater: reward −|error| / 10 − 0.02 while it burns.

    Observation `[2]` float32: temperature minus 21 in tens of degrees, and whether the heater was on. Action: 0 off,
    1 on. An episode is a day of 96 quarters of an hour; it ends by truncation, since the room is still there tomorrow.
    """

    def __init__(self, outside: float = 0.0) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.outside = outside  # °C
        self.temperature, self.heating, self.quarter = 21.0, False, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)  # seeds self.np_random, the only randomness there is
        self.temperature = float(self.np_random.uniform(12.0, 26.0))
        self.heating, self.quarter = False, 0
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.heating, self.quarter = bool(action), self.quarter + 1
        self.temperature += 0.05 * (self.outside - self.temperature) + 2.5 * self.heating
        error = abs(self.temperature - 21.0)
        reward = -error / 10 - 0.02 * self.heating
        info = {"metrics": {"error_celsius": error}}  # numbers under `metrics` reach every logger
        return self._look(), reward, False, self.quarter >= 96, info

    def _look(self) -> np.ndarray:
        return np.array([(self.temperature - 21.0) / 10, self.heating], np.float32)


def main(env_steps: int = 40_000) -> float:
    """Check it, train PPO in it; prints and returns the evaluated return of a day."""
    print(report("Thermostat", check_env(Thermostat)))
    run = {
        "environment": {"id": Thermostat, "num_envs": 8, "kwargs": {"outside": -5.0}},
        "learner": {"type": "ppo", "n_steps": 128, "batch_size": 256, "learning_rate": 1e-3, "gamma": 0.9},
        "training": {"total_timesteps": env_steps},
    }
    with tempfile.TemporaryDirectory() as folder:
        result = uniarena.train(run, run_dir=f"{folder}/run", quiet=True)
    print(f"a day at −5 °C, after {result.env_steps:,} steps; {result.eval}")
    return result.eval.return_mean


if __name__ == "__main__":
    main()
