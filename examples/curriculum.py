"""A curriculum: a task that is never solved from the start is solved by way of easier ones.

A door with sixteen locks in a row: at each one of two keys turns, the other one ends the episode, and only the last
lock pays. A beginner opens all of them once in 65,536 episodes. The scheduler starts in front of the last lock and
moves the start away as the agent succeeds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import uniarena

LOCKS = 16
KEYS = (0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 1, 1, 1, 0, 1)


class Door(gym.Env[np.ndarray, np.int64]):
    """Open the last `difficulty` locks; the observation is which lock comes next."""

    observation_space = spaces.Box(0.0, 1.0, (LOCKS,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.difficulty = LOCKS  # the task that is meant, and that evaluations keep

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.lock = LOCKS - self.difficulty
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        turned = action == KEYS[self.lock]
        self.lock += int(turned)
        opened = self.lock == LOCKS
        over = opened or not turned
        return self._look(), float(opened), over, False, {"is_success": opened} if over else {}

    def _look(self) -> np.ndarray:
        return np.eye(LOCKS + 1, LOCKS, dtype=np.float32)[self.lock]


def config(callbacks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "experiment": {"seed": 0, "loggers": [{"type": "jsonl"}]},
        "environment": {"id": Door, "num_envs": 8},
        "learner": {"type": "ppo", "n_steps": 64, "batch_size": 128, "n_epochs": 4, "learning_rate": 3e-3},
        "training": {"total_timesteps": 40_960, "n_eval_episodes": 20},
        "callbacks": callbacks,
    }


def main() -> None:
    scheduler = {"type": "curriculum", "start": 1, "end": LOCKS, "step": 1, "raise_at": 0.8, "window": 16}
    with tempfile.TemporaryDirectory() as folder:
        for name, callbacks in (("plain", []), ("curriculum", [scheduler])):
            run = Path(folder) / name
            result = uniarena.train(config(callbacks), run_dir=run, quiet=True)
            print(f"{name}: all {LOCKS} locks are opened in {result.eval.return_mean:.0%} of episodes")


if __name__ == "__main__":
    main()
