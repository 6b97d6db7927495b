"""What every contender measures with: a wrapper around the environment that stops the time between two of its steps.

All of them step the same environment through the same wrapper, so the time from step `first` to step `last` is that of
`last - first` turns of their loops: acting, stepping, storing, learning. Starting up, the warm-up and the end are not
in it. The processor's time is taken beside the wall's: other work on the machine moves it less. Where a contender has
several environments, the first of them counts, or the batch where it is one object: a step is one of all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from typing import Any

import gymnasium as gym
import psutil
from gymnasium.vector import VectorWrapper

STARTED = time.perf_counter()


class Marks:
    """Counts steps; takes the time before the `first` and before the `last` of them.

    Args:
        children: whether environments live in processes of their own, whose processor time counts too.
    """

    def __init__(self, first: int, last: int, envs: int = 1, children: bool = False) -> None:
        self.children = psutil.Process() if children else None
        self.first, self.last, self.envs, self.count = first, last, envs, 0
        self.marks: list[tuple[float, float]] = []
        self.startup = 0.0

    def see(self) -> None:
        """A step is about to be taken."""
        if self.count in (self.first, self.last):
            self.marks.append((time.perf_counter(), time.process_time() + self._elsewhere()))
        if self.count == 0:
            self.startup = time.perf_counter() - STARTED
        self.count += 1

    def _elsewhere(self) -> float:
        others = [] if self.children is None else self.children.children(recursive=True)
        return sum(sum(other.cpu_times()[:2]) for other in others)

    def report(self, **more: Any) -> None:
        """One line of JSON, the last that the process prints."""
        (wall, cpu), (wall_end, cpu_end) = self.marks
        row = {
            "steps": (self.last - self.first) * self.envs,
            "wall_s": wall_end - wall,
            "cpu_s": cpu_end - cpu,
            "startup_s": self.startup,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        print(json.dumps({**row, **more}))
        sys.stdout.flush()
        os._exit(0)  # what a contender does at its end is its own affair


class Stopwatch(gym.Wrapper):
    """Around one environment."""

    def __init__(self, env: gym.Env, first: int, last: int, envs: int = 1) -> None:
        super().__init__(env)
        self.watch = Marks(first, last, envs)

    def step(self, action: Any) -> Any:
        self.watch.see()
        return self.env.step(action)


class VectorStopwatch(VectorWrapper):
    """Around a batch of environments that is one object."""

    def __init__(self, env: gym.vector.VectorEnv, first: int, last: int) -> None:
        super().__init__(env)
        self.watch = Marks(first, last, env.num_envs)

    def step(self, actions: Any) -> Any:
        self.watch.see()
        return self.env.step(actions)


def arguments() -> argparse.Namespace:
    """The command line of every contender."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--first", type=int, required=True, help="environment step at which the time begins")
    parser.add_argument("--last", type=int, required=True, help="and the one at which it ends")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()
