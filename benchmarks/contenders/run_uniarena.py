"""UniArena on one task: what `uniarena train` does with these settings, logs too; evaluation and saving left out."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from on_policy import WORK, batch, column
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
        make: Any = (batch if work.native else column)(work, args.first, args.last, made)
        settings = {"n_steps": work.steps, "n_epochs": work.epochs, "batch_size": work.batch}
        return {
            "environment": {"id": make, "num_envs": work.envs},
            "learner": {"type": "ppo", "learning_rate": 3e-4, **settings},
        }
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


def main() -> None:
    args = arguments()
    made: list[Any] = []
    total = (args.last + 1) * (WORK[args.task].envs if args.task in WORK else 1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = build(args, total, made, Path(folder))
        trainer.fit(total)
    made[0].watch.report(updates=trainer.counters.updates)


if __name__ == "__main__":
    main()
