"""What a GPU gives: tensor environments, SAC, mixed precision and a compiled loss, against plain float32.

    benchmarks/gpu.sh                  # under ten minutes on one GPU; writes benchmarks/speed/gpu-<device>.json
    benchmarks/gpu.sh --cpu-check      # minute sizes on the CPU: shows that the script runs, and writes nothing
    benchmarks/gpu.sh --only sac --budget 120

Without a GPU it says so and exits with 3. Cases run one after another, each in a process of its own; every one gets an
equal share of `--budget` seconds and ends its measurement early if that runs out; what fails is written with its error,
and the others go on. A case makes two iterations first (allocation, compilation, cuDNN's choice of algorithms), then as
many as fit into its time, and waits for the device around each. The ratio is the median time of an iteration of the
same work in float32, without compilation, divided by the case's own. Where the environment lives on the device, one
rollout more is collected while torch counts the places that wait for it (`torch.cuda.set_sync_debug_mode`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
NO_GPU = 3
WIDE = {"hidden_sizes": [1024, 1024], "activation": "relu"}


@dataclass(frozen=True)
class Case:
    """One way of doing some work.

    Attributes:
        work: cases of the same work are compared with its first.
        env_id, num_envs: a tensor environment on the device.
        learner, policy: sections.
        iteration: env steps of each environment in one iteration.
        small: keys of the learner for `--cpu-check`.
    """

    work: str
    how: str
    env_id: str
    num_envs: int
    learner: dict[str, Any]
    policy: dict[str, Any] = field(default_factory=dict)
    iteration: int = 32
    small: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.work}, {self.how}"


def _ppo(work: str, how: str, batch: int, policy: dict[str, Any], **more: Any) -> Case:
    learner = {"type": "ppo", "n_steps": 32, "n_epochs": 4, "batch_size": batch, **more}
    return Case(work, how, "CartPole-v1", 4096, learner, policy, 32, {"n_steps": 4, "batch_size": 32})


def _sac(work: str, how: str, envs: int, batch: int, policy: dict[str, Any], **more: Any) -> Case:
    """An update for every step of all environments."""
    learner = {"type": "sac", "learning_starts": 4 * envs, "batch_size": batch, "train_every_env_steps": envs}
    return Case(
        work,
        how,
        "Pendulum-v1",
        envs,
        {**learner, **more},
        policy,
        64,
        {"batch_size": 16, "learning_starts": 64},
    )


CASES = (
    _ppo("PPO, 64×64", "fp32", 16_384, {}),
    _ppo("PPO, 64×64", "compiled", 16_384, {}, compile=True),
    _ppo("PPO, 1024×1024", "fp32", 16_384, WIDE),
    _ppo("PPO, 1024×1024", "bf16", 16_384, WIDE, precision="bf16"),
    _ppo("PPO, 1024×1024", "fp16", 16_384, WIDE, precision="fp16"),
    _ppo("PPO, 1024×1024", "compiled", 16_384, WIDE, compile=True),
    _ppo("PPO, 1024×1024", "compiled, bf16", 16_384, WIDE, compile=True, precision="bf16"),
    _sac("SAC, 256×256, batch 256", "fp32", 64, 256, {"hidden_sizes": [256, 256]}),
    _sac("SAC, 256×256, batch 256", "bf16", 64, 256, {"hidden_sizes": [256, 256]}, precision="bf16"),
    _sac("SAC, 1024×1024, batch 8192", "fp32", 1024, 8192, WIDE),
    _sac("SAC, 1024×1024, batch 8192", "bf16", 1024, 8192, WIDE, precision="bf16"),
    _sac("SAC, 1024×1024, batch 8192", "fp16", 1024, 8192, WIDE, precision="fp16"),
)


def measure(case: Case, device: str, seconds: float, small: bool) -> dict[str, Any]:
    """Iterations of one case in this process → figures."""
    import torch

    from uniarena import Agent, Trainer, make_env

    def settled() -> float:
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    torch.manual_seed(0)
    started, envs = settled(), 8 if small else case.num_envs
    learner = {**case.learner, **(case.small if small else {})}
    if small and "train_every_env_steps" in learner:
        learner["train_every_env_steps"] = envs
    env = make_env(case.env_id, envs, vectorization="tensor", kwargs={"device": device})
    policy = {**case.policy, "hidden_sizes": [16, 16]} if small else case.policy
    trainer = Trainer(Agent.assemble(env, learner, policy=policy, device=device), env)
    steps = (4 if small else case.iteration) * envs
    trainer.fit(learner.get("learning_starts", 0) + 2 * steps)
    warm, taken = settled() - started, []
    while len(taken) < 3 or (settled() - started < seconds and len(taken) < 200):
        began = settled()
        trainer.fit(trainer.counters.env_steps + steps)
        taken.append(settled() - began)
    found = {
        "iterations": len(taken),
        "env_steps_per_s": steps / median(taken),
        "iteration_ms": {"median": 1e3 * median(taken), "least": 1e3 * min(taken), "most": 1e3 * max(taken)},
        "updates": trainer.counters.updates,
        "warm_up_s": warm,
    }
    if device != "cpu":
        found["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        found["waits_in_a_rollout"] = waits(trainer, steps)
    trainer.close()
    return found


def waits(trainer: Any, steps: int) -> int:
    """How often collecting waits for the device."""
    import torch

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            trainer.sampler.collect(steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in told)


def run(index: int, device: str, seconds: float, small: bool) -> dict[str, Any]:
    """The same in a process of its own; it may take twice its time to begin and to end."""
    command = [sys.executable, __file__, "--case", str(index), "--device", device, "--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
    try:
        done = subprocess.run(
            command + ["--cpu-check"] * small,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300.0 if small else max(60.0, 3.0 * seconds),
        )
    except subprocess.TimeoutExpired:
        return {"error": "it took too long"}
    if done.returncode:
        return {
            "error": done.stderr.strip().splitlines()[-1]
            if done.stderr.strip()
            else f"exit {done.returncode}"
        }
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def report(found: dict[str, dict[str, Any]]) -> str:
    """The table."""
    lines = [
        "| work | env steps/s | iteration, ms | times float32 | waits in a rollout |",
        "|---|---|---|---|---|",
    ]
    for name, row in found.items():
        if "error" in row:
            lines.append(f"| {name} | {row['error']} | | | |")
            continue
        times = "" if row.get("times_fp32") is None else f"{row['times_fp32']:.2f}"
        lines.append(
            f"| {name} | {row['env_steps_per_s']:,.0f} | {row['iteration_ms']['median']:.1f} | {times} | "
            f"{row.get('waits_in_a_rollout', '')} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cpu-check", action="store_true", help="minute sizes on the CPU; nothing is written"
    )
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds for all cases together")
    parser.add_argument("--json", type=Path, help="default: benchmarks/speed/gpu-<device>.json")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=1.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        print(json.dumps(measure(CASES[args.case], args.device, args.seconds, args.cpu_check)))
        return
    import torch

    if not (args.cpu_check or torch.cuda.is_available()):
        print("no GPU: torch sees none here. `--cpu-check` runs minute sizes on the CPU.", file=sys.stderr)
        sys.exit(NO_GPU)
    device = "cpu" if args.cpu_check else "cuda"
    name = "CPU, a check" if args.cpu_check else torch.cuda.get_device_name(0)
    chosen = [index for index, case in enumerate(CASES) if args.only in case.name]
    seconds = 0.0 if args.cpu_check else args.budget / max(1, len(chosen))
    found: dict[str, dict[str, Any]] = {}
    output = args.json or HERE / "speed" / f"gpu-{name.lower().replace(' ', '-')}.json"
    for index in chosen:
        case = CASES[index]
        row = run(index, device, seconds, args.cpu_check)
        first = next((other for key, other in found.items() if key.startswith(f"{case.work}, ")), row)
        if "error" not in row and "error" not in first:
            row["times_fp32"] = first["iteration_ms"]["median"] / row["iteration_ms"]["median"]
        found[case.name] = row
        print(f"{case.name}: {row.get('error') or round(row['env_steps_per_s'])}", file=sys.stderr)
        if not args.cpu_check or args.json:  # after every case: whatever happens later, this is kept
            stored = {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "cases": found}
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{name}, torch {torch.__version__}\n{report(found)}")
    sys.exit(1 if any("error" in row for row in found.values()) else 0)


if __name__ == "__main__":
    main()
