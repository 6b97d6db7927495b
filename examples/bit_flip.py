"""Hindsight experience replay: a reward that is never found by chance, learned from goals reached by accident.

Flip one of `bits` bits at a time until all equal the goal; the reward is 0 there and −1 before. With 15 bits a random
walk meets one state in 32,768. Andrychowicz et al. 2017 (arXiv:1707.01495), section 3.1.

    uniarena train examples/bit_flip.yaml                          # 15 bits, solved
    uniarena train examples/bit_flip.yaml agent.buffer.her=null    # 15 bits, not solved

Run it, with 10 bits:  python examples/bit_flip.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import uniarena


class BitFlip(gym.Env[dict[str, np.ndarray], int]):
    """A goal environment: the keys `achieved_goal` and `desired_goal`, and a reward for any pair of them.

    An episode ends by termination at the goal, by truncation after as many steps as there are bits.
    """

    def __init__(self, bits: int = 15) -> None:
        bit = spaces.Box(0, 1, (bits,), np.float32)
        self.observation_space = spaces.Dict({"achieved_goal": bit, "desired_goal": bit})
        self.action_space = spaces.Discrete(bits)
        self.bits, self.flips = bits, 0
        self.state, self.goal = np.zeros(bits, np.float32), np.zeros(bits, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict]:
        super().reset(seed=seed)
        self.state, self.goal = self.np_random.integers(0, 2, (2, self.bits)).astype(np.float32)
        self.flips = 0
        return self._look(), {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict]:
        self.state[action] = 1.0 - self.state[action]
        self.flips += 1
        reached = bool(self.compute_terminated(self.state, self.goal, {}))
        reward = float(self.compute_reward(self.state, self.goal, {}))
        return self._look(), reward, reached, self.flips >= self.bits, {"is_success": reached}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: dict) -> np.ndarray:
        """0 where the goal `[…, bits]` is reached, −1 elsewhere; hindsight asks it for goals of its own."""
        return (achieved_goal == desired_goal).all(-1).astype(np.float32) - 1.0

    def compute_terminated(
        self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: dict
    ) -> np.ndarray:
        """Whether a goal `[…, bits]` ends the episode: once it is reached."""
        return (achieved_goal == desired_goal).all(-1)

    def _look(self) -> dict[str, np.ndarray]:
        return {"achieved_goal": self.state.copy(), "desired_goal": self.goal.copy()}


def main(env_steps: int = 10_000, bits: int = 10) -> tuple[float, float]:
    """Train with hindsight and without; prints and returns the two evaluated returns (best about −4, worst −10)."""
    returns = []
    for name, her in (("with hindsight", {"ratio": 0.8}), ("without", None)):
        changes = {
            "environment": {"id": BitFlip, "kwargs": {"bits": bits}},
            "agent": {"buffer": {"her": her}},
            "training": {"total_timesteps": env_steps},
        }
        with tempfile.TemporaryDirectory() as folder:
            recipe = Path(__file__).with_suffix(".yaml")
            result = uniarena.train([recipe, changes], run_dir=f"{folder}/run", quiet=True)
        print(f"{bits} bits, {name}: {result.eval}")
        returns.append(result.eval.return_mean)
    return returns[0], returns[1]


if __name__ == "__main__":
    main()
