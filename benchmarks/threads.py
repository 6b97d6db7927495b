"""Whether the default number of threads suits small networks: PPO on CartPole with it, with one, and with all cores.

    python benchmarks/threads.py             # about two minutes where nothing else runs
    python benchmarks/threads.py --quick

The three are runs of `uniarena train` in processes of their own that take turns, beginning with another one in every
repetition. A ratio is time with the default / time otherwise, in one repetition; with one thread it must not be above
1.1 (`LIMIT`), and the exit status says whether it is. The JSON file goes to benchmarks/speed/threads.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from peers import machine, spread

HERE = Path(__file__).resolve().parent
LIMIT = 1.1
STEPS, QUICK = 32_768, 8_192
CODE = """
import json, resource, sys, tempfile, time, torch, uniarena
settings = [f"training.total_timesteps={sys.argv[1]}", f"training.threads={sys.argv[2]}", "training.n_eval_episodes=1"]
with tempfile.TemporaryDirectory() as folder:
    result = uniarena.train("ppo/cartpole", settings, run_dir=folder + "/run", quiet=True)
print(json.dumps({"threads": torch.get_num_threads(), "wall_s": result.wall_s, "cpu_s": time.process_time()}))
"""


def run(threads: str, steps: int) -> dict[str, Any]:
    """One training → threads that it took, seconds of its loop, and of the processor for the whole process."""
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    environment["PYTHONPATH"] = str(HERE.parent / "src")
    command = [sys.executable, "-c", CODE, str(steps), threads]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps; nothing is written")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path, help="default: benchmarks/speed/threads.json")
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    host = machine(Path(sys.executable))
    choices = {"default": "auto", "one": "1", "all": str(cores)}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in choices}
    names = list(choices)
    for repetition in range(args.repetitions):
        turn = repetition % len(names)
        for name in names[turn:] + names[:turn]:
            row = run(choices[name], QUICK if args.quick else STEPS)
            runs[name].append(row)
            print(f"{name:8} {row['threads']} thread(s) {row['wall_s']:7.2f} s", file=sys.stderr)
    ratios = {
        name: {
            clock: spread(
                [ours[clock] / theirs[clock] for ours, theirs in zip(runs["default"], rows, strict=True)]
            )
            for clock in ("wall_s", "cpu_s")
        }
        for name, rows in runs.items()
        if name != "default"
    }
    taken = runs["default"][0]["threads"]
    print(f"PPO CartPole-v1 takes {taken} of {cores} cores by default")
    for name, of in ratios.items():
        wall, cpu = of["wall_s"], of["cpu_s"]
        print(
            f"time with the default / with {name:3}: {wall['median']:.2f} ({wall['least']:.2f}–{wall['most']:.2f}), "
            f"of the processor {cpu['median']:.2f} ({cpu['least']:.2f}–{cpu['most']:.2f})"
        )
    output = args.json or (None if args.quick else HERE / "speed" / "threads.json")
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        stored = {
            "cores": cores,
            "default_threads": taken,
            "time_of_default_over": ratios,
            "machine": host,
            "runs": runs,
        }
        output.write_text(json.dumps(stored, indent=1) + "\n")
    slower = median(
        of / one
        for of, one in zip(*([r["wall_s"] for r in runs[n]] for n in ("default", "one")), strict=True)
    )
    return int(slower > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
