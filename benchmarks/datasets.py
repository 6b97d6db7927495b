"""Datasets of our own, for learning from data alone: each with a card beside it, all repeatable from their seeds.

    python benchmarks/datasets.py                                # every task, every kind: hours
    python benchmarks/datasets.py --only pendulum                # one task: about two minutes
    python benchmarks/datasets.py --only lunarlander mixed       # one set
    python benchmarks/datasets.py --only pendulum --quick        # a look: hardly trained, a few episodes

A set is `datasets/<task>/<kind>.npz`, its card `<kind>.md` beside it. Sets are made by the section `data.made_from` of
a config (docs/offline.md): a recipe is trained, ten of its agents are kept and evaluated, and what some of them do is
recorded; of replay it is the learner's own experience. What is there already is not made again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from uniarena.config import parse
from uniarena.data import load
from uniarena.data.config import MadeFromConfig
from uniarena.run.making import Making

FOLDER = Path("datasets")
KINDS = ("random", "medium", "expert", "mixed", "replay")
TASKS = {
    "pendulum": ("sac/pendulum", 150),
    "lunarlander": ("dqn/lunarlander", 300),
    "lunarlander-continuous": ("sac/lunarlander-continuous", 300),
    "halfcheetah": ("sac/halfcheetah", 100),
}
"""Task → recipe and episodes."""
QUICK = {"env_steps": 1_000, "episodes": 6}


def make(task: str, kind: str, seed: int = 0, quick: bool = False) -> Path:
    """Make one set, unless it is there → its file."""
    recipe, episodes = TASKS[task]
    size = QUICK if quick else {"episodes": episodes}
    how = parse(MadeFromConfig, {"recipe": recipe, "kind": kind, "seed": seed, **size})
    folder = FOLDER / (f"{task}-quick" if quick else task)
    name = kind if not seed else f"{kind}-seed-{seed}"
    return Making(folder / f"{name}.npz", how).make(quiet=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="tasks, kinds, or both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.only) - {*TASKS, *KINDS}
    if unknown:
        parser.error(f"{', '.join(unknown)}: expected of {', '.join((*TASKS, *KINDS))}")
    for task in [name for name in TASKS if name in arguments.only] or TASKS:
        for kind in [name for name in KINDS if name in arguments.only] or KINDS:
            path = make(task, kind, arguments.seed, arguments.quick)
            data = load(path)
            low, high = data.returns.min(), data.returns.max()
            print(
                f"{path}: {data.episodes:,} episodes, {len(data):,} transitions, return {data.returns.mean():.1f} "
                f"({low:.1f} to {high:.1f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
