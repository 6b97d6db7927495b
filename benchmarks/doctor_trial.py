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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uniarena
from uniarena import run as runs

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
OUTPUT = HERE / "results" / "doctor-trial.json"

STALL = frozenset({"no_progress", "stuck_low", "value_explains_nothing", "updates_too_timid"})
"""What a run that learns nothing may be told besides."""
WILD = frozenset(
    {
        "kl_too_high",
        "rise_then_collapse",
        "oscillation",
        "entropy_collapse",
        "dead_gradients",
        "exploding_gradients",
    }
)
"""What a run whose steps are too large may be told besides."""
OFF = frozenset(
    {"q_overestimation", "exploding_gradients", "reward_scale_off", "saturated_actions", "dead_gradients"}
)
"""What a run whose critics diverge may be told besides."""


@dataclass(frozen=True)
class Arm:
    """One run: what is merged, and what the doctor ought to say of it."""

    name: str
    base: str | dict[str, Any]
    steps: int
    changes: tuple[str, ...] = ()
    expected: str | None = None
    accepted: frozenset[str] = frozenset()
    seed: int = 11


def ppo(env: str, columns: int = 8, n_steps: int = 128, **learner: Any) -> dict[str, Any]:
    """What people begin with: 8 columns, 128 rows, minibatches of 256, 4 epochs, the rest as it is."""
    fields = {"type": "ppo", "n_steps": n_steps, "batch_size": 256, "n_epochs": 4, **learner}
    return {"environment": {"id": env, "num_envs": columns}, "learner": fields}


def off(env: str, kind: str, **learner: Any) -> dict[str, Any]:
    """An off-policy learner with small networks."""
    return {
        "environment": {"id": env},
        "agent": {"policy": {"hidden_sizes": [64, 64]}, "buffer": {"capacity": 50_000}},
        "learner": {"type": kind, **learner},
    }


DQN = {"batch_size": 64, "train_every_env_steps": 32, "updates_per_env_step": 0.25, "learning_starts": 500}
W = "doctor_trial_worlds"
CART, PEND, ACRO = "CartPole-v1", "Pendulum-v1", "Acrobot-v1"
NORMAL = "environment.wrappers=[normalize_observation, normalize_reward]"

HEALTHY = [
    Arm("h-ppo-cartpole-plain", ppo(CART, learning_rate=1e-3, n_epochs=10), 50_000),
    Arm("h-ppo-cartpole-recipe", "ppo/cartpole", 40_000),
    Arm(
        "h-ppo-cartpole-pipelined",
        ppo(CART, learning_rate=1e-3, n_epochs=10),
        50_000,
        ("sampling=pipelined",),
    ),
    Arm("h-trpo-cartpole", ppo(CART, type="trpo", n_steps=256), 50_000),
    Arm("h-impala-cartpole", "impala/cartpole", 80_000),
    Arm("h-a2c-cartpole", "a2c/cartpole", 80_000),
    Arm("h-dqn-cartpole-recipe", "dqn/cartpole", 20_000),
    Arm(
        "h-qr-dqn-cartpole",
        off(CART, "qr_dqn", **DQN, learning_rate=1e-3, target_update_env_steps=500),
        15_000,
    ),
    Arm("h-sac-discrete-cartpole", off(CART, "sac", learning_rate=1e-3, batch_size=64), 5_000),
    Arm("h-ppo-acrobot", ppo(ACRO, 16, learning_rate=1e-3), 80_000, (NORMAL,)),
    Arm("h-dqn-acrobot", "dqn/acrobot", 15_000, ("agent.policy.hidden_sizes=[64, 64]",)),
    Arm("h-ppo-mountaincar-shaped", ppo(f"{W}:shaped_mountain_car", learning_rate=1e-3), 80_000, (NORMAL,)),
    Arm("h-ppo-pendulum", "ppo/pendulum", 50_000),
    Arm("h-sac-pendulum", "sac/pendulum", 5_000),
    Arm("h-td3-pendulum", "td3/pendulum", 6_000),
    Arm("h-tqc-pendulum", "tqc/pendulum", 4_000),
    Arm("h-ppo-mountaincar-continuous", "ppo/mountaincar-continuous", 60_000),
    Arm("h-ppo-lunarlander", ppo("LunarLander-v3", gamma=0.999, gae_lambda=0.98, learning_rate=1e-3), 80_000),
    Arm("h-ppo-halfcheetah", ppo("HalfCheetah-v5", 4, 256, batch_size=64, n_epochs=10), 40_000, (NORMAL,)),
    Arm("h-ppo-minatar", ppo("MinAtar/Breakout-v1", learning_rate=1e-3, ent_coef=0.01), 50_000),
    Arm("h-lstm-hidden-velocity", "ppo/velocity-hidden-cartpole", 40_000, ("agent.memory.hidden_size=32",)),
    Arm("h-ppo-chain-counts", "examples/long_chain.yaml", 60_000),
    Arm("h-ppo-neighbours", "examples/neighbours.yaml", 20_000),
    Arm("h-iql-pendulum", "iql/pendulum-mixed", 2_000),
]

