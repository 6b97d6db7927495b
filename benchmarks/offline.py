"""Learning from data alone: task × set × learner × seed, one JSON each; what is there already is not run again.

    python benchmarks/offline.py                                       # everything that is not measured yet: hours
    python benchmarks/offline.py --tasks pendulum --sets mixed expert  # parts of it
    python benchmarks/offline.py --learners iql bc --seeds 0
    python benchmarks/offline.py --again                               # Q figures and verdicts of kept runs anew
    python benchmarks/offline.py --table                               # the tables of docs/results.md

Data is `datasets/<task>/<set>.npz` below the working directory (`--data` names another folder), as
`benchmarks/datasets.py` makes it; a set that is not there is left out and named. Each file
`benchmarks/results/offline/<task>/<set>/<learner>/seed-<n>.json` holds the config, the data's own mean return, the
returns of random actions and of the best agent that the data's card names, the return of 100 deterministic episodes of
the last policy (HalfCheetah: 50), the same on that scale (100 · (R − random) / (expert − random)), figures of Q, and
what the doctor finds. Nothing is chosen by evaluation: it is always the last policy.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from learn import HERE, machine, render

import uniarena
from uniarena.analysis.doctor import examine
from uniarena.analysis.statistics import bootstrap_interval, mean
from uniarena.assembly import build_env
from uniarena.buffers.dataset import DatasetBuffer, DatasetConfig
from uniarena.buffers.spec import BufferSpec
from uniarena.config import from_text, parse
from uniarena.data import load
from uniarena.run.saved import load_with_config
from uniarena.trainer.health.dataset import of_dataset
from uniarena.trainer.loggers.jsonl import read_rows

RESULTS = HERE / "results" / "offline"

TASKS: dict[str, dict[str, Any]] = {
    "pendulum": {"id": "Pendulum-v1", "hidden_sizes": [64, 64], "episodes": 100, "discrete": False},
    "lunarlander": {"id": "LunarLander-v3", "hidden_sizes": [256, 256], "episodes": 100, "discrete": True},
    "lunarlander-continuous": {
        "id": "LunarLanderContinuous-v3",
        "hidden_sizes": [256, 256],
        "episodes": 100,
        "discrete": False,
    },
    "halfcheetah": {
        "id": "HalfCheetah-v5",
        "wrappers": ["normalize_observation"],  # by the data, as Fujimoto & Gu 2021 (arXiv:2106.06860) do
        "hidden_sizes": [256, 256],
        "episodes": 50,
        "discrete": False,
    },
}
SETS: dict[str, tuple[list[str], list[str]]] = {
    "mixed": (["bc", "iql", "awac", "td3_bc", "cql"], ["bc", "iql", "discrete_cql", "discrete_bcq"]),
    "expert": (["bc"], ["bc"]),
    "random": (
        ["bc", "iql", "awac", "td3_bc", "rebrac", "bcq", "cql"],
        ["bc", "iql", "awac", "discrete_cql", "discrete_bcq"],
    ),
}
"""Set → learners of continuous and of discrete actions."""
UPDATES: dict[str, int] = {
    "bc": 20_000,
    "iql": 20_000,
    "awac": 20_000,
    "td3_bc": 30_000,
    "rebrac": 20_000,
    "bcq": 8_000,
    "cql": 10_000,
    "discrete_cql": 30_000,
    "discrete_bcq": 20_000,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "bc": {"learning_rate": 1e-3},
    "iql": {},
    "awac": {},
    "td3_bc": {},
    "rebrac": {"batch_size": 256},
    "bcq": {"model_hidden_sizes": [256, 256]},
    "cql": {"conservative": {"samples": 4}},
    "discrete_cql": {  # quantiles: Kumar et al. 2020, section 6
        "learning_rate": 3e-4,
        "batch_size": 256,
        "double": True,
        "tau": 0.005,
        "returns": "qr",
        "n_quantiles": 32,
    },
    "discrete_bcq": {},
}
"""What differs from a learner's defaults on every task."""
QUICK_CQL: dict[str, Any] = {  # chosen on seed 100
    "learning_rate": 1e-3,
    "policy_learning_rate": 3e-4,
    "tau": 0.02,
    "alpha_init": 0.2,
    "conservative": {"weight": 1.0, "samples": 2},
}
OF_TASK: dict[str, dict[str, dict[str, Any]]] = {
    "pendulum": {  # as in the recipes
        "iql": {"learning_rate": 1e-3},
        "awac": {"learning_rate": 1e-3},
        "td3_bc": {"learning_rate": 1e-3, "behaviour_weight": 0.1},
        "cql": {"learning_rate": 1e-3, "policy_learning_rate": 3e-4, "conservative": {"samples": 10}},
    },
    "lunarlander": {"iql": {"expectile": 0.8}},
    "lunarlander-continuous": {  # the weight of cloning was chosen on seed 100
        "iql": {"expectile": 0.8},
        "td3_bc": {"behaviour_weight": 0.1},
        "cql": QUICK_CQL,
    },
    "halfcheetah": {"td3_bc": {"behaviour_weight": 0.1}, "cql": QUICK_CQL},  # the weight as on the other two
}
SHORT: dict[str, dict[str, int]] = {
    "pendulum": {"td3_bc": 8_000, "cql": 4_000, "iql": 4_000, "awac": 4_000, "bc": 4_000},
    "lunarlander": {"bc": 10_000, "iql": 10_000, "discrete_cql": 15_000, "discrete_bcq": 10_000},
    "lunarlander-continuous": {"bc": 10_000, "iql": 10_000, "awac": 10_000, "td3_bc": 10_000, "cql": 15_000},
    "halfcheetah": {"cql": 15_000},
}
"""Task → learner → updates, where fewer do."""
FIGURES = (
    "data_q",
    "data_q_policy",
    "data_return",
    "data_return_best",
    "data_return_low",
    "data_return_high",
    "value_mean",
    "value_bias",
)


