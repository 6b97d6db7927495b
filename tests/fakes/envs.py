"""Small environments whose every number can be computed by hand; shared by all tests.

CounterEnv shows the step count, so a transition says where in its episode it lies: obs 0 is a reset, obs N
the end.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.fakes.legacy import (
    LegacyBareEnv,
    LegacyBox,
    LegacyDiscrete,
    LegacyFiveEnv,
    LegacyNoResetEnv,
)
from tests.fakes.tensor_envs import IsaacCounter, TensorCounter
from tests.fakes.vector_envs import CounterVectorEnv

__all__ = [
    "ChainEnv",
    "ContinuousTargetEnv",
    "CounterEnv",
    "CounterVectorEnv",
    "EchoEnv",
    "Float64PendulumEnv",
    "HybridActionEnv",
    "IsaacCounter",
    "LegacyBareEnv",
    "LegacyBox",
    "LegacyDiscrete",
    "LegacyFiveEnv",
    "LegacyNoResetEnv",
    "MaskInfoEnv",
    "MaskObsEnv",
    "MultiDiscreteMaskEnv",
    "NestedObsEnv",
    "RewardKindsEnv",
    "SpaceEnv",
    "TensorCounter",
]

End = Literal["termination", "truncation"]


class CounterEnv(gym.Env[np.ndarray, int]):
    """obs = [steps since the reset] in float32; the k-th episode lasts `lengths[k % len(lengths)]` steps.

    reward is `reward` each step, `last_reward` (if given) on the last one. `actions` keeps what arrived.
    `difficulty` is a plain attribute for get/set/call tests.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012  (as gymnasium.Env declares it)

    def __init__(
        self,
        length: int | Sequence[int] = 3,
        end: End = "termination",
        reward: float = 1.0,
        last_reward: float | None = None,
        metrics: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.lengths = [length] if isinstance(length, int) else list(length)
        self.end, self.reward, self.metrics = end, reward, metrics
        self.last_reward = reward if last_reward is None else last_reward
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.t, self.episode = 0, -1
        self.actions: list[int] = []
        self.difficulty = 0
        self.seeds: list[int | None] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t, self.episode = 0, self.episode + 1
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.actions.append(int(action))
        self.t += 1
        done = self.t >= self.lengths[self.episode % len(self.lengths)]
        info: dict[str, Any] = {"metrics": {"progress": self.t}, "is_success": done} if self.metrics else {}
        reward = self.last_reward if done else self.reward
        return (
            self._obs(),
            reward,
            done and self.end == "termination",
            done and self.end == "truncation",
            info,
        )

    def double(self, value: int) -> int:
        """A method to be reached by `call`."""
        return 2 * value + self.difficulty

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), self.t, np.uint8)

    def _obs(self) -> np.ndarray:
        return np.array([self.t], np.float32)


class EchoEnv(gym.Env[int, int]):
    """Repeat what you see: reward 1 where action == obs, else 0. Both are Discrete(n, start); raises on
    foreign actions.
    """

    def __init__(self, n: int = 3, start: int = 0, length: int = 8) -> None:
        self.observation_space = spaces.Discrete(n, start=start)
        self.action_space = spaces.Discrete(n, start=start)
        self.length = length
        self.t, self.shown = 0, start

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self.t = 0
        return self._next(), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"EchoEnv got action {action!r}, outside of {self.action_space}")
        reward = float(action == self.shown)
        self.t += 1
        return self._next(), reward, False, self.t >= self.length, {}

    def _next(self) -> int:
        space = self.action_space
        self.shown = int(space.start + self.np_random.integers(space.n))  # type: ignore[attr-defined]
        return self.shown


class ChainEnv(gym.Env[np.ndarray, int]):
    """Five states in a row, one-hot obs; action 1 goes right, 0 left; reward 1 and the end on the last
    state.
    """

    def __init__(self, n: int = 5, limit: int = 20) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (n,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.n, self.limit, self.at, self.t = n, limit, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.at = self.t = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.at = min(self.at + 1, self.n - 1) if action else max(self.at - 1, 0)
        done = self.at == self.n - 1
        return self._obs(), float(done), done, self.t >= self.limit, {}

    def _obs(self) -> np.ndarray:
        return np.eye(self.n, dtype=np.float32)[self.at]


class ContinuousTargetEnv(gym.Env[np.ndarray, np.ndarray]):
    """One step per episode: reward = -sum |action - target|. The bounds default to infinite ones."""

    def __init__(
        self, dim: int = 2, target: float = 3.0, bound: float = np.inf, dtype: Any = np.float32
    ) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Box(-bound, bound, (dim,), dtype)
        self.target = target

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert action.dtype == self.action_space.dtype and self.action_space.contains(action), (
            action.dtype,
            action,
        )
        return np.ones(1, np.float32), -float(np.abs(action - self.target).sum()), True, False, {}


class Float64PendulumEnv(gym.Env[np.ndarray, np.ndarray]):
    """A pendulum in float64 throughout: observation [cos, sin, speed] and torque Box(-2, 2); truncated after
    200 steps.
    """

    def __init__(self) -> None:
        high = np.array([1.0, 1.0, 8.0])
        self.observation_space = spaces.Box(-high, high, dtype=np.float64)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float64)
        self.theta, self.speed, self.t = 0.0, 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.theta, self.speed = self.np_random.uniform(-np.pi, np.pi), self.np_random.uniform(-1, 1)
        self.t = 0
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert action.dtype == np.float64 and self.action_space.contains(action), (action.dtype, action)
        self.t += 1
        angle = (self.theta + np.pi) % (2 * np.pi) - np.pi
        cost = angle**2 + 0.1 * self.speed**2 + 0.001 * action[0] ** 2
        self.speed = float(np.clip(self.speed + 0.05 * (15 * np.sin(self.theta) + 3 * action[0]), -8, 8))
        self.theta += 0.05 * self.speed
        return self._obs(), -cost, False, self.t >= 200, {}

    def _obs(self) -> np.ndarray:
        return np.array([np.cos(self.theta), np.sin(self.theta), self.speed])


