"""What a user might write: environments that work or fail in several ways, a network, callbacks."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces


class Walk(gym.Env[np.ndarray, int]):
    """Ten steps, reward 1 each."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def __init__(self) -> None:
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._obs(), 1.0, self.t >= 10, False, {}

    def _obs(self) -> np.ndarray:
        return np.full(3, 0.1 * self.t, np.float32)


class FailsWhenMade(Walk):
    def __init__(self) -> None:
        raise RuntimeError("the licence server is away")


class FailsInReset(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        raise KeyError("scene")


class FailsInStep(Walk):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.t == 7:
            raise RuntimeError("motor 3 is stuck")
        return super().step(action)


class Speechless(Exception):
    def __str__(self) -> str:
        raise TypeError("no text")


class FailsWithoutWords(Walk):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise Speechless


class FailsLate(FailsInStep):
    """Every episode but the first ones is too long."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        type(self).episodes += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(action) if type(self).episodes > 30 else Walk.step(self, action)


class ChangesShape(Walk):
    def _obs(self) -> np.ndarray:
        return np.zeros(3 if self.t < 5 else 4, np.float32)


class NaNReward(Walk):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float("nan"), terminated, truncated, info


class Talks(Walk):
    """Prints, from Python and past it."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        print("printed by step")
        os.write(1, b"written by step\n")
        return super().step(action)


class Unbounded(Walk):
    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Far(Walk):
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def _obs(self) -> np.ndarray:
        return np.full(3, 1e6, np.float32)


class Locked(Walk):
    def __init__(self, api_key: str = "") -> None:
        super().__init__()
        if api_key != "open sesame 123":
            raise RuntimeError("wrong key")


class NoReset:
    observation_space = Walk.observation_space
    action_space = Walk.action_space

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(3, np.float32), 1.0, False, False, {}


class Network(torch.nn.Module):
    def __init__(self, obs_dim: int, act_dim: int, width: int = 8) -> None:
        super().__init__()
        self.trunk = torch.nn.Linear(obs_dim, width)
        self.action = torch.nn.Linear(width, act_dim)
        self.value = torch.nn.Linear(width, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.trunk(obs))
        return self.value(hidden), self.action(hidden)


class CtrlC:
    """Sends the signal of Ctrl-C at the end of the second iteration."""

    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        if trainer.counters.iterations == 2:
            os.kill(os.getpid(), signal.SIGINT)


class Impatient:
    """Twice Ctrl-C."""

    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        if trainer.counters.iterations == 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)


class Fails:
    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        raise RuntimeError("oops in my callback")


class NeedsArgument:
    def __init__(self, target: float) -> None:
        self.target = target


class LateCtrlC:
    """Sends the signal of Ctrl-C during the last evaluation, between its two modes."""

    def on_validation_epoch(self, trainer: Any, event: Any) -> None:
        if trainer.counters.env_steps == trainer.total_env_steps and event.result.mode == "stochastic":
            os.kill(os.getpid(), signal.SIGINT)


class LateTerm:
    """Sends SIGTERM when all that is left is to save."""

    def on_training_end(self, trainer: Any, event: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


class Solved:
    """Ends the run at 64 steps; then comes Ctrl-C."""

    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        if trainer.counters.env_steps == 64:
            trainer.request_stop("solved")
            os.kill(os.getpid(), signal.SIGINT)


class StopsInLastChunk(Walk):
    """Sends the signal of Ctrl-C from its 100th step in this process on, once."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        type(self).steps += 1
        if type(self).steps == 100:
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


class HangsAtClose(Walk):
    """Hangs whenever it is closed; while it is for the first time, somebody loses patience."""

    closings = waited_in_vain = 0

    def close(self) -> None:
        HangsAtClose.closings += 1
        if HangsAtClose.closings == 1:
            os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(20.0)
        HangsAtClose.waited_in_vain += 1


class StoppedWhenMade(Walk):
    """The scheduler says that time is up while the environment is made."""

    def __init__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        super().__init__()


class KeepsKey(Locked):
    """Keeps what it was given, in an attribute and in a dict, and says it where it fails."""

    def __init__(self, api_key: str = "", fails: bool = False) -> None:
        super().__init__(api_key)
        self.api_key, self.settings, self.fails = api_key, {"password": api_key, "level": 3}, fails

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.api_key == self.settings["password"] == "open sesame 123"
        if self.fails:
            raise RuntimeError(f"no login with {self.api_key}")
        return super().step(action)


class KeyedNetwork(Network):
    def __init__(self, obs_dim: int, act_dim: int, api_key: str = "") -> None:
        super().__init__(obs_dim, act_dim)
        assert api_key == "open sesame 123"
