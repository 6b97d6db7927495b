"""A graph as an observation: entities in no order, some of them missing, linked by edges.

One of the nodes is the agent's own; which colour has the only node that it is linked to? Nodes lie in random slots,
empty slots hold random numbers. A graph encoder hears it from the neighbour, whichever slots the two are in. To an MLP
it is a table of 112 numbers.

    uniarena train examples/neighbours.yaml                               # solved
    uniarena train examples/neighbours.yaml agent.policy.encoders=null    # an MLP: not solved

Run it:  python examples/neighbours.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import uniarena

SLOTS, COLOURS = 8, 4


class Neighbours(gym.Env[dict[str, np.ndarray], int]):
    """Episodes of one step. Observation: `nodes [8, 5]` (own or not, and one of four colours), `there [8]`,
    `edges [8, 8]`. The reward is 1 for the colour of the own node's only neighbour.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "nodes": spaces.Box(0.0, 1.0, (SLOTS, 1 + COLOURS), np.float32),
                "there": spaces.MultiBinary(SLOTS),
                "edges": spaces.MultiBinary((SLOTS, SLOTS)),
            }
        )
        self.action_space = spaces.Discrete(COLOURS)
        self.answer = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict]:
        right = int(action) == self.answer
        return self._draw(), float(right), True, False, {"is_success": right}

    def _draw(self) -> dict[str, np.ndarray]:
        rng = self.np_random
        slots = rng.permutation(SLOTS)[: rng.integers(3, SLOTS + 1)]
        own, friend, others = slots[0], slots[1], slots[1:]
        colours = rng.integers(COLOURS, size=SLOTS)
        nodes = rng.random((SLOTS, 1 + COLOURS), dtype=np.float32)
        nodes[slots] = 0.0
        nodes[slots, 1 + colours[slots]] = 1.0
        nodes[own, 0] = 1.0
        edges = np.zeros((SLOTS, SLOTS), np.int8)
        edges[np.ix_(others, others)] = np.triu(rng.random((len(others), len(others))) < 0.3, 1)
        edges[own, friend] = 1
        there = np.zeros(SLOTS, np.int8)
        there[slots] = 1
        self.answer = int(colours[friend])
        return {"nodes": nodes, "there": there, "edges": edges | edges.T}


def main(env_steps: int = 30_000) -> tuple[float, float]:
    """Train with a graph encoder and with an MLP; prints and returns the evaluated returns (best 1, chance 0.25)."""
    returns = []
    for name, changes in (("graph", {}), ("mlp", {"agent": {"policy": {"encoders": None}}})):
        with tempfile.TemporaryDirectory() as folder:
            own = {"environment": {"id": Neighbours}, "training": {"total_timesteps": env_steps}, **changes}
            recipe = Path(__file__).with_suffix(".yaml")
            result = uniarena.train([recipe, own], run_dir=f"{folder}/run", quiet=True)
        print(f"{name}: {result.eval}")
        returns.append(result.eval.return_mean)
    return returns[0], returns[1]


if __name__ == "__main__":
    main()
