"""An external memory: facts that were told at the beginning of an episode are asked for long after.

Three pairs of a key and a value are shown, one a step. Then nothing happens for `gap` steps. Then one of the keys is
shown, and the action must be the value that went with it. Gradients reach back `learner.sequence_length` rows, far less
than the gap: a key-value memory needs no more, since a fact lies in its slot as it was seen.

    uniarena train examples/recall.yaml                                        # solved
    uniarena train examples/recall.yaml agent.memory=null                      # an MLP: chance

Run it:  python examples/recall.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import uniarena

PAIRS, VALUES = 3, 4


class Recall(gym.Env[np.ndarray, int]):
    """Observation: which of three phases (telling, waiting, asking), a key of three, a value of four, each one-hot.

    Args:
        gap: steps of waiting. An episode has 3 + gap + 1 steps; the last action earns 1 if it is right.
    """

    observation_space = spaces.Box(0.0, 1.0, (3 + PAIRS + VALUES,), np.float32)
    action_space = spaces.Discrete(VALUES)

    def __init__(self, gap: int = 60) -> None:
        self.gap, self.t = gap, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.keys = self.np_random.permutation(PAIRS)  # in which order they are told
        self.values = self.np_random.integers(VALUES, size=PAIRS)  # of each key
        self.asked = int(self.np_random.integers(PAIRS))
        self.t = 0
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        right = self.t == PAIRS + self.gap and int(action) == self.values[self.asked]
        self.t += 1
        over = self.t > PAIRS + self.gap
        return self._look(), float(right), over, False, {"is_success": right} if over else {}

    def _look(self) -> np.ndarray:
        obs = np.zeros(3 + PAIRS + VALUES, np.float32)
        if self.t < PAIRS:
            key = self.keys[self.t]
            obs[[0, 3 + key, 3 + PAIRS + self.values[key]]] = 1.0
        elif self.t < PAIRS + self.gap:
            obs[1] = 1.0
        else:
            obs[[2, 3 + self.asked]] = 1.0
        return obs


def main(env_steps: int = 60_000, gap: int = 20) -> tuple[float, float]:
    """Train with the memory and without one; prints and returns the evaluated returns (best 1, chance 0.25)."""
    returns = []
    for name, changes in (("key-value memory", {}), ("no memory", {"agent": {"memory": None}})):
        own = {
            "environment": {"id": Recall, "kwargs": {"gap": gap}},
            "training": {"total_timesteps": env_steps},
        }
        with tempfile.TemporaryDirectory() as folder:
            recipe = Path(__file__).with_suffix(".yaml")
            result = uniarena.train([recipe, {**own, **changes}], run_dir=f"{folder}/run", quiet=True)
        print(f"gap of {gap}, {name}: {result.eval}")
        returns.append(result.eval.return_mean)
    return returns[0], returns[1]


if __name__ == "__main__":
    main()
