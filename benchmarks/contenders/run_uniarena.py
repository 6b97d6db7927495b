"""UniArena on one task: what `uniarena train` does with these settings, logs too; evaluation and saving left out."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import gymnasium as gym
import psutil
from on_policy import PONG, WORK, Work, batch, column
from stopwatch import Stopwatch, arguments

from uniarena import assembly
from uniarena.config import load
from uniarena.seeding import seed_globals
from uniarena.trainer import Trainer

NEVER = 10**9
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "sac-halfcheetah": ("HalfCheetah-v5", {"type": "sac", "learning_starts": 100}),
    "dqn-cartpole": (
        "CartPole-v1",
        {"type": "dqn", "learning_starts": 100, "target_update_env_steps": 10_000},
    ),
}
"""Environment and `learner` section. What is not named is the default, and that is the same for all contenders."""


def sections(args: argparse.Namespace, made: list[Any]) -> dict[str, Any]:
    """`environment` and `learner` of a task; the watched environment is put into `made`."""
    if args.task in WORK:
        work = WORK[args.task]
        if work.images:
            return pong(work, args.threads)
        make: Any = (batch if work.native else column)(work, args.first, args.last, made)
        return {"environment": {"id": make, "num_envs": work.envs}, "learner": learner_of(work)}
    env_id, learner = TASKS[args.task]

    def single() -> gym.Env:
        made.append(Stopwatch(gym.make(env_id), args.first, args.last))
        return made[-1]

    return {"environment": {"id": single}, "learner": learner}


def build(args: argparse.Namespace, total: int, made: list[Any], folder: Path) -> Trainer:
    """The trainer of a task for so many environment steps."""
    return assembled(args, total, sections(args, made), folder)


def assembled(
    args: argparse.Namespace, total: int, parts: dict[str, Any], folder: Path, callbacks: Sequence[Any] = ()
) -> Trainer:
    """A trainer of these sections that neither evaluates nor saves."""
    config = {
        **parts,
        "experiment": {"seed": args.seed},
        "training": {
            "total_timesteps": total,
            "threads": args.threads,
            "eval_every_env_steps": NEVER,
            "save_every_env_steps": NEVER,
        },
        "callbacks": [{"type": "evaluate", "at_end": False}],
    }
    exp = load([config], [])
    assembly.check(exp)
    seed_globals(args.seed)
    return assembly.build_trainer(exp, folder, {}, quiet=True, callbacks=callbacks)[0]


class Watch:
    """Takes the time when so many steps of each environment are collected, for environments that cannot be watched."""

    def __init__(self, first: int, last: int, envs: int) -> None:
        self.bounds, self.envs = [first, last], envs
        self.marks: list[tuple[float, float]] = []
        self.steps: list[int] = []

    def on_batch_collected(self, trainer: Any, event: Any) -> None:
        done = trainer.counters.steps // self.envs
        if len(self.marks) < 2 and done >= self.bounds[len(self.marks)]:
            there = [psutil.Process(pid).cpu_times() for pid in getattr(trainer.sampler, "pids", ())]
            spent = sum(times.user + times.system for times in there)
            self.marks.append((time.perf_counter(), time.process_time() + spent))
            self.steps.append(trainer.counters.steps)


def learner_of(work: Work) -> dict[str, Any]:
    """The section `learner`."""
    settings = {"n_steps": work.steps, "n_epochs": work.epochs, "batch_size": work.batch}
    rates = {"learning_rate": 2.5e-4, "clip_range": 0.1} if work.images else {"learning_rate": 3e-4}
    return {"type": "ppo", **rates, **settings}


def pong(work: Work, threads: int) -> dict[str, Any]:
    """The sections of a run on EnvPool's Pong."""
    kwargs = {**PONG, "num_threads": threads}
    return {
        "environment": {"id": f"envpool/{work.env_id}", "num_envs": work.envs, "kwargs": kwargs},
        "agent": {"policy": {"network": "nature_cnn"}},
        "learner": learner_of(work),
    }


def watched(args: argparse.Namespace, sampling: dict[str, Any]) -> NoReturn:
    """A whole run, timed between two chunks by the trainer's own clock."""
    envs, vectorization = 1, "auto"
    if args.task not in WORK:
        env_id, learner = TASKS[args.task]
        parts: dict[str, Any] = {"learner": learner}
    else:
        work = WORK[args.task]
        envs, env_id, parts = work.envs, work.env_id, {"learner": learner_of(work)}
        vectorization = "native" if work.native else "auto"
        if work.images:  # all cores, as torch has; beside a learner that has them, one
            parts = pong(work, args.threads if sampling["type"] == "local" else 1)
    parts = {
        "environment": {"id": env_id, "num_envs": envs, "vectorization": vectorization},
        **parts,
        "sampling": sampling,
    }
    total, watch = (args.last + 1) * envs, Watch(args.first, args.last, envs)
    with tempfile.TemporaryDirectory() as folder:
        trainer = assembled(args, total, parts, Path(folder), [watch])
        trainer.fit(total)
        trainer.close()
    (wall, cpu), (wall_end, cpu_end) = watch.marks
    row = {"steps": watch.steps[1] - watch.steps[0], "wall_s": wall_end - wall, "cpu_s": cpu_end - cpu}
    print(json.dumps(row))
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    args = arguments()
    if args.task in WORK and WORK[args.task].images:
        watched(args, {"type": "local"})
    made: list[Any] = []
    total = (args.last + 1) * (WORK[args.task].envs if args.task in WORK else 1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = build(args, total, made, Path(folder))
        trainer.fit(total)
    made[0].watch.report(updates=trainer.counters.updates)


if __name__ == "__main__":
    main()
