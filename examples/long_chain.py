"""Forty cells between a crumb and the reward: found by counting visits, and not without it.

Whoever stays in the first cell is paid a thousandth for every step, the last cell pays 1. A beginner soon knows the
crumb and goes nowhere (Osband et al. 2016, arXiv:1602.04621, section 5, has such chains). A bonus for cells that were
visited seldom leads on.

    uniarena train examples/long_chain.yaml
    uniarena train examples/long_chain.yaml agent.intrinsic=null

Run both:  python examples/long_chain.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import uniarena

CRUMB = 0.001


class LongChain(gym.Env[np.int64, np.int64]):
    """Action 1 leads one cell on, action 0 one back; the observation is the cell."""

    def __init__(self, cells: int = 40) -> None:
        self.observation_space = spaces.Discrete(cells)
        self.action_space = spaces.Discrete(2)
        self.cells, self.cell, self.time = cells, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.time = 0, self.cells + 10
        return np.int64(self.cell), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        stayed = self.cell == 0 and action == 0
        self.cell = max(0, self.cell + (1 if action == 1 else -1))
        self.time -= 1
        there = self.cell == self.cells - 1
        reward = CRUMB * stayed + float(there)
        return np.int64(self.cell), reward, there, self.time == 0 and not there, {}


def main(env_steps: int = 100_000, cells: int = 40) -> tuple[float, float]:
    """Train with counts and without; prints and returns the two evaluated returns (1 at the end, 0.05 for crumbs)."""
    returns = []
    for name, counts in (("with counts", {}), ("without", {"agent": {"intrinsic": None}})):
        changes = {
            "environment": {"id": LongChain, "kwargs": {"cells": cells}},
            "training": {"total_timesteps": env_steps},
            **counts,
        }
        with tempfile.TemporaryDirectory() as folder:
            story = Path(__file__).with_suffix(".yaml")
            result = uniarena.train([story, changes], run_dir=Path(folder) / "run", quiet=True)
        assert result.eval is not None
        returns.append(result.eval.return_mean)
        print(f"{cells} cells, {name}: {result.eval}")
    return returns[0], returns[1]


if __name__ == "__main__":
    main()