ILL = [
    Arm("i-ppo-lr-1e-1", ppo(CART, learning_rate=0.1, n_epochs=10), 40_000, (), "kl_too_high", STALL | WILD),
    Arm(
        "i-ppo-pendulum-lr-3e-2",
        ppo(PEND, learning_rate=3e-2, n_epochs=10, gamma=0.9),
        40_000,
        ("environment.wrappers=[normalize_reward]",),
        "kl_too_high",
        STALL | WILD | {"saturated_actions"},
    ),
    Arm(
        "i-ppo-clip-0.9-epochs-50",
        ppo(CART, learning_rate=1e-3, n_epochs=50, clip_range=0.9),
        25_000,
        (),
        "kl_too_high",
        WILD | {"value_overfitting", "value_explains_nothing", "no_progress"},
    ),
    Arm(
        "i-ppo-entropy-0.5",
        ppo(CART, ent_coef=0.5),
        50_000,
        (),
        "exploration_never_ends",
        STALL | {"evaluation_far_above_training"},
    ),
    Arm(
        "i-ppo-entropy-0.5-pendulum",
        ppo(PEND, ent_coef=0.5, gamma=0.9, learning_rate=1e-3),
        60_000,
        ("environment.wrappers=[normalize_reward]",),
        "exploration_never_ends",
        STALL | {"evaluation_far_above_training", "saturated_actions"},
    ),
    Arm(
        "i-dqn-epsilon-0.5",
        off(CART, "dqn", **DQN, learning_rate=1e-3, target_update_env_steps=500),
        25_000,
        ("agent.explorer.epsilon=0.5",),
        "exploration_never_ends",
        frozenset({"evaluation_far_above_training", "no_progress", "stuck_low", "oscillation"}),
    ),
    Arm(
        "i-dqn-epsilon-0.15",
        off(CART, "dqn", **DQN, learning_rate=1e-3, target_update_env_steps=500),
        30_000,
        ("agent.explorer.epsilon=0.15",),
        "evaluation_far_above_training",
        frozenset({"exploration_never_ends", "no_progress", "oscillation"}),
        12,
    ),
    Arm(
        "i-dqn-never-starts",
        off(CART, "dqn", **{**DQN, "learning_starts": 1_000_000}),
        15_000,
        (),
        "no_progress",
        STALL | {"exploration_never_ends"},
    ),
    Arm(
        "i-td3-noise-1",
        off(PEND, "td3", learning_starts=500),
        4_000,
        ("agent.explorer={type: gaussian_noise, scale: 1.5}",),
        "exploration_never_ends",
        frozenset({"evaluation_far_above_training", "no_progress", "saturated_actions"}),
    ),
    Arm(
        "i-ppo-reward-1e5",
        ppo(CART, learning_rate=3e-4, n_epochs=10),
        40_000,
        ("environment.wrappers=[{type: scale_reward, scale: 100000}]",),
        "reward_scale_off",
        STALL | {"dead_gradients", "evaluation_far_above_training", "exploding_gradients"},
    ),
    Arm(
        "i-a2c-reward-1e-4",
        "a2c/cartpole",
        60_000,
        ("environment.wrappers=[{type: scale_reward, scale: 0.0001}]",),
        "reward_scale_off",
        STALL | {"exploration_never_ends", "evaluation_far_above_training"},
    ),
    Arm(
        "i-sac-reward-1e3",
        "sac/pendulum",
        4_000,
        ("environment.wrappers=[{type: scale_reward, scale: 1000}]",),
        "reward_scale_off",
        STALL | OFF | {"temperature_runs_away", "entropy_collapse"},
    ),
    Arm(
        "i-ppo-observations-large",
        ppo(f"{W}:BigNumbers", gamma=0.9, learning_rate=1e-3),
        50_000,
        ("environment.wrappers=[normalize_reward]",),
        "dead_gradients",
        STALL | WILD | {"saturated_actions"},
    ),
    Arm(
        "i-ppo-acrobot-gamma-0.5",
        ppo(ACRO, gamma=0.5),
        60_000,
        (),
        "stuck_low",
        STALL | {"exploration_never_ends", "value_overfitting"},
    ),
    Arm(
        "i-ppo-mountaincar-sparse",
        ppo("MountainCar-v0"),
        60_000,
        (),
        "stuck_low",
        STALL | {"value_overfitting", "entropy_collapse"},
    ),
    Arm(
        "i-ppo-chain-no-bonus",
        "examples/long_chain.yaml",
        60_000,
        ("agent.intrinsic=null",),
        "stuck_low",
        STALL | {"entropy_collapse"},
    ),
    Arm(
        "i-dqn-no-target",
        off(CART, "dqn", **DQN, learning_rate=1e-2, target_update_updates=1),
        20_000,
        ("learner.td_clip=null", "learner.max_grad_norm=null"),
        "q_overestimation",
        STALL | WILD | OFF,
    ),
    Arm(
        "i-ddpg-no-target",
        off(PEND, "ddpg", learning_rate=3e-2, tau=1.0, gamma=0.999, learning_starts=500),
        4_000,
        (),
        "q_overestimation",
        STALL | WILD | OFF,
    ),
    Arm(
        "i-dqn-sgd-explodes",
        off(CART, "dqn", **DQN, learning_rate=3e-2, target_update_updates=8),
        15_000,
        (
            "learner.td_clip=null",
            "learner.max_grad_norm=null",
            "learner.optimizer={type: sgd, momentum: 0.9}",
        ),
        "exploding_gradients",
        STALL | WILD | OFF | {"not_a_number"},
    ),
    Arm(
        "i-td3-torque-bounds",
        off(f"{W}:NarrowTorque", "td3", learning_starts=500),
        4_000,
        (),
        "saturated_actions",
        STALL | {"dead_gradients", "exploration_never_ends"},
    ),
    Arm(
        "i-ppo-action-units",
        ppo(f"{W}:TinyUnits", gamma=0.9, learning_rate=1e-3),
        50_000,
        ("environment.wrappers=[normalize_reward]",),
        "saturated_actions",
        STALL | {"exploration_never_ends", "evaluation_far_above_training"},
    ),
    Arm(
        "i-ppo-one-level",
        ppo(f"{W}:OneLevel", 1, 512, learning_rate=3e-3),
        40_000,
        (),
        "evaluation_far_below_training",
        frozenset({"oscillation"}),
    ),
    Arm(
        "i-ppo-aliased",
        ppo(f"{W}:Aliased", learning_rate=1e-3, ent_coef=0.01),
        40_000,
        (),
        "evaluation_far_below_training",
        STALL | {"exploration_never_ends", "oscillation"},
    ),
    Arm(
        "i-ppo-width-1",
        ppo(PEND, gamma=0.9, learning_rate=1e-3, n_epochs=10),
        50_000,
        ("environment.wrappers=[normalize_reward]", "agent.policy.hidden_sizes=[1]"),
        "no_progress",
        STALL | {"dead_gradients", "exploration_never_ends"},
    ),
    Arm(
        "i-ppo-weight-decay-100",
        ppo(CART, learning_rate=1e-3),
        50_000,
        ("learner.optimizer={type: adamw, weight_decay: 100}",),
        "no_progress",
        STALL | {"dead_gradients", "exploration_never_ends", "oscillation"},
    ),
    Arm(
        "i-ppo-rnd-100",
        ppo(ACRO),
        50_000,
        ("agent.intrinsic={type: rnd, reward_scale: 100}",),
        "intrinsic_reward_dominates",
        STALL | {"reward_scale_off", "exploration_never_ends", "dead_gradients"},
    ),
    Arm(
        "i-a2c-ends-at-once",
        ppo(f"{W}:EndsAtOnce", type="a2c", n_steps=16, batch_size=None, n_epochs=1),
        15_000,
        (),
        "episodes_of_length_one",
        STALL | {"entropy_collapse"},
    ),
    Arm("i-ppo-nan-reward", ppo(f"{W}:NanReward", learning_rate=1e-3), 30_000, (), "not_a_number", STALL),
    Arm(
        "i-a2c-lr-1e-7",
        "a2c/cartpole",
        60_000,
        ("learner.learning_rate=1e-7",),
        "updates_too_timid",
        STALL | {"exploration_never_ends", "evaluation_far_above_training"},
    ),
    Arm(
        "i-sac-lr-1e-7",
        "sac/pendulum",
        4_000,
        ("learner.learning_rate=1e-7",),
        "updates_too_timid",
        STALL | {"exploration_never_ends", "evaluation_far_above_training"},
    ),
    Arm(
        "i-sac-target-entropy-sign",
        "sac/pendulum",
        5_000,
        ("learner.target_entropy=1.0",),
        "temperature_runs_away",
        STALL
        | {
            "exploration_never_ends",
            "evaluation_far_above_training",
            "exploding_gradients",
            "reward_scale_off",
        },
    ),
    Arm(
        "i-ppo-odometer",
        ppo(f"{W}:Odometer", learning_rate=1e-3),
        60_000,
        ("environment.wrappers=[{type: normalize_observation, statistics: ema}]",),
        "normalizer_drift",
        STALL | {"rise_then_collapse", "oscillation", "evaluation_far_below_training"},
    ),
    Arm(
        "i-ppo-restarts",
        ppo(CART, learning_rate={"type": "warm_restarts", "start": 3e-2, "end": 0}, n_epochs=10),
        60_000,
        (),
        "oscillation",
        STALL | WILD,
    ),
    Arm(
        "i-ppo-sensor-fails",
        ppo(f"{W}:SensorFails", learning_rate=1e-3, n_epochs=10),
        60_000,
        (),
        "rise_then_collapse",
        STALL | {"dead_gradients", "entropy_collapse", "value_overfitting", "evaluation_far_above_training"},
    ),
    Arm(
        "i-ppo-entropy-sign",
        ppo(ACRO, ent_coef=-0.1, learning_rate=1e-3),
        40_000,
        (),
        "entropy_collapse",
        STALL | {"kl_too_high", "dead_gradients"},
    ),
    Arm(
        "i-ppo-jackpot",
        ppo(f"{W}:Jackpot", learning_rate=3e-3, n_epochs=10),
        50_000,
        (),
        "value_overfitting",
        STALL | {"oscillation", "kl_too_high", "exploding_gradients"},
    ),
    Arm(
        "i-ppo-no-critic",
        ppo(PEND, vf_coef=0, gamma=0.99),
        40_000,
        ("environment.wrappers=[normalize_reward]",),
        "value_explains_nothing",
        STALL | {"exploration_never_ends"},
    ),
]

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
    parser.add_argument("--only", default="", help="arms whose name begins so")
    parser.add_argument("--keep", type=Path, help="runs go here, and those that are there are only examined")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    arms = {arm.name: arm for arm in [*HEALTHY, *ILL] if arm.name.startswith(options.only)}
    results = []
    for arm in arms.values():
        results.append(row := made(arm, folder))
        print(f"{row['arm']:32} {row['expected'] or '-':30} {', '.join(row['found'])}", flush=True)
    report = {
        "score": score(results, arms),
        "apart": {name: why for name, why in NOT_ILL.items() if name in arms},
        "runs": results,
    }
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["score"], indent=1))


if __name__ == "__main__":
    main()
