"""What every contender measures with: a wrapper around the environment that stops the time between two of its steps.

All of them step the same environment through the same wrapper, so the time from step `first` to step `last` is that of
`last - first` turns of their loops: acting, stepping, storing, learning. Starting up, the warm-up and the end are not
in it. The processor's time is taken beside the wall's: other work on the machine moves it less.
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

STARTED = time.perf_counter()


class Stopwatch(gym.Wrapper):
    """Counts the steps of one environment; takes the time at the `first` and at the `last` of them."""

    def __init__(self, env: gym.Env, first: int, last: int) -> None:
        super().__init__(env)
        self.first, self.last, self.count = first, last, 0
        self.marks: list[tuple[float, float]] = []
        self.startup = 0.0

    def step(self, action: Any) -> Any:
        if self.count in (self.first, self.last):
            self.marks.append((time.perf_counter(), time.process_time()))
        if self.count == 0:
            self.startup = time.perf_counter() - STARTED
        self.count += 1
        return self.env.step(action)

    def report(self, **more: Any) -> None:
        """One line of JSON, the last that the process prints."""
        (wall, cpu), (wall_end, cpu_end) = self.marks
        row = {
            "steps": self.last - self.first,
            "wall_s": wall_end - wall,
            "cpu_s": cpu_end - cpu,
            "startup_s": self.startup,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        print(json.dumps({**row, **more}))
        sys.stdout.flush()
        os._exit(0)  # what a contender does at its end is its own affair


def arguments() -> argparse.Namespace:
    """The command line of every contender."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--first", type=int, required=True, help="environment step at which the time begins")
    parser.add_argument("--last", type=int, required=True, help="and the one at which it ends")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()
