"""Forty cells to the only reward: found by counting visits, and not without it.

At every cell one action leads on and the other one back to the beginning, and which is which differs from cell to cell:
a beginner gets to the end once in 2³⁹ tries. A bonus for cells that were visited seldom leads there.

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
ONWARD = np.random.default_rng(40).integers(2, size=CELLS)


class LongChain(gym.Env[np.int64, np.int64]):
    """From cell 0 to the last one, where the reward is 1; the observation is the cell."""

    observation_space = spaces.Discrete(CELLS)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.time = 0, 2 * CELLS
        return np.int64(self.cell), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        self.cell = self.cell + 1 if action == ONWARD[self.cell] else 0
        self.time -= 1
        there = self.cell == CELLS - 1
        return np.int64(self.cell), float(there), there, self.time == 0 and not there, {}


def main() -> None:
    story = Path(__file__).with_suffix(".yaml")
    with tempfile.TemporaryDirectory() as folder:
        for name, overrides in (("with counts", []), ("without", ["agent.intrinsic=null"])):
            here = ["environment.id=long_chain:LongChain"]  # this file, as its own folder sees it
            result = uniarena.train(story, [*here, *overrides], run_dir=Path(folder) / name, quiet=True)
            assert result.eval is not None
            print(f"{name}: the end is reached in {result.eval.return_mean:.0%} of episodes")


if __name__ == "__main__":
    main()
