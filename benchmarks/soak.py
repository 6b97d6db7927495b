"""Whether a long run keeps its memory: 10 million steps of CartPole, with the memory of every process watched.

    python benchmarks/soak.py                          # about five minutes where nothing else runs
    python benchmarks/soak.py --steps 300_000 --json /tmp/soak.json    # a look

PPO on 64 environments in one native vector, pipelined, with the loggers of a real run. Every `--every` seconds the
resident memory of the trainer and of each process below it is read: `rss` as the system counts it, and `own`, which
leaves out what is shared with other processes, where the system tells. Passed where the resident memory of every
process at the end is within `--allowed` MB of what it was after the warm-up (a tenth of the run); the slope is that of
a straight line through everything since. The JSON file goes to benchmarks/speed/soak.json. Exits with 1 if it grew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import uniarena

HERE = Path(__file__).resolve().parent
WARM_UP = 0.1
MB = 1e6


class Memory:
    """A callback that reads the memory of this process and those below it.

    Attributes:
        samples: per process (env steps, seconds, resident MB, own MB).
    """

    def __init__(self, every: float) -> None:
        self.every, self.started = every, time.perf_counter()
        self.last = -every
        self.samples: dict[str, list[tuple[int, float, float, float | None]]] = {}

    def on_training_start(self, trainer: Any, event: Any) -> None:
        self.read(trainer)

    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        if time.perf_counter() - self.started - self.last >= self.every:
            self.read(trainer)

    def on_training_end(self, trainer: Any, event: Any) -> None:
        self.read(trainer)

    def read(self, trainer: Any) -> None:
        """One sample of each process."""
        now, here = time.perf_counter() - self.started, psutil.Process()
        self.last = now
        producers = list(getattr(trainer.sampler, "pids", ()))
        for process in (here, *here.children(recursive=True)):
            try:
                found = process.memory_full_info()
            except psutil.Error:  # it ended meanwhile
                continue
            name = f"process {process.pid}"
            if process.pid == here.pid:
                name = "trainer"
            elif process.pid in producers:
                name = f"producer {producers.index(process.pid)}"
            own = getattr(found, "uss", None)
            sample = (trainer.counters.env_steps, round(now, 1), found.rss / MB, own and own / MB)
            self.samples.setdefault(name, []).append(sample)


def judge(samples: list[tuple[int, float, float, float | None]], total: int) -> dict[str, Any]:
    """What became of one process's memory: at the start, after the warm-up, at the end and at most, and the slope."""
    warm = [sample for sample in samples if sample[0] >= WARM_UP * total] or samples[-1:]
    found: dict[str, Any] = {"start_mb": round(samples[0][2], 1)}
    for name, column in (("", 2), ("own_", 3)):
        values = [sample[column] for sample in warm]
        if any(value is None for value in values):
            continue
        line = (
            np.polyfit([sample[0] / 1e6 for sample in warm], values, 1)[0] if len(warm) > 2 else float("nan")
        )
        figures = {"warm": values[0], "end": values[-1], "most": max(values), "grown": values[-1] - values[0]}
        found |= {f"{name}{key}_mb": round(value, 1) for key, value in figures.items()}
        found[f"{name}mb_per_million_steps"] = round(float(line), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two samples")
    parser.add_argument("--allowed", type=float, default=50.0, help="MB that any process may have grown by")
    parser.add_argument("--json", type=Path, default=HERE / "speed" / "soak.json")
    args = parser.parse_args()
    memory, never = Memory(args.every), 10 * args.steps
    config = {
        "environment": {"id": "CartPole-v1", "num_envs": 64, "vectorization": "native"},
        "learner": {"type": "ppo", "n_steps": 32, "n_epochs": 4, "batch_size": 256},
        "sampling": {"type": "pipelined", "producers": args.producers},
        "training": {
            "total_timesteps": args.steps,
            "threads": 1,
            "eval_every_env_steps": never,
            "save_every_env_steps": max(1, args.steps // 5),
        },
        "callbacks": [{"type": "evaluate", "at_end": False}],
    }
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        result = uniarena.train(config, run_dir=f"{folder}/run", quiet=True, callbacks=[memory])
    seconds = time.perf_counter() - started
    found = {name: judge(samples, args.steps) for name, samples in memory.samples.items()}
    passed = all(row["grown_mb"] <= args.allowed for row in found.values()) and bool(found)
    print(f"{result.env_steps:,} steps in {seconds:.0f} s, {result.env_steps / seconds:,.0f} a second")
    print(
        "| process | start, MB | after the warm-up | end | most | MB a million steps |\n|---|---|---|---|---|---|"
    )
    for name, row in found.items():
        shown = [f"{row[f'{key}_mb']:.1f}" for key in ("start", "warm", "end", "most")]
        print(f"| {name} | {' | '.join(shown)} | {row['mb_per_million_steps']:.3f} |")
    print(f"{'flat' if passed else 'NOT FLAT'} within {args.allowed:g} MB")
    stored = {
        "steps": result.env_steps,
        "seconds": round(seconds, 1),
        "allowed_mb": args.allowed,
        "passed": passed,
        "load": [round(x, 2) for x in os.getloadavg()],
        "processes": found,
        "samples": {
            name: [[n, at, round(rss, 2), None if own is None else round(own, 2)] for n, at, rss, own in rows]
            for name, rows in memory.samples.items()
        },
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(stored) + "\n", encoding="utf-8")
    print(f"wrote {args.json}")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
