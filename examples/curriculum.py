"""A curriculum: a task that is never solved from the start is solved by way of easier ones.

A door with sixteen locks in a row: at each one of two keys turns, the other one ends the episode, and only the last
lock pays. A beginner opens all of them once in 65,536 episodes. The scheduler starts in front of the last lock and
moves the start away as the agent succeeds.

Run it:  python examples/curriculum.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import uniarena

KEYS = (0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 1, 1, 1, 0, 1)


class Door(gym.Env[np.ndarray, np.int64]):
    """Open the last `difficulty` of `locks` locks; the observation is which one comes next."""

    def __init__(self, locks: int = len(KEYS)) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (locks,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.locks, self.lock = locks, 0
        self.difficulty = locks  # the task that is meant, and that evaluations keep

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.lock = self.locks - self.difficulty
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        turned = bool(action == KEYS[self.lock])
        self.lock += int(turned)
        opened = self.lock == self.locks
        over = opened or not turned
        return self._look(), float(opened), over, False, {"is_success": opened} if over else {}

    def _look(self) -> np.ndarray:
        return np.eye(self.locks + 1, self.locks, dtype=np.float32)[self.lock]


def main(env_steps: int = 40_960, locks: int = len(KEYS)) -> tuple[float, float]:
    """Train without a curriculum and with one; prints and returns the shares of episodes that open the door."""
    scheduler = {"type": "curriculum", "start": 1, "end": locks, "step": 1, "raise_at": 0.8, "window": 16}
    shares = []
    for name, callbacks in (("no curriculum", []), ("a curriculum", [scheduler])):
        config = {
            "experiment": {"seed": 0, "loggers": [{"type": "jsonl"}]},
            "environment": {"id": Door, "kwargs": {"locks": locks}, "num_envs": 8},
            "learner": {
                "type": "ppo",
                "n_steps": 64,
                "batch_size": 128,
                "n_epochs": 4,
                "learning_rate": 3e-3,
            },
            "training": {"total_timesteps": env_steps, "n_eval_episodes": 20},
            "callbacks": callbacks,
        }
        with tempfile.TemporaryDirectory() as folder:
            result = uniarena.train(config, run_dir=Path(folder) / "run", quiet=True)
        assert result.eval is not None
        shares.append(result.eval.return_mean)
        print(f"{locks} locks, {name}: opened in {shares[-1]:.0%} of episodes")
    return shares[0], shares[1]


if __name__ == "__main__":
    main()
