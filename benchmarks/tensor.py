"""How near training in a tensor environment comes to its updates alone: PPO in 4,096 instances of CartPole.

    python benchmarks/tensor.py              # about three minutes where nothing else runs
    python benchmarks/tensor.py --quick      # a look; nothing is written
    python benchmarks/tensor.py --env Pendulum-v1 --num-envs 1024

For each number of threads one process takes turns: an iteration of the trainer (acting, stepping, annotating, books,
update) and an update alone on a rollout that is ready. The ratio is time of the update / time of the iteration, in one
turn: 1 would mean that experience costs nothing. `TARGET` is asked of it. The JSON file goes to
benchmarks/speed/tensor.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
TARGET = 0.85
STEPS, EPOCHS, BATCH = 32, 4, 4096


def turns(env_id: str, num_envs: int, count: int) -> dict[str, Any]:
    """`count` turns in this process → seconds of iterations, of updates alone, and of their parts."""
    import torch

    from uniarena import Agent, Trainer, make_env

    env = make_env(env_id, num_envs, vectorization="tensor")
    learner = {"type": "ppo", "n_steps": STEPS, "batch_size": BATCH, "n_epochs": EPOCHS}
    agent = Agent.assemble(env, learner)
    trainer, rows = Trainer(agent, env), STEPS * num_envs
    trainer.fit(2 * rows)  # the first ones allocate
    ready = agent._paid(trainer.sampler.collect(rows).clone())
    agent.learner.update(ready)
    found: dict[str, list[tuple[float, float]]] = {
        "iteration": [],
        "update": [],
        "collect": [],
        "environment": [],
    }
    action = ready.rows.action[0]

    def environment() -> None:
        for _ in range(STEPS):
            env.step(action)

    # in this order: the trainer's own chunk continues where the environment stands
    parts: dict[str, Callable[[], Any]] = {
        "iteration": lambda: trainer.fit(trainer.counters.env_steps + rows),
        "update": lambda: agent.learner.update(ready),
        "collect": lambda: trainer.sampler.collect(rows),
        "environment": environment,
    }
    for _ in range(count):
        for name, part in parts.items():
            wall, cpu = time.perf_counter(), time.process_time()
            part()
            found[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {"threads": torch.get_num_threads(), "rows": rows, "torch": torch.__version__, "seconds": found}


def run(threads: int, args: argparse.Namespace, count: int) -> dict[str, Any]:
    """The same in a process of its own with so many threads."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
    environment |= {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [
        sys.executable,
        __file__,
        "--turns",
        str(count),
        "--env",
        args.env,
        "--num-envs",
        str(args.num_envs),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def report(row: dict[str, Any], spread: Callable[[list[float]], dict[str, float]]) -> dict[str, Any]:
    """Ratios and rates of one number of threads, printed."""
    seconds, rows = row["seconds"], row["rows"]
    ratios = {}
    for index, clock in enumerate(("wall", "cpu")):
        pairs = zip(seconds["update"], seconds["iteration"], strict=True)
        ratios[clock] = spread([update[index] / iteration[index] for update, iteration in pairs])
    shown = "; ".join(
        f"{clock} {r['median']:.2f} ({r['least']:.2f}–{r['most']:.2f})" for clock, r in ratios.items()
    )
    print(f"{row['threads']} thread(s), update alone / iteration: {shown}")
    for name, pairs in seconds.items():
        wall, cpu = (median(pair[index] for pair in pairs) for index in (0, 1))
        print(
            f"  {name:12} {rows / wall:12,.0f} steps/s   {cpu / rows * 1e6:6.3f} µs of the processor a step"
        )
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer turns; nothing is written")
    parser.add_argument("--env", default="CartPole-v1", help="an id that has a tensor form")
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--turns", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="default: benchmarks/speed/tensor.json")
    args = parser.parse_args()
    if args.turns:
        print(json.dumps(turns(args.env, args.num_envs, args.turns)))
        return 0
    from peers import machine, spread

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    host = machine(Path(sys.executable))
    print(
        f"PPO in {args.num_envs:,} tensor {args.env}, {STEPS} steps, {EPOCHS} epochs, minibatches of {BATCH}"
    )
    stored: dict[str, Any] = {"env": args.env, "num_envs": args.num_envs, "machine": host, "runs": []}
    reached = []
    for threads in sorted({1, cores}):
        row = run(threads, args, 3 if args.quick else 12)
        row["update_over_iteration"] = report(row, spread)
        reached.append(row["update_over_iteration"]["cpu" if threads == 1 else "wall"]["median"])
        stored["runs"].append(row)
    output = args.json or (None if args.quick else HERE / "speed" / "tensor.json")
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(stored, indent=1) + "\n")
    return int(reached[-1] < TARGET)


if __name__ == "__main__":
    sys.exit(main())
