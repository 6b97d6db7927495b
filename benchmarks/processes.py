"""What whole processes cost: imports, help, the way to the first update, and a short run beside Stable-Baselines3.

    python benchmarks/processes.py                              # builds a virtual environment for the peers
    python benchmarks/processes.py --venv /tmp/peers            # or takes one that `peers.py --keep` left

Seconds of wall and processor and the peak of resident memory, of each process from its start to its end; they take
turns. The JSON file goes to benchmarks/speed/processes.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peers import HERE, ROOT, build, machine, spread

WHOLE = str(HERE / "contenders" / "whole.py")
ENV = "import torch, gymnasium; gymnasium.make('CartPole-v1').reset()"
PROCESSES: dict[str, list[str]] = {
    "python alone": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import torch and the environment": ["-c", ENV],
    "import uniarena": ["-c", "import uniarena"],
    "uniarena --help": ["-m", "uniarena", "--help"],
    "uniarena train, to the first update": [WHOLE, "uniarena", "first"],
    "uniarena, 10,240 steps": [WHOLE, "uniarena"],
    "stable-baselines3, 10,240 steps": [WHOLE, "sb3"],
}


def run(python: Path, arguments: list[str]) -> dict[str, float]:
    """One process → what it took."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen([str(python), *arguments], env=environment, stdout=said, stderr=said)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            raise SystemExit(f"{arguments} failed:\n{said.read().decode()[-3000:]}")
    cpu = usage.ru_utime + usage.ru_stime
    return {"wall_s": time.perf_counter() - started, "cpu_s": cpu, "peak_mib": usage.ru_maxrss / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--venv", type=Path, help="folder of the peers' environment")
    parser.add_argument("--pip-args", default="", help="more arguments for pip")
    parser.add_argument("--json", type=Path, default=HERE / "speed" / "processes.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        python = build(args.venv or Path(folder), args.pip_args.split())
        host = machine(python)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in PROCESSES}
        for _ in range(args.repetitions):
            for name, arguments in PROCESSES.items():
                runs[name].append(run(python, arguments))
    print("| process | wall, s | processor, s | peak, MiB |\n|---|---|---|---|")
    for name, rows in runs.items():
        found = {key: spread([row[key] for row in rows]) for key in rows[0]}
        shown = [f"{x['median']:.2f} ({x['least']:.2f}–{x['most']:.2f})" for x in found.values()]
        print(f"| {name} | {' | '.join(shown)} |")
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"machine": host, "runs": runs}, indent=1) + "\n")
    print(f"wrote {args.json}", file=sys.stderr)


if __name__ == "__main__":
    main()