class SpaceEnv(gym.Env[Any, Any]):
    """Any spaces: observations are samples drawn from the env's own generator; fixed length; reward 1."""

    def __init__(
        self, observation_space: spaces.Space, action_space: spaces.Space | None = None, length: int = 4
    ):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self.length, self.t = length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} not in {self.action_space}"
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t >= self.length, False, {}


class NestedObsEnv(SpaceEnv):
    """Dict in Dict with floats, an image and a Discrete leaf."""

    def __init__(self, length: int = 4) -> None:
        sensors = spaces.Dict(
            {
                "pos": spaces.Box(-1.0, 1.0, (3,), np.float32),
                "cam": spaces.Box(0, 255, (36, 36, 3), np.uint8),
            }
        )
        super().__init__(spaces.Dict({"sensors": sensors, "task": spaces.Discrete(4)}), length=length)


class HybridActionEnv(SpaceEnv):
    """Dict action with a Discrete(start), a Box and a Tuple leaf; asserts membership at every step."""

    def __init__(self, length: int = 4) -> None:
        action = spaces.Dict(
            {
                "gear": spaces.Discrete(3, start=1),
                "throttle": spaces.Box(0.0, 2.0, (2,), np.float64),
                "rest": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3], start=[1, 5]))),
            }
        )
        super().__init__(spaces.Box(-1.0, 1.0, (2,), np.float32), action, length=length)


class MaskInfoEnv(CounterEnv):
    """A counter of 3 actions whose mask comes by info: at count t only action t % 3 is allowed; raises on
    others.

    At the end the mask is all zero (nothing is allowed), as many turn-based games do.
    """

    def __init__(
        self, length: int | Sequence[int] = 4, end: End = "termination", key: str = "action_mask"
    ) -> None:
        super().__init__(length, end)
        self.action_space = spaces.Discrete(3)
        self.key = key

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        obs, info = super().reset(seed=seed, options=options)
        return obs, {**info, self.key: self.mask()}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self.mask()[action]:
            raise ValueError(f"action {action} is masked at count {self.t}: {self.mask()}")
        obs, reward, terminated, truncated, info = super().step(action)
        mask = np.zeros(3, np.int8) if terminated or truncated else self.mask()
        return obs, reward, terminated, truncated, {**info, self.key: mask}

    def mask(self) -> np.ndarray:
        """int8 [3], 1 = allowed."""
        return (np.arange(3) == self.t % 3).astype(np.int8)


class MaskObsEnv(gym.Wrapper):
    """MaskInfoEnv with the mask inside a dict observation: {"observation": [t], "action_mask": [3]}."""

    def __init__(self, length: int | Sequence[int] = 4, end: End = "termination") -> None:
        super().__init__(MaskInfoEnv(length, end))
        self.observation_space = spaces.Dict(
            {"observation": self.env.observation_space, "action_mask": spaces.Box(0, 1, (3,), np.int8)}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        obs, info = self.env.reset(seed=seed, options=options)
        return {"observation": obs, "action_mask": info.pop("action_mask")}, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return (
            {"observation": obs, "action_mask": info.pop("action_mask")},
            reward,
            terminated,
            truncated,
            info,
        )


class MultiDiscreteMaskEnv(CounterEnv):
    """MultiDiscrete([2, 3]) with a concatenated mask [5] by info; allows only (t % 2, t % 3)."""

    def __init__(self, length: int = 4) -> None:
        super().__init__(length)
        self.action_space = spaces.MultiDiscrete([2, 3])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        obs, info = super().reset(seed=seed, options=options)
        return obs, {**info, "action_mask": self.mask()}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.mask()[action[0]] and self.mask()[2 + action[1]], (action, self.mask())
        obs, reward, terminated, truncated, info = super().step(0)
        return obs, reward, terminated, truncated, {**info, "action_mask": self.mask()}

    def mask(self) -> np.ndarray:
        """bool [2 + 3]."""
        return np.concatenate([np.arange(2) == self.t % 2, np.arange(3) == self.t % 3])


class RewardKindsEnv(CounterEnv):
    """Counter that returns its reward as each kind of scalar in turn; all are worth 1 (the bool is True)."""

    def step(self, action: int) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        import torch

        kinds = [
            1,
            True,
            1.0,
            np.float32(1),
            np.float64(1),
            np.array(1.0),
            np.array([1.0]),
            torch.tensor(1.0),
        ]
        kind = kinds[self.t % len(kinds)]
        obs, _, terminated, truncated, info = super().step(action)
        return obs, kind, terminated, truncated, info


class GrowingCorridor(gym.Env[np.ndarray, int]):
    """Walk `difficulty` cells to the right within twice as many steps; heeded from the next reset on."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 20.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.difficulty: Any = 20

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.goal, self.at, self.t = int(self.difficulty), 0, 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at, self.t = max(0, self.at + (1 if action else -1)), self.t + 1
        there, late = self.at >= self.goal, self.t >= 2 * self.goal
        info = {"is_success": there} if there or late else {}
        return self._obs(), float(there), there, late and not there, info

    def _obs(self) -> np.ndarray:
        return np.array([self.at, self.goal], np.float32)


class OpaqueCorridor(GrowingCorridor):
    """The same with a part that has no state to give."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