def config(task: str, data: Path, learner: str, seed: int) -> dict[str, Any]:
    """The whole config of one run."""
    updates = SHORT.get(task, {}).get(learner, UPDATES[learner])
    told = TASKS[task]
    return {
        "experiment": {"seed": seed},
        "environment": {"id": told["id"], "wrappers": told.get("wrappers", [])},
        "agent": {"policy": {"hidden_sizes": told["hidden_sizes"]}},
        "data": {"path": str(data)},
        "learner": {"type": learner, **SETTINGS[learner], **OF_TASK.get(task, {}).get(learner, {})},
        "training": {
            "total_updates": updates,
            "save_interval": updates,
            "log_interval": max(1, updates // 50),
        },
        "callbacks": [
            {"type": "evaluate", "at_end": False, "every_env_steps": 10 * updates},  # once, below, is enough
            {"type": "monitor", "every_env_steps": max(1, updates // 50)},
        ],
    }


def references(folder: Path) -> dict[str, float] | None:
    """Mean returns of random actions and of the best agent, of the sets of a task; None where no card tells."""
    random, expert = None, None
    for name in ("mixed", "medium", "expert", "random"):
        path = folder / f"{name}.npz"
        if path.exists():
            data = load(path, lazy=True)
            origin = data.source.origin
            random = origin.get("random_return", random)
            agents = origin.get("agents", {})
            expert = max(agents.values()) if agents else expert
            if name == "random" and random is None:
                random = float(data.returns.mean())
    return None if random is None or expert is None else {"random": random, "expert": expert}


def measure(task: str, kind: str, learner: str, seed: int, data: Path, runs: Path) -> dict[str, Any]:
    """Train and evaluate one seed; the run's folder stays."""
    run = runs / task / kind / learner / f"seed-{seed}"
    shutil.rmtree(run, ignore_errors=True)  # of a run that broke off
    section = config(task, data, learner, seed)
    result = uniarena.train(section, run_dir=run, quiet=True)
    if result.resumable:
        raise KeyboardInterrupt  # a result is that of a whole run
    last = run / "checkpoints" / str(result.updates)
    score = uniarena.evaluate(
        last, TASKS[task]["episodes"], seed=10_000 + seed, trust=True
    )  # it was made here
    held = load(data, lazy=True)
    known = references(data.parent)
    row = {
        "task": task,
        "set": kind,
        "learner": learner,
        "seed": seed,
        "config": section,
        "data": {
            "transitions": len(held),
            "episodes": held.episodes,
            "return_mean": round(float(held.returns.mean()), 3),
            "return_std": round(float(held.returns.std()), 3),
        },
        "reference": known,
        "eval": score.to_json(),
        "score": None if known is None else round(scaled(score.return_mean, known), 2),
        "wall_s": round(result.wall_s, 1),
        "machine": machine(),
    }
    return {**row, **examined(run)}


def scaled(value: float, known: dict[str, float]) -> float:
    """0 at the return of random actions, 100 at the expert's."""
    return 100.0 * (value - known["random"]) / (known["expert"] - known["random"])


def examined(run: Path) -> dict[str, Any]:
    """Q on the data at the end of a run, and the doctor's findings; of runs of before that, from the last agent."""
    rows = read_rows(run / "metrics.jsonl")
    if not any("health/data_q" in row for row in rows):
        rows.append({**rows[-1], **of_last_agent(run)})
    figures = {}
    for name in FIGURES:
        values = [row[f"health/{name}"] for row in rows if isinstance(row.get(f"health/{name}"), int | float)]
        if values:
            figures[name] = {"last": round(values[-1], 4), "largest": round(float(np.abs(values).max()), 4)}
    config = from_text((run / "config.yaml").read_text(encoding="utf-8"), "config.yaml")
    return {"q": figures, "doctor": [finding.illness for finding in examine(rows, config)]}


def of_last_agent(run: Path) -> dict[str, float]:
    """The same figures of Q, of the last checkpoint and the data that its config names."""
    agent, exp = load_with_config(run, True, ())
    env = build_env(exp)
    env.close()
    spec = BufferSpec(
        env.observation_space,
        env.action_map.policy_space,
        gamma=agent.learner.cfg.gamma,
        action_space=env.action_space,
    )
    buffer = DatasetBuffer(parse(DatasetConfig, exp.data, "data"), spec)
    return of_dataset(SimpleNamespace(model=agent.model, buffer=buffer), {})


# -- tables --------------------------------------------------------------------------------------------------------
def stored() -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """(task, set, learner) → its seeds."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for task in TASKS:
        for kind, (box, discrete) in SETS.items():
            for learner in discrete if TASKS[task]["discrete"] else box:
                files = sorted((RESULTS / task / kind / learner).glob("seed-*.json"))
                if files:
                    found[task, kind, learner] = [json.loads(path.read_text()) for path in files]
    return found


def table() -> str:
    """Markdown: a row for each task, set and learner."""
    lines = [
        "| task | set | behaviour | learner | updates | return, mean of seeds (95 % interval) | each seed | score | "
        "Q of data | Q of policy | returns in the data: mean, best | bounds | doctor |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (task, kind, learner), rows in stored().items():
        means = np.array([row["eval"]["return_mean"] for row in rows])
        low, high = bootstrap_interval(means, mean)
        scores = [row["score"] for row in rows if row["score"] is not None]
        updates = rows[0]["config"]["training"]["total_updates"]
        q, policy, followed, best, least, most = (_middle(rows, name) for name in FIGURES[:6])
        found = sorted({name for row in rows for name in row["doctor"]})
        lines.append(
            f"| {task} | {kind} | {rows[0]['data']['return_mean']:.1f} | `{learner}` | {updates:,} "
            f"| {means.mean():.1f} ({low:.1f} to {high:.1f}) | {', '.join(f'{value:.1f}' for value in means)} "
            f"| {f'{np.mean(scores):.0f}' if scores else '–'} | {q} | {policy} | {followed}, {best} "
            f"| {least} to {most} "
            f"| {', '.join(f'`{name}`' for name in found) or 'healthy'} |"
        )
    return "\n".join(lines)


def _middle(rows: list[dict[str, Any]], name: str) -> str:
    values = [row["q"][name]["last"] for row in rows if name in row["q"]]
    return f"{np.median(values):.1f}" if values else "–"


def again(runs: Path) -> None:
    """Q figures and verdicts of every stored result whose run was kept."""
    for (task, kind, learner), rows in stored().items():
        for row in rows:
            run = runs / task / kind / learner / f"seed-{row['seed']}"
            if run.is_dir():
                path = RESULTS / task / kind / learner / f"seed-{row['seed']}.json"
                path.write_text(render({**row, **examined(run)}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--learners", nargs="+", default=list(UPDATES), choices=list(UPDATES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", type=Path, default=Path("datasets"), help="folder of the sets")
    parser.add_argument("--runs", type=Path, default=Path("runs/offline"), help="where runs are kept")
    parser.add_argument("--again", action="store_true", help="Q figures and verdicts of kept runs anew")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print(table())
        return
    if args.again:
        again(args.runs)
        return
    for seed in args.seeds:  # a whole table of one seed comes before the next
        for task in args.tasks:
            for kind in args.sets:
                data = args.data / task / f"{kind}.npz"
                if not data.exists():
                    print(f"{data} is not there: left out", flush=True)
                    continue
                wanted = SETS[kind][TASKS[task]["discrete"]]
                for learner in [name for name in wanted if name in args.learners]:
                    path = RESULTS / task / kind / learner / f"seed-{seed}.json"
                    if path.exists():
                        continue
                    row = measure(task, kind, learner, seed, data, args.runs)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(render(row))
                    print(
                        f"{task} {kind} {learner} seed {seed}: {row['eval']['return_mean']:.1f} (data "
                        f"{row['data']['return_mean']:.1f}) in {row['wall_s']:.0f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
