"""Environments of the doctor's trial: the mistakes that lie in the environment, each a few lines."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


def shaped_mountain_car() -> gym.Env[Any, Any]:
    """MountainCar-v0, paid for speed beside: healthy."""
    return _Speed(gym.make("MountainCar-v0"))


class _Speed(gym.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward) + 30 * abs(float(obs[1])), terminated, truncated, info


class NanReward(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole paid by a logarithm that is undefined once the cart is far to the left."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = self.env.step(action)
        with np.errstate(invalid="ignore"):
            reward = float(np.log(np.float64(obs[0]) + 1.2))
        return obs, reward, terminated, truncated, info


class EndsAtOnce(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole whose author ends the episode when the reward is positive, which it always is."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, _, truncated, info = self.env.step(action)
        return obs, float(reward), float(reward) > 0, truncated, info


class BigNumbers(gym.ObservationWrapper[Any, Any, Any]):
    """Pendulum whose sensors tell thousandths and a constant offset: no entry is near 1."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1"))
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def observation(self, observation: Any) -> Any:
        return (np.asarray(observation) * 1e3 + 5e3).astype(np.float32)


class Odometer(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole with the steps made since the beginning of the run among its observations."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float32)
        self.travelled = 0.0

    def _see(self, obs: Any) -> Any:
        return np.append(obs, self.travelled).astype(np.float32)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**options)
        return self._see(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.travelled += 1.0
        return self._see(obs), float(reward), terminated, truncated, info


class SensorFails(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole whose sensors answer only zeros once this instance has made `after` steps."""

    def __init__(self, after: int = 4_000) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.after, self.steps = after, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        return obs * (self.steps < self.after), float(reward), terminated, truncated, info


class NarrowTorque(gym.ActionWrapper[Any, Any, Any]):
    """Pendulum whose action space states a tenth of the torque that the motor has."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1"))
        self.action_space = spaces.Box(-0.2, 0.2, (1,), np.float32)

    def action(self, action: Any) -> Any:
        return action


class TinyUnits(gym.ActionWrapper[Any, Any, Any]):
    """Pendulum whose torque is stated in units of which the bounds are a hundredth."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1"))
        self.action_space = spaces.Box(-0.01, 0.01, (1,), np.float32)

    def action(self, action: Any) -> Any:
        return np.clip(action, -0.01, 0.01) * 200


class OneLevel(gym.Env[Any, np.int64]):
    """Sixteen cells in which one of four keys leads on; which one is drawn by the seed of a reset.

    The cells look the same on every level, so that only levels trained on can be played.
    """

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Discrete(16), spaces.Discrete(4)
        self.keys, self.cell, self.time = np.zeros(16, int), 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.keys = self.np_random.integers(4, size=16)
        self.cell, self.time = 0, 60
        return np.int64(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = bool(action == self.keys[self.cell])
        self.cell += int(right)
        self.time -= 1
        there = self.cell == 15
        return np.int64(self.cell), float(right), there, self.time == 0 and not there, {}


class Aliased(gym.Env[Any, np.int64]):
    """A corridor all of whose cells look alike and every second one has left and right exchanged.

    Sutton & Barto 2018, example 13.1: the best policy is a random one, and its mode gets nowhere.
    """

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)
        self.cell, self.time = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.time = 0, 200
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        move = 1 if action == 1 else -1
        self.cell = max(0, self.cell + (-move if self.cell == 1 else move))
        self.time -= 1
        there = self.cell == 3
        return np.ones(1, np.float32), -1.0, there, self.time == 0 and not there, {}


class Jackpot(gym.Env[Any, np.int64]):
    """Nothing is paid, but for a jackpot of 100 that falls once in some hundred episodes of 20 steps."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)
        self.time = 0

    def _see(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 20
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time -= 1
        won = self.time == 0 and self.np_random.random() < 0.004
        return self._see(), 100.0 * won, self.time == 0, False, {}
