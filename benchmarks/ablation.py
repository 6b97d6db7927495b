"""What each device of the stability kit does by itself: one change at a time, two short tasks, five seeds.

    python benchmarks/ablation.py                      # every arm that is not measured yet
    python benchmarks/ablation.py sam popart --seeds 0 1
    python benchmarks/ablation.py --scales             # rewards times 1e-3, 1 and 1e3 under the recipe ppo/cartpole
    python benchmarks/ablation.py --table              # the tables of docs/stability.md

An arm is the base and the overrides below. Each file `benchmarks/results/ablation/<task>/<arm>.json` holds its
overrides and for each seed the score (mean return of 20 deterministic episodes after training), the mean training
return of the whole run, and the processor time of training. The learning rate is constant and rather high, so that
there is something to be steadied.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from learn import machine, render

import uniarena
from uniarena.trainer.loggers.jsonl import read_rows

RESULTS = Path(__file__).parent / "results" / "ablation"
EPISODES = 20

TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {
        "environment": {"id": "CartPole-v1", "num_envs": 8},
        "learner": {"n_steps": 32, "batch_size": 128, "n_epochs": 10, "gamma": 0.98, "gae_lambda": 0.8},
        "training": {"total_timesteps": 30_000},
    },
    "pendulum": {
        "environment": {"id": "Pendulum-v1", "num_envs": 8},
        "learner": {"n_steps": 128, "batch_size": 128, "n_epochs": 10, "gamma": 0.9},
        "training": {"total_timesteps": 60_000},
    },
}
BASE = ["learner.type=ppo", "learner.learning_rate=2e-3"]
ARMS: dict[str, list[str]] = {
    "base": [],
    # optimisation
    "no-clipping": ["learner.max_grad_norm=null"],
    "clip-by-layer": ["learner.optimizer.clip_by=layer"],
    "clip-by-part": ["learner.max_grad_norm={policy: 0.5, value: 0.5}"],
    "agc": ["learner.optimizer.agc=0.01", "learner.max_grad_norm=null"],
    "clip-quantile": ["learner.optimizer.clip_quantile=0.5", "learner.max_grad_norm=null"],
    "normalized-gradient": ["learner.optimizer.normalize=true"],
    "sam": ["learner.optimizer.type=sam", "learner.optimizer.rho=0.05"],
    "rate-kl": ["learner.learning_rate={type: kl_adaptive, start: 2e-3, target_kl: 0.01}"],
    "rate-linear": ["learner.learning_rate={type: linear, start: 2e-3, end: 0}"],
    # policy constraint
    "clip-kl": ["learner.clip_range={type: kl_adaptive, start: 0.2, target_kl: 0.01}"],
    "kl-penalty": ["learner.clip=none", "learner.kl_coef={type: kl_adaptive, start: 1, target_kl: 0.01}"],
    "target-kl": ["learner.target_kl=0.02"],
    "trpo": ["learner.type=trpo", "learner.learning_rate=1e-3"],
    "loss-stop": ["learner.stop_on_loss=both"],
    "entropy-0.01": ["learner.ent_coef=0.01"],
    # values
    "return-running": ["learner.normalize_return=running"],
    "return-popart": ["learner.normalize_return=popart"],
    "return-running-slow": ["learner.normalize_return=running", "learner.return_decay=0.99"],
    "return-popart-slow": ["learner.normalize_return=popart", "learner.return_decay=0.99"],
    "value-clip": ["learner.value_clip=0.2"],
    "obs-welford": ["environment.wrappers=[normalize_observation]"],
    "obs-ema": ["environment.wrappers=[{type: normalize_observation, statistics: ema, outlier: 10}]"],
    "reward-normalized": ["environment.wrappers=[normalize_reward]"],
}
SCALES = ("1e-3", "1", "1e3")


def measure(config: Any, overrides: list[str], seed: int) -> dict[str, Any]:
    """Train and evaluate one seed in a scratch folder."""
    scratch, started = Path(tempfile.mkdtemp()), time.process_time()
    quiet = ["training.eval_every_env_steps=1e9", "training.save_every_env_steps=1e9"]
    quiet = [text.replace("1e9", "1_000_000_000") for text in quiet]
    try:
        run = uniarena.train(
            config, [*overrides, *quiet, f"experiment.seed={seed}"], run_dir=scratch / "run", quiet=True
        )
        spent = time.process_time() - started
        last = scratch / "run" / "checkpoints" / str(run.env_steps)
        score = uniarena.evaluate(last, EPISODES, seed=10_000 + seed, trust=True)  # it was made here
        rows = [
            row for row in read_rows(scratch / "run" / "metrics.jsonl") if row.get("return_mean") is not None
        ]
        mean = float(np.mean([row["return_mean"] for row in rows]))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    raw = score.to_json()["return_mean"]
    return {"seed": seed, "score": round(raw, 1), "training_return": round(mean, 1), "cpu_s": round(spent, 1)}


def add(path: Path, config: Any, overrides: list[str], seeds: list[int]) -> None:
    """Measure the seeds that the file lacks, and write it after each."""
    found = json.loads(path.read_text()) if path.exists() else {"overrides": overrides, "seeds": []}
    if found["overrides"] != overrides:
        found = {"overrides": overrides, "seeds": []}
    known = {row["seed"] for row in found["seeds"]}
    for seed in [seed for seed in seeds if seed not in known]:
        row = measure(config, overrides, seed)
        found["seeds"] = sorted([*found["seeds"], row], key=lambda one: one["seed"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render({**found, "machine": machine()}))
        print(path.relative_to(RESULTS), row, flush=True)


def table() -> str:
    """Markdown: an arm a row, for each task the mean, the worst seed, and the mean training return."""
    lines = ["| arm | CartPole: mean | worst | training | Pendulum: mean | worst | training | time |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
    files = {
        task: {p.stem: json.loads(p.read_text()) for p in (RESULTS / task).glob("*.json")} for task in TASKS
    }
    for arm in ARMS:
        cells, ratio = [], []
        for task in TASKS:
            rows = files[task].get(arm, {}).get("seeds", [])
            if not rows:
                cells += ["", "", ""]
                continue
            scores = [row["score"] for row in rows]
            training = float(np.mean([row["training_return"] for row in rows]))
            cells += [f"{np.mean(scores):.0f}", f"{min(scores):.0f}", f"{training:.0f}"]
            base = files[task]["base"]["seeds"]
            ratio.append(np.mean([row["cpu_s"] for row in rows]) / np.mean([row["cpu_s"] for row in base]))
        if ratio:
            lines.append(f"| `{arm}` | {' | '.join(cells)} | {np.mean(ratio):.1f} |")
    return "\n".join(lines)


def scales_table() -> str:
    """Markdown: what rewards are multiplied by → score of each seed, in the environment's own reward."""
    lines = ["| normalize_return | rewards times 1e-3 | 1 | 1e3 |", "| --- | --- | --- | --- |"]
    for kind in ("none", "running", "popart"):
        cells = []
        for scale in SCALES:
            path = RESULTS / "scales" / f"{kind}-{scale}.json"
            rows = json.loads(path.read_text())["seeds"] if path.exists() else []
            cells.append(", ".join(f"{row['score']:.0f}" for row in rows))
        lines.append(f"| `{kind}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arms", nargs="*", help="default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--scales", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print(table(), scales_table(), sep="\n\n")
    elif args.scales:
        for kind in args.arms or ("none", "running", "popart"):
            for scale in SCALES:
                changes = [f"learner.normalize_return={kind}"]
                changes += (
                    [f"environment.wrappers=[{{type: scale_reward, scale: {scale}}}]"] if scale != "1" else []
                )
                add(RESULTS / "scales" / f"{kind}-{scale}.json", "ppo/cartpole", changes, args.seeds)
    else:
        for arm in args.arms or ARMS:
            for task in args.tasks:
                add(RESULTS / task / f"{arm}.json", TASKS[task], [*BASE, *ARMS[arm]], args.seeds)


if __name__ == "__main__":
    main()
