"""Forty cells between a crumb and the reward: found by counting visits, and not without it.

Whoever stays in the first cell is paid a thousandth for every step, the last cell pays 1. A beginner soon knows the
crumb and goes nowhere (Osband et al. 2016, arXiv:1602.04621, section 5, has such chains). A bonus for cells that were
visited seldom leads on.

    uniarena train examples/long_chain.yaml
    uniarena train examples/long_chain.yaml agent.intrinsic=null
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import uniarena

CELLS = 40
CRUMB = 0.001


class LongChain(gym.Env[np.int64, np.int64]):
    """Action 1 leads one cell on, action 0 one back; the observation is the cell."""

    observation_space = spaces.Discrete(CELLS)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.time = 0, CELLS + 10
        return np.int64(self.cell), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        stayed = self.cell == 0 and action == 0
        self.cell = max(0, self.cell + (1 if action == 1 else -1))
        self.time -= 1
        there = self.cell == CELLS - 1
        reward = CRUMB * stayed + float(there)
        return np.int64(self.cell), reward, there, self.time == 0 and not there, {}


def main() -> None:
    story = Path(__file__).with_suffix(".yaml")
    with tempfile.TemporaryDirectory() as folder:
        for name, overrides in (("with counts", []), ("without", ["agent.intrinsic=null"])):
            here = ["environment.id=long_chain:LongChain"]  # this file, as its own folder sees it
            result = uniarena.train(story, [*here, *overrides], run_dir=Path(folder) / name, quiet=True)
            assert result.eval is not None
            print(f"{name}: a return of {result.eval.return_mean:.2f}")


if __name__ == "__main__":
    main()
