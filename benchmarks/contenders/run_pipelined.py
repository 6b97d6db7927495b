"""UniArena with its environments in a producer process: the same settings, and the time taken between two chunks.

The environments are in another process, so the stopwatch is the trainer's: from the chunk that ends at step `first` to
the one that ends at step `last`. The processor's time is that of both processes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from on_policy import WORK
from run_uniarena import TASKS, assembled
from stopwatch import arguments


class Watch:
    """Takes the time when so many steps of each environment are collected."""

    def __init__(self, first: int, last: int, envs: int) -> None:
        self.bounds, self.envs = [first, last], envs
        self.marks: list[tuple[float, float]] = []
        self.steps: list[int] = []

    def on_batch_collected(self, trainer: Any, event: Any) -> None:
        done = trainer.counters.steps // self.envs
        if len(self.marks) < 2 and done >= self.bounds[len(self.marks)]:
            there = [psutil.Process(pid).cpu_times() for pid in trainer.sampler.pids]
            spent = sum(times.user + times.system for times in there)
            self.marks.append((time.perf_counter(), time.process_time() + spent))
            self.steps.append(trainer.counters.steps)


def main() -> None:
    args = arguments()
    if args.task in WORK:
        work = WORK[args.task]
        envs, env_id = work.envs, work.env_id
        learner = {"type": "ppo", "learning_rate": 3e-4, "n_steps": work.steps, "n_epochs": work.epochs}
        learner["batch_size"] = work.batch
        vectorization = "native" if work.native else "auto"
    else:
        envs, vectorization = 1, "auto"
        env_id, learner = TASKS[args.task]
    total = (args.last + 1) * envs
    parts = {
        "environment": {"id": env_id, "num_envs": envs, "vectorization": vectorization},
        "learner": learner,
        "sampling": {"type": "pipelined"},
    }
    watch = Watch(args.first, args.last, envs)
    with tempfile.TemporaryDirectory() as folder:
        trainer = assembled(args, total, parts, Path(folder), [watch])
        trainer.fit(total)
        trainer.close()
    (wall, cpu), (wall_end, cpu_end) = watch.marks
    row = {"steps": watch.steps[1] - watch.steps[0], "wall_s": wall_end - wall, "cpu_s": cpu_end - cpu}
    print(json.dumps(row))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
