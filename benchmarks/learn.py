"""Measure a recipe's learning result: train one seed, evaluate 100 deterministic episodes, write one JSON.

    python benchmarks/learn.py ppo/cartpole --seeds 0 1 2 3 4
    python benchmarks/learn.py --table          # docs/results.md from every stored JSON

Each file `benchmarks/results/<algorithm>/<task>/seed-<n>.json` holds the command's inputs, the score, the training
returns on the way (`benchmarks/curve.py` draws them) and the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path

import curve
import numpy as np

import uniarena
from uniarena.analysis.statistics import iqm
from uniarena.run import Result

HERE = Path(__file__).parent
RESULTS = HERE / "results"
EPISODES = 100
POINTS = 60  # of a stored curve


def machine() -> str:
    """The processor, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        if info.exists()
        else []
    )
    return f"{names[0] if names else platform.processor() or platform.machine()}, {len(names) or '?'} cores"


def measure(recipe: str, seed: int, overrides: list[str]) -> dict:
    """Train and evaluate one seed in a scratch folder; of a run in stages the agent that each ended with."""
    scratch = Path(tempfile.mkdtemp())
    try:
        result = uniarena.train(
            recipe, [f"experiment.seed={seed}", *overrides], run_dir=scratch / "run", quiet=True
        )
        parts = [scored(part, seed) for part in result.stages or (result,)]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    row = {
        "recipe": recipe,
        "overrides": overrides,
        "seed": seed,
        **parts[-1],
        "wall_s": round(result.wall_s, 1),
        "machine": machine(),
    }
    if result.stages:  # the last one's figures are those of the run
        names = [part.run.name.partition("-")[2] for part in result.stages]
        row["stages"] = [{"name": name, **part} for name, part in zip(names, parts, strict=True)]
    return row


def scored(result: Result, seed: int) -> dict:
    """Length, evaluation and curve of a run that is over."""
    last = result.run / "checkpoints" / str(result.env_steps or result.updates)
    score = uniarena.evaluate(last, EPISODES, seed=10_000 + seed, trust=True)  # it was made here
    return {
        **({"env_steps": result.env_steps} if result.env_steps else {"updates": result.updates}),
        "eval": score.to_json(),
        **({"curve": curve_of(result.run)} if result.env_steps else {}),  # from data nobody plays on the way
    }


def curve_of(run: Path) -> dict[str, list[float]]:
    """Mean training return in `POINTS` equal parts of a run; a part without an episode takes the one before."""
    history = curve.read(run, "return_mean")
    edges = np.linspace(0.0, history.steps[-1], POINTS + 1)
    means = curve.bin_means(history, edges)
    return {
        "steps": [round(float(edge)) for edge in edges[1:]],
        "values": [round(float(m), 2) for m in means],
    }


def render(row: dict) -> str:
    """JSON with a line per entry, lists of numbers on one."""
    text = json.dumps(row, indent=2)
    return re.sub(r"\[\s+([-\d.,\s]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def table() -> str:
    """Markdown: a row per recipe, every seed shown."""
    lines = [
        "| recipe | env steps | seeds | interquartile mean over seeds | mean | each seed | wall per seed |",
        "|---|---|---|---|---|---|---|",
    ]
    files = [
        path for path in RESULTS.rglob("seed-*.json") if "offline" not in path.relative_to(RESULTS).parts
    ]
    for folder in sorted({path.parent for path in files}):  # offline.py has a table of its own
        rows = [json.loads(path.read_text()) for path in sorted(folder.glob("seed-*.json"))]
        means = np.array([row["eval"]["return_mean"] for row in rows])
        each = ", ".join(f"{value:.1f}" for value in means)
        wall = np.mean([row["wall_s"] for row in rows])
        name, first = folder.relative_to(RESULTS), rows[0]
        length = f"{first['env_steps']:,}" if "env_steps" in first else f"{first['updates']:,} updates"
        lines.append(
            f"| {name} | {length} | {len(rows)} | {iqm(means):.1f} | {means.mean():.1f} | {each} "
            f"| {wall:.0f} s |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", nargs="?")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--name", help="folder under results/ (default: the recipe's name)")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    sys.path.insert(0, "")  # a recipe may name a class of the current folder
    if args.table:
        print(table())
        return
    folder = RESULTS / (args.name or args.recipe)
    folder.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        row = measure(args.recipe, seed, args.overrides)
        (folder / f"seed-{seed}.json").write_text(render(row))
        parts = [f"{part['name']} {part['eval']['return_mean']:.1f}" for part in row.get("stages", ())]
        told = ", ".join(parts) or f"{row['eval']['return_mean']:.1f}"
        print(f"{args.recipe} seed {seed}: {told} in {row['wall_s']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
