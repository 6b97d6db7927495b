"""An independent trial of the doctor: runs written down before any of them was made.

    python benchmarks/doctor_trial.py                       # all, beside benchmarks/results/doctor-trial.json
    python benchmarks/doctor_trial.py --only i-ppo          # those whose name begins so
    python benchmarks/doctor_trial.py --keep runs/trial     # what is there already is only examined again

Whoever wrote these arms had not read the doctor's rules, nor the arms of doctor.py: they had the table of illnesses in
docs/doctor.md. `h-` are healthy runs, `i-` ill ones by a mistake that is made in practice. For each stand the illness
that is expected, and the other findings that would be accepted as its effects; everything else counts as wrong.
Seeds are fixed. An arm is changed by nobody once it ran; where its illness did not come about, `NOT_ILL` says by what
evidence, and it is counted apart.
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

NOT_ILL: dict[str, str] = {}
"""Arms whose illness did not come about, or healthy ones that were not, and the evidence. Filled in after the run."""


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
    held = [row for row in results if row["arm"] not in NOT_ILL]
    ill = [row for row in held if row["expected"]]
    well = [row for row in held if not row["expected"]]
    told = [(row["arm"], name) for row in held for name in row["found"]]
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
        apart = {name: why for name, why in NOT_ILL.items() if name in arms}
        report = {"score": score(results, arms), "apart": apart, "runs": results}
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["score"], indent=1))


if __name__ == "__main__":
    main()
