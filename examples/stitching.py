"""A maze learned from walks none of which leads from its start to its goal: parts of them must be put together.

The way from S to G has 22 steps, and no walk of the data more than 14. They begin anywhere and go anywhere, and not
every step is wise. Whoever clones them goes back and forth; whoever learns values from them finds the way. The best
return is known by dynamic programming. Fu et al. 2020 (arXiv:2004.07219), section 5, ask for such data.

    python examples/stitching.py stitching.npz      # writes the data alone
    uniarena train examples/stitching.yaml          # IQL on it
    uniarena train examples/stitching.yaml learner='{type: bc}'

Run all three, on three seeds:  python examples/stitching.py
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import uniarena
from uniarena.data import Episode, Recorder

WALLS = """
S.....#..
####..#..
.....##.#
.##......
.#..###..
.#.#.....
...#.####
.###.....
.......#G
"""
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
GOAL, STEP = 10.0, -0.1
LONGEST, HORIZON = 14, 100
PLAIN = {"expectile": None, "advantage_scale": None}  # keys that are IQL's
LEARNERS: dict[str, dict[str, Any]] = {  # what changes in stitching.yaml
    "iql": {},
    "discrete_cql": {**PLAIN, "type": "discrete_cql", "conservative": 0.05},
    "bc": {**PLAIN, "type": "bc", "tau": None},
}


class Maze(gym.Env[np.int64, np.int64]):
    """The observation is the cell, actions are up, right, down and left; 10 at the goal, −0.1 for every other step."""

    def __init__(self) -> None:
        self.rows = WALLS.split()
        self.free = [(r, c) for r, row in enumerate(self.rows) for c, mark in enumerate(row) if mark != "#"]
        self.number = {cell: k for k, cell in enumerate(self.free)}
        self.start, self.goal = (
            next(k for k, (r, c) in enumerate(self.free) if self.rows[r][c] == mark) for mark in "SG"
        )
        self.observation_space = spaces.Discrete(len(self.free))
        self.action_space = spaces.Discrete(len(MOVES))
        self.cell, self.time = self.start, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.time = self.start, 0
        return np.int64(self.cell), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        self.cell, reward, there = self.move(self.cell, int(action))
        self.time += 1
        return np.int64(self.cell), reward, there, self.time == HORIZON and not there, {}

    def move(self, cell: int, action: int) -> tuple[int, float, bool]:
        """(next cell, reward, whether it is the goal); walls stop."""
        (row, column), (down, right) = self.free[cell], MOVES[action]
        after = self.number.get((row + down, column + right), cell)
        return after, GOAL if after == self.goal else STEP, after == self.goal

    def values(self, goal: int) -> np.ndarray:
        """`[cells]`: the most that can be earned on the way to a cell, by value iteration until nothing changes."""
        found = np.full(len(self.free), -np.inf)
        while True:
            before, found = found, np.array([self._best(found, cell, goal) for cell in range(len(self.free))])
            if np.array_equal(before, found):
                return found

    def _best(self, values: np.ndarray, cell: int, goal: int) -> float:
        after = [self.move(cell, action)[0] for action in range(len(MOVES))]
        return max(GOAL if k == goal else STEP + values[k] for k in after)


def write(path: Path, walks: int = 600, seed: int = 0) -> Path:
    """Walks of at most `LONGEST` steps, each from some cell towards some other, every fifth step in any direction."""
    maze, rng = Maze(), np.random.default_rng(seed)
    to = [maze.values(goal) for goal in range(len(maze.free))]
    recorder = Recorder(
        maze.observation_space, maze.action_space, {"id": "examples.stitching:Maze"}, {"made_by": "walks"}
    )
    while recorder.episodes < walks:
        here, there = (int(k) for k in rng.choice(len(maze.free), 2, replace=False))
        cells, actions, rewards, over = [here], [], [], here == maze.goal
        while len(actions) < LONGEST and cells[-1] != there and not over:
            steps = [maze.move(cells[-1], action) for action in range(len(MOVES))]
            best = [GOAL if k == there else to[there][k] for k, _, _ in steps]
            actions.append(int(rng.integers(4) if rng.random() < 0.2 else np.argmax(best)))
            after, reward, over = steps[actions[-1]]
            cells.append(after)
            rewards.append(reward)
        if not actions:
            continue
        ends = np.zeros((2, len(actions)), bool)
        ends[:, -1] = over, not over
        recorder.add(Episode(np.array(cells), np.array(actions), np.array(rewards), ends[0], ends[1], True))
    return recorder.save(path)


def main(updates: int = 3_000, seeds: Sequence[int] = (0, 1, 2)) -> dict[str, list[float]]:
    """Train each learner; prints and returns its shares of the best return, one for each seed."""
    maze, shares = Maze(), {name: [] for name in LEARNERS}
    best = float(maze.values(maze.goal)[maze.start])
    story = Path(__file__).with_suffix(".yaml")
    with tempfile.TemporaryDirectory() as folder:
        data = write(Path(folder) / "stitching.npz")
        for name, changes in LEARNERS.items():
            for seed in seeds:
                run = {
                    "environment": {"id": Maze},
                    "learner": changes,
                    "experiment": {"seed": seed},
                    "data": {"path": str(data)},
                    "training": {
                        "total_updates": updates,
                        "eval_interval": updates,
                        "save_interval": updates,
                    },
                }
                result = uniarena.train([story, run], run_dir=f"{folder}/{name}-{seed}", quiet=True)
                assert result.eval is not None
                shares[name].append(result.eval.return_mean / best)
            print(
                f"{name}: {' '.join(f'{share:.0%}' for share in shares[name])} of the best return, {best:.2f}"
            )
    return shares


if __name__ == "__main__":
    if sys.argv[1:]:
        print(f"wrote {write(Path(sys.argv[1]))}")
    else:
        main()
