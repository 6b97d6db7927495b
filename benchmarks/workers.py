"""What a step of environments in worker processes costs, beside gymnasium's AsyncVectorEnv.

    python benchmarks/workers.py                 # the table
    python benchmarks/workers.py --json w.json   # and as data
    python benchmarks/workers.py --env Pendulum-v1 --columns 8

Blocks of steps of all forms take turns, so that a busy neighbour slows each of them alike. Wall time is the parent's,
process time that of the parent and its workers together. The ratio is the median, over the blocks, of gymnasium's wall
time over ours: above 1, ours is the faster. Run with one thread: OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from uniarena.envs import WorkersConfig, make_env


class Contender:
    """One form of the same columns.

    Attributes:
        wall, cpu: microseconds of one step of all columns, of every block.
    """

    def __init__(self, step: Callable[[Any], Any], close: Callable[[], None], actions: np.ndarray) -> None:
        self.step, self.close, self.actions = step, close, actions
        self.wall: list[float] = []
        self.cpu: list[float] = []
        me = psutil.Process()
        self.workers = me.children()

    def block(self, steps: int) -> None:
        before, start = self._cpu(), time.perf_counter()
        for k in range(steps):
            self.step(self.actions[k % len(self.actions)])
        self.wall.append((time.perf_counter() - start) / steps * 1e6)
        self.cpu.append((self._cpu() - before) / steps * 1e6)

    def _cpu(self) -> float:
        times = [process.cpu_times() for process in self.workers]
        return time.process_time() + sum(t.user + t.system for t in times)


def contenders(env_id: str, columns: int, processes: list[int]) -> dict[str, Contender]:
    """Gymnasium's form with a process for each column, and ours with several numbers of processes."""
    found: dict[str, Contender] = {}
    space = gym.make(env_id).action_space
    space.seed(0)
    actions = np.stack([[space.sample() for _ in range(columns)] for _ in range(64)])

    def theirs() -> Contender:
        makes = [lambda: gym.make(env_id)] * columns
        vector = AsyncVectorEnv(makes, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        vector.reset(seed=0)
        return Contender(vector.step, vector.close, actions)

    def ours(count: int) -> Contender:
        env = make_env(env_id, columns, vectorization=WorkersConfig(processes=count))
        env.reset(seed=0)
        return Contender(env.step, env.close, actions)

    before: set[int] = set()
    for name, make in [
        (f"gymnasium, {columns} processes", theirs),
        *((f"ours, {count} processes", lambda count=count: ours(count)) for count in processes),
    ]:
        found[name] = make()
        found[name].workers = [p for p in found[name].workers if p.pid not in before]
        before |= {p.pid for p in found[name].workers}
    return found


def measure(
    env_id: str, columns: int, processes: list[int], blocks: int, steps: int
) -> dict[str, dict[str, float]]:
    """Name → medians of wall and process time in µs per step of all columns, and the ratio to gymnasium's."""
    forms = contenders(env_id, columns, processes)
    try:
        for form in forms.values():
            form.block(steps)
            form.wall.clear(), form.cpu.clear()
        for _ in range(blocks):
            for form in forms.values():
                form.block(steps)
    finally:
        for form in forms.values():
            form.close()
    first = next(iter(forms.values()))
    rows = {}
    for name, form in forms.items():
        pairs = np.array(first.wall) / np.array(form.wall)  # of neighbours in time
        rows[name] = {
            "wall_us": float(np.median(form.wall)),
            "best_us": float(np.min(form.wall)),
            "process_us": float(np.median(form.cpu)),
            "ratio": float(np.median(pairs)),
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--columns", type=int, default=4)
    parser.add_argument("--processes", type=int, nargs="*", help="of ours; by default all, half and two")
    parser.add_argument("--blocks", type=int, default=25)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    columns = given.columns
    processes = given.processes or sorted({columns, max(1, columns // 2), min(2, columns)}, reverse=True)
    rows = measure(given.env, columns, processes, given.blocks, given.steps)
    print(f"{given.env}, {columns} columns: a step of all of them")
    print(f"{'':28}{'wall µs':>10}{'best µs':>10}{'process µs':>12}{'ratio':>8}")
    for name, row in rows.items():
        figures = f"{row['wall_us']:10.1f}{row['best_us']:10.1f}{row['process_us']:12.1f}{row['ratio']:8.2f}"
        print(f"{name:28}{figures}")
    if given.json:
        given.json.write_text(
            json.dumps({"env": given.env, "columns": columns, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
