"""An independent trial of the doctor: runs written down before any of them was made.

    python benchmarks/doctor_trial.py                       # all, beside benchmarks/results/doctor-trial.json
    python benchmarks/doctor_trial.py --only i-ppo          # those whose name begins so
    python benchmarks/doctor_trial.py --keep runs/trial     # what is there already is only examined again

Whoever wrote these arms had not read the doctor's rules, nor the arms of doctor.py: they had the table of illnesses in
docs/doctor.md. `h-` are healthy runs, `i-` ill ones by a mistake that is made in practice. For each stand the illness
that is expected, and the other findings that would be accepted as its effects; everything else counts as wrong.
Seeds are fixed. An arm is changed by nobody once it ran; where its illness did not come about, `APART` says by what
evidence, and scores are given with and without it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from doctor_trial_arms import HEALTHY, ILL, SECOND, Arm

import uniarena
from uniarena import run as runs

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
OUTPUT = HERE / "results" / "doctor-trial.json"

APART: dict[str, str] = {
    "h-trpo-cartpole": "training return 500 until 37,000 steps, 183 at the end; one of its last two evaluations 194",
    "h-dqn-cartpole-recipe": "cut to 20,000 of 50,000 steps: training return 207, then 95; evaluations 290, then 100",
    "h-dqn-acrobot": "6 of 10 evaluations -500, the last too; training returned -142 to -248 in the last third",
    "i-dqn-epsilon-0.15": "the last evaluation is 96, training beside it 120 to 325",
    "i-ppo-acrobot-gamma-0.5": "learned: training return -491 at first, -190 at the end, goal -100",
    "i-td3-torque-bounds": "8 % of actions at a bound at the end",
    "i-ppo-odometer": "learned: 500 at the end; the normaliser moved by 0.02 deviations an iteration, none was clipped",
    "i-ppo-restarts": "one dip: 26, 486, 241, 500; evaluations of 428 to 500 from half of the run on",
    "i-ppo-entropy-sign": "learned: -81 at the end, goal -100",
    "h2-dqn-double-dueling": "training return 211, then 105 at the end; evaluations 232, then 112",
    "i2-sac-lr-3e-1": "gradients of the critics were 615 at first and at most 326 later",
}
"""Arms whose illness did not come about, or healthy ones that fell ill, by their stored returns. Written after each
round; scores are given with them and without."""


def config_of(arm: Arm) -> tuple[list[Any], list[str]]:
    """What is handed to `uniarena.train`: evaluated ten times by five episodes, one thread, JSON lines only."""
    offline = arm.base == "iql/pendulum-mixed"
    length = (
        [f"training.total_updates={arm.steps}", f"training.eval_interval={arm.steps // 5}"]
        if offline
        else [f"training.total_timesteps={arm.steps}", f"training.eval_every_env_steps={arm.steps // 10}"]
    )
    saves = f"training.save_{'interval' if offline else 'every_env_steps'}={arm.steps}"
    base = arm.base
    if isinstance(base, str) and base.startswith("examples/"):
        base = str(HERE.parent / base)
    return [base], [
        *arm.changes,
        *length,
        saves,
        "training.n_eval_episodes=5",
        "training.threads=1",
        "training.device=cpu",
        "experiment.loggers=[jsonl]",
        f"experiment.seed={arm.seed}",
    ]


def made(arm: Arm, folder: Path) -> dict[str, Any]:
    """Train one arm unless it is there, examine it → its row of the results."""
    run = folder / arm.name
    if not (run / "outcome.json").exists():
        shutil.rmtree(run, ignore_errors=True)
        began, cpu = time.perf_counter(), time.process_time()
        ended = "finished"
        try:
            configs, overrides = config_of(arm)
            uniarena.train(configs, overrides, run_dir=run, quiet=True)
        except Exception as error:  # an ill run may end by one, and is examined as it lies there
            ended = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        spent = {
            "ended": ended,
            "wall_s": round(time.perf_counter() - began, 1),
            "cpu_s": round(time.process_time() - cpu, 1),
        }
        run.mkdir(exist_ok=True)
        if not (run / "metrics.jsonl").exists():
            raise RuntimeError(f"{arm.name} left no figures: {ended}")
        (run / "outcome.json").write_text(json.dumps(spent))
    outcome = json.loads((run / "outcome.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    findings = runs.doctor(run)[0]
    found = sorted({finding.illness for finding in findings})
    evidence = {finding.illness: list(finding.evidence) for finding in findings}
    return {
        "arm": arm.name,
        "expected": arm.expected,
        "found": found,
        "evidence": evidence,
        **outcome,
        **curve(rows),
    }


def curve(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns in ten equal parts of the run, and the evaluations: the evidence of who learned."""
    clock = [row.get("env_steps") or row.get("updates") or 0 for row in rows]
    end = max(clock, default=1) or 1
    parts: list[list[float]] = [[] for _ in range(10)]
    for at, row in zip(clock, rows, strict=True):
        value = row.get("return_mean")
        if isinstance(value, int | float):
            parts[min(9, int(10 * at / end))].append(value)
    evals = [row["eval/return_mean"] for row in rows if isinstance(row.get("eval/return_mean"), int | float)]
    means = [round(sum(part) / len(part), 3) if part else None for part in parts]
    return {"returns": means, "evaluations": [round(value, 3) for value in evals]}


def score(results: list[dict[str, Any]], arms: dict[str, Arm]) -> dict[str, Any]:
    """Recall of the expected illness, healthy runs left alone, and the share of findings that were foreseen."""
    ill = [row for row in results if row["expected"]]
    well = [row for row in results if not row["expected"]]
    told = [(row["arm"], name) for row in results for name in row["found"]]
    wrong = [
        f"{arm}: {name}"
        for arm, name in told
        if name != arms[arm].expected and name not in arms[arm].accepted
    ]
    return {
        "ill": len(ill),
        "illness_found": sum(row["expected"] in row["found"] for row in ill),
        "missed": [f"{row['arm']}: {row['expected']}" for row in ill if row["expected"] not in row["found"]],
        "ill_with_no_finding": [row["arm"] for row in ill if not row["found"]],
        "healthy": len(well),
        "healthy_left_alone": sum(not row["found"] for row in well),
        "findings": len(told),
        "findings_wrong": len(wrong),
        "wrong": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--round", type=int, choices=(1, 2), default=1, help="2: the arms kept back for after a change"
    )
    parser.add_argument("--only", default="", help="arms whose name begins so")
    parser.add_argument("--keep", type=Path, help="runs go here, and those that are there are only examined")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    chosen = SECOND if options.round == 2 else [*HEALTHY, *ILL]
    arms = {arm.name: arm for arm in chosen if arm.name.startswith(options.only)}
    results = []
    for arm in arms.values():
        results.append(row := made(arm, folder))
        print(f"{row['arm']:32} {row['expected'] or '-':30} {', '.join(row['found'])}", flush=True)
        kept = [each for each in results if each["arm"] not in APART]
        report = {
            "score": score(results, arms),
            "score_without_apart": score(kept, arms),
            "apart": {name: why for name, why in APART.items() if name in arms},
            "runs": results,
        }
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["score"], indent=1))


if __name__ == "__main__":
    main()
