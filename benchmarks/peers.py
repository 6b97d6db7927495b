"""How fast UniArena is beside other libraries, on the same work: ratios with their spread, and a JSON file.

    python benchmarks/peers.py off-policy            # builds a virtual environment for the peers, then measures
    python benchmarks/peers.py off-policy --quick    # a look, in a third of the time
    python benchmarks/peers.py pipelined             # the same with the environments in a process of their own
    python benchmarks/peers.py atari                 # Pong through EnvPool, beside SB3's wrappers and the convolutions
    python benchmarks/peers.py off-policy --venv /tmp/peers --keep    # keeps it for the next time

Every contender is a process of its own that steps the same environment, with the same networks, batch and schedule,
through the same stopwatch (`contenders/stopwatch.py`). They take turns, and the order turns too, so that a busy or a
throttled machine is so for all of them; each repetition gives one ratio, and the table shows the median and the range.
Wall time is what counts on a quiet machine; the processor's time, beside it, is moved less by neighbours.

The peers are never a dependency of the project: they live in that environment, together with what UniArena itself
needs, so that all run on the same torch, numpy and simulators.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PINS = ["torch==2.13.0", "stable-baselines3==2.9.2", "skrl==2.1.1"]
SHOWN = ("torch", "numpy", "gymnasium", "mujoco", "stable_baselines3", "skrl", "envpool", "ale_py")
FLOOR, UPDATES, PIPELINED, CONVOLUTIONS = "floor", "updates", "pipelined", "convolutions"


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        task: as the contenders know it.
        first, last, last_quick: steps of all environments together between which the time is taken; whole rollouts.
        targets: contender → how many times as fast UniArena has to be.
        contenders: the first is ours; `floor` is what no arrangement of the rest can beat, `updates` our own updates
            alone on a rollout that is there, `convolutions` EnvPool and what the networks compute, in turns.
    """

    task: str
    threads: int
    first: int
    last: int
    last_quick: int
    targets: dict[str, float] = field(default_factory=dict)
    contenders: tuple[str, ...] = ("uniarena", "sb3", "skrl")

    @property
    def name(self) -> str:
        how = ", pipelined" if self.contenders[0] == PIPELINED else ""
        return f"{self.task}{how}, {self.threads} thread{'' if self.threads == 1 else 's'}"


SAC = ("uniarena", "sb3", "skrl", FLOOR)
PPO = ("uniarena", "sb3", "skrl", UPDATES)
BESIDE = (PIPELINED, "sb3")
PONG = ("sb3", UPDATES, CONVOLUTIONS)
SUITES = {
    "off-policy": [
        Line("sac-halfcheetah", 1, 250, 900, 450, {"sb3": 1.3}, SAC),
        Line("sac-halfcheetah", 2, 250, 900, 450, {"sb3": 1.4}, SAC),
        Line("dqn-cartpole", 1, 2000, 10_000, 5000, {"sb3": 4.0}),
    ],
    "on-policy": [
        Line("ppo-cartpole", 1, 256, 4096, 1536, {"sb3": 2.7}, PPO),
        Line("ppo-cartpole-64", 1, 64, 1344, 384, {"sb3": 2.2, UPDATES: 0.8}, PPO),
        Line("ppo-halfcheetah", 1, 256, 1280, 768, {}, PPO),
    ],
    "pipelined": [
        Line("ppo-cartpole", 1, 256, 4096, 1536, {"sb3": 5.0}, (*BESIDE, UPDATES)),
        Line("ppo-cartpole-64", 1, 64, 1344, 384, {"sb3": 2.7}, (*BESIDE, UPDATES)),
        Line("ppo-halfcheetah", 1, 256, 1280, 768, {"sb3": 3.0}, (*BESIDE, UPDATES)),
        Line("sac-halfcheetah", 2, 250, 900, 450, {"sb3": 1.4}, BESIDE),
        Line("dqn-cartpole", 1, 2000, 10_000, 5000, {"sb3": 4.0}, BESIDE),
    ],
    "atari": [
        Line("ppo-pong", 2, 128, 384, 256, {CONVOLUTIONS: 0.8}, ("uniarena", *PONG)),
        Line("ppo-pong", 2, 256, 512, 384, {CONVOLUTIONS: 0.8}, (PIPELINED, CONVOLUTIONS)),
    ],
}
EXTRAS = {"atari": ("atari", "envpool")}
"""Optional parts of the project that a suite needs besides `mujoco`."""


def build(folder: Path, pip: list[str], suite: str = "") -> Path:
    """The peers' virtual environment with the project's own requirements → its Python."""
    python = folder / "bin" / "python"
    if python.exists():
        return python
    print(f"installing {', '.join(PINS)} into {folder}", file=sys.stderr)
    venv.create(folder, with_pip=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [*EXTRAS.get(suite, ()), "mujoco"]
    wanted = [
        *project["dependencies"],
        *(x for name in extras for x in project["optional-dependencies"][name]),
        *PINS,
    ]
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        str(ROOT / "constraints.txt"),
        *pip,
        *wanted,
    ]
    subprocess.run(command, check=True)
    return python


def run(python: Path, who: str, line: Line, quick: bool, seed: int) -> dict[str, Any]:
    """One process of one contender → what it measured."""
    threads = str(line.threads)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        **{f"{name}_NUM_THREADS": threads for name in ("OMP", "MKL", "OPENBLAS")},
    }
    last = line.last_quick if quick else line.last
    numbers = {"--threads": threads, "--first": line.first, "--last": last, "--seed": seed}
    command = [str(python), str(HERE / "contenders" / f"run_{who}.py"), line.task]
    command += [str(part) for pair in numbers.items() for part in pair]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    try:
        row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise SystemExit(f"{who} failed on {line.name}:\n{done.stderr[-3000:]}") from None
    return row


