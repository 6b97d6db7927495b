"""Tasks that are learned within seconds, one for each kind of space, and what a perfect policy earns in them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Reset = tuple[Any, dict[str, Any]]
Stepped = tuple[Any, float, bool, bool, dict[str, Any]]


class OneStepTask(gym.Env[Any, Any]):
    """Episodes of one step: something is shown, an action answers it. Foreign actions are an error.

    A subclass gives the two spaces, `show()` and `judge(shown, action)`.
    """

    shown: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.shown = self.show()
        return self.shown, {}

    def step(self, action: Any) -> Stepped:
        if not self.action_space.contains(action):
            raise ValueError(f"got {action!r}, outside of {self.action_space}")
        return self.show(), self.judge(self.shown, action), True, False, {}

    def show(self) -> Any:
        raise NotImplementedError

    def judge(self, shown: Any, action: Any) -> float:
        raise NotImplementedError


class EchoNumbers(OneStepTask):
    """MultiDiscrete: 1 for the share of numbers that are repeated."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = spaces.MultiDiscrete([2, 3], start=[1, -5])

    def show(self) -> np.ndarray:
        return self.np_random.integers([2, 3]) + np.array([1, -5])

    def judge(self, shown: np.ndarray, action: np.ndarray) -> float:
        return float((shown == action).mean())


class EchoBits(OneStepTask):
    """MultiBinary: 1 for the share of bits that are repeated."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = spaces.MultiBinary((2, 2))

    def show(self) -> np.ndarray:
        return self.np_random.integers(0, 2, (2, 2)).astype(np.int8)

    def judge(self, shown: np.ndarray, action: np.ndarray) -> float:
        return float((shown == action).mean())


class Cockpit(OneStepTask):
    """Dict observation and hybrid action: choose the gear that is shown, push by what the scale says, ring no bell."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "wanted": spaces.Discrete(3, start=-1),
                "dials": spaces.Tuple((spaces.Box(-1.0, 1.0, (1,), np.float64), spaces.MultiBinary(1))),
            }
        )
        self.action_space = spaces.Dict(
            {
                "gear": spaces.Discrete(3, start=1),
                "push": spaces.Tuple((spaces.Box(-2.0, 2.0, (1,), np.float64), spaces.MultiBinary(2))),
            }
        )

    def show(self) -> dict[str, Any]:
        scale = self.np_random.uniform(-1, 1, 1)
        return {"wanted": int(self.np_random.integers(-1, 2)), "dials": (scale, np.zeros(1, np.int8))}

    def judge(self, shown: dict[str, Any], action: dict[str, Any]) -> float:
        gear = float(action["gear"] == shown["wanted"] + 2)
        push, bells = action["push"]
        return gear - float(np.abs(push - shown["dials"][0]).sum()) - float(bells.sum())


class LegalMoves(OneStepTask):
    """Four moves worth 0, 1, 2 and 3, of which two random ones are legal: take the better one of them.

    Args:
        place: where the mask is given, `info` or `obs`.
    """

    def __init__(self, place: str = "info") -> None:
        self.place, self.legal = place, np.ones(4, np.int8)
        self.action_space = spaces.Discrete(4, start=10)
        plain = spaces.Box(0.0, 1.0, (1,), np.float32)
        mask = spaces.MultiBinary(4)
        self.observation_space = (
            plain if place == "info" else spaces.Dict({"board": plain, "action_mask": mask})
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = super().reset(seed=seed)
        return obs, info | self._told()

    def step(self, action: int) -> Stepped:
        move = int(action) - 10
        if not self.legal[move]:
            raise ValueError(f"move {move} is illegal: {self.legal}")
        best = float(np.flatnonzero(self.legal).max() == move)
        obs, _, terminated, truncated, info = super().step(action)
        return obs, best, terminated, truncated, info | self._told()

    def show(self) -> Any:
        self.legal = np.zeros(4, np.int8)
        self.legal[self.np_random.permutation(4)[:2]] = 1
        board = np.ones(1, np.float32)
        return board if self.place == "info" else {"board": board, "action_mask": self.legal}

    def judge(self, shown: Any, action: Any) -> float:
        return 0.0  # `step` judges before the next board is shown

    def _told(self) -> dict[str, Any]:
        return {"action_mask": self.legal.copy()} if self.place == "info" else {}


class BrightSide(OneStepTask):
    """An image of noise with one bright half: answer 0 for left, 1 for right."""

    def __init__(self, side: int = 36) -> None:
        self.observation_space = spaces.Box(0, 255, (side, side, 1), np.uint8)
        self.action_space = spaces.Discrete(2)
        self.right = False

    def show(self) -> np.ndarray:
        side = self.observation_space.shape[0]  # type: ignore[index]
        picture = self.np_random.integers(0, 60, (side, side, 1)).astype(np.uint8)
        self.right = bool(self.np_random.integers(2))
        half = slice(side // 2, side) if self.right else slice(0, side // 2)
        picture[:, half] += 180
        return picture

    def step(self, action: int) -> Stepped:
        reward = float(bool(action) == self.right)
        obs, _, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info

    def judge(self, shown: Any, action: Any) -> float:
        return 0.0  # `step` judges before the next picture is shown


class NestedTask(OneStepTask):
    """Dict in Dict with large floats, a dark image and a Discrete: 1 for repeating `task`."""

    def __init__(self) -> None:
        sensors = spaces.Dict(
            {
                "pos": spaces.Box(-np.inf, np.inf, (3,), np.float32),
                "cam": spaces.Box(0, 255, (36, 36, 3), np.uint8),
            }
        )
        self.observation_space = spaces.Dict({"sensors": sensors, "task": spaces.Discrete(4)})
        self.action_space = spaces.Discrete(4)

    def show(self) -> dict[str, Any]:
        pos = self.np_random.normal(500.0, 100.0, 3).astype(np.float32)
        cam = self.np_random.integers(0, 8, (36, 36, 3)).astype(np.uint8)
        return {"sensors": {"pos": pos, "cam": cam}, "task": int(self.np_random.integers(4))}

    def judge(self, shown: dict[str, Any], action: int) -> float:
        return float(action == shown["task"])


class CueMemory(gym.Env[np.ndarray, int]):
    """A cue at step 0, noise until step `length` − 1, where the answer counts: 1 if it repeats the cue.

    obs = [is the cue 0, is the cue 1, answer now]. Without memory no policy earns more than 0.5 on average.
    """

    def __init__(self, length: int = 6) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.t, self.cue = length, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.t, self.cue = 0, int(self.np_random.integers(2))
        return self._obs(), {}

    def step(self, action: int) -> Stepped:
        self.t += 1
        done = self.t == self.length
        return self._obs(), float(done and action == self.cue), done, False, {}

    def _obs(self) -> np.ndarray:
        obs = np.zeros(3, np.float32)
        if self.t == 0:
            obs[self.cue] = 1.0
        obs[2] = float(self.t == self.length - 1)
        return obs
