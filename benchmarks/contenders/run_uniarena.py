"""UniArena on one task: what `uniarena train` does with these settings, logs too; evaluation and saving left out."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
from stopwatch import Stopwatch, arguments

from uniarena import assembly
from uniarena.config import load
from uniarena.seeding import seed_globals

NEVER = 10**9
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "sac-halfcheetah": ("HalfCheetah-v5", {"type": "sac", "learning_starts": 100}),
    "dqn-cartpole": (
        "CartPole-v1",
        {"type": "dqn", "learning_starts": 100, "target_update_env_steps": 10_000},
    ),
}
"""Environment and `learner` section. What is not named is the default, and that is the same for all contenders."""


def main() -> None:
    args = arguments()
    env_id, learner = TASKS[args.task]
    made: list[Stopwatch] = []

    def make() -> gym.Env:
        made.append(Stopwatch(gym.make(env_id), args.first, args.last))
        return made[-1]

    config = {
        "experiment": {"seed": args.seed},
        "environment": {"id": make},
        "learner": learner,
        "training": {
            "total_timesteps": args.last + 1,
            "threads": args.threads,
            "eval_every_env_steps": NEVER,
            "save_every_env_steps": NEVER,
        },
        "callbacks": [{"type": "evaluate", "at_end": False}],
    }
    exp = load([config], [])
    assembly.check(exp)
    seed_globals(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer, _ = assembly.build_trainer(exp, Path(folder), {}, quiet=True)
        trainer.fit(args.last + 1)
    made[0].report(updates=trainer.counters.updates)


if __name__ == "__main__":
    main()