def measure(python: Path, line: Line, repetitions: int, quick: bool) -> dict[str, list[dict[str, Any]]]:
    """Contender → its runs. In every repetition each runs once, beginning with another one each time."""
    runs: dict[str, list[dict[str, Any]]] = {who: [] for who in line.contenders}
    for repetition in range(repetitions):
        turn = repetition % len(line.contenders)
        for who in line.contenders[turn:] + line.contenders[:turn]:
            row = run(python, who, line, quick, seed=repetition)
            runs[who].append(row)
            print(
                f"{line.name:28} {repetition + 1}/{repetitions} {who:10} {row['steps'] / row['wall_s']:9.1f} steps/s  "
                f"{1e3 * row['cpu_s'] / row['steps']:8.3f} ms of the processor a step",
                file=sys.stderr,
            )
    return runs


def spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "least": min(values), "most": max(values)}


def compare(line: Line, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Rates of each, and how many times as fast UniArena was in the same repetition, by both clocks."""
    mine = line.contenders[0]
    result: dict[str, Any] = {"threads": line.threads, "ours": mine, "rates": {}, "uniarena_is": {}}
    for who, rows in runs.items():
        result["rates"][who] = {
            "steps_per_s": spread([row["steps"] / row["wall_s"] for row in rows]),
            "cpu_ms_per_step": spread([1e3 * row["cpu_s"] / row["steps"] for row in rows]),
        }
    for who, rows in runs.items():
        if who == mine:
            continue
        ratios = {}
        for clock in ("wall_s", "cpu_s"):
            pairs = zip(runs[mine], rows, strict=True)
            ratios[clock.removesuffix("_s")] = spread(
                [(theirs[clock] / theirs["steps"]) / (ours[clock] / ours["steps"]) for ours, theirs in pairs]
            )
        result["uniarena_is"][who] = {**ratios, "target": line.targets.get(who)}
    return {**result, "runs": runs}


def table(found: dict[str, dict[str, Any]]) -> str:
    """What is printed at the end. The floor's ratio is the share of the time that its products alone would take."""
    lines = [
        "| work | UniArena, steps/s | against | theirs, steps/s | ratio, wall | ratio, processor | target |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in found.items():
        for who, ratios in result["uniarena_is"].items():
            rates = [result["rates"][x]["steps_per_s"]["median"] for x in (result["ours"], who)]
            shown = [
                f"{r['median']:.2f} ({r['least']:.2f}–{r['most']:.2f})"
                for r in (ratios["wall"], ratios["cpu"])
            ]
            target = "" if ratios["target"] is None else f"≥ {ratios['target']:g}"
            lines.append(
                f"| {name} | {rates[0]:,.0f} | {who} | {rates[1]:,.0f} | {shown[0]} | {shown[1]} | {target} |"
            )
    return "\n".join(lines)


def machine(python: Path) -> dict[str, Any]:
    """Where it was measured, and with which versions."""
    info = Path("/proc/cpuinfo")
    names = [x.split(":", 1)[1].strip() for x in info.read_text().splitlines() if x.startswith("model name")]
    code = (
        "import json, platform, sys; from importlib.metadata import distributions; "
        "found = {d.metadata['Name'].lower().replace('-', '_'): d.version for d in distributions()}; "
        f"print(json.dumps({{'python': platform.python_version(), **{{n: found.get(n) for n in {SHOWN}}}}}))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    versions = json.loads(done.stdout)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "processor": names[0] if names else "unknown",
        "cores": len(names),
        "load_before": [round(x, 2) for x in os.getloadavg()],
        "versions": versions,
        "commit": commit.stdout.strip(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=list(SUITES))
    parser.add_argument("--quick", action="store_true", help="fewer steps and repetitions")
    parser.add_argument("--repetitions", type=int, help="default: 3, quick 2")
    parser.add_argument("--only", help="lines whose name begins with this")
    parser.add_argument(
        "--venv", type=Path, help="folder of the peers' environment, used again if it is there"
    )
    parser.add_argument("--keep", action="store_true", help="do not remove it")
    parser.add_argument(
        "--pip-args", default="", help="more arguments for pip, such as an index of CPU wheels"
    )
    parser.add_argument(
        "--json", type=Path, help="default: benchmarks/speed/<suite>.json; not written by --quick"
    )
    args = parser.parse_args()
    started, folder = time.perf_counter(), args.venv or Path(tempfile.mkdtemp(prefix="peers-"))
    there = (folder / "bin" / "python").exists()
    try:
        python = build(folder, args.pip_args.split(), args.suite)
        host, found = machine(python), {}
        for line in SUITES[args.suite]:
            if line.name.startswith(args.only or ""):
                runs = measure(python, line, args.repetitions or (2 if args.quick else 3), args.quick)
                found[line.name] = compare(line, runs)
    finally:
        if not (args.keep or there):
            shutil.rmtree(folder, ignore_errors=True)
    print(table(found))
    output = args.json or (None if args.quick or args.only else HERE / "speed" / f"{args.suite}.json")
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        minutes = round((time.perf_counter() - started) / 60, 1)
        host["load_after"] = [round(x, 2) for x in os.getloadavg()]
        stored = {"suite": args.suite, "machine": host, "minutes": minutes, "lines": found}
        output.write_text(json.dumps(stored, indent=1) + "\n")
        print(f"wrote {output}", file=sys.stderr)


if __name__ == "__main__":
    main()
