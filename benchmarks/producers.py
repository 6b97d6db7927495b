"""What several producers gain where a simulator is slow, and somewhere else: PPO on environments that wait.

    python benchmarks/producers.py              # about three minutes
    python benchmarks/producers.py --quick      # a look; nothing is written
    python benchmarks/producers.py --ms 20 --only pipelined

A step of the environment waits outside of the processor, as a request to another program does: `--ms` on average,
between half and one and a half times as much, another time in every step. All forms have the same `--envs`
environments and take turns, block by block. Shown is each one's rate, how many times as fast it is as `local` in the
same turn (median and range), the share of time that the learner waited, and the rate that so many waiters could reach
if nothing else cost anything. The JSON file goes to benchmarks/speed/producers.json. Run it with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from uniarena import Agent, Trainer, make_env
from uniarena.config import SamplingConfig, WorkersConfig

HERE = Path(__file__).resolve().parent
STEPS = 16


class Waiting(gym.Env[np.ndarray, int]):
    """CartPole behind a simulator of which every step takes its time somewhere else.

    Args:
        ms: milliseconds on average.
    """

    def __init__(self, ms: float) -> None:
        self.inner, self.ms = gym.make("CartPole-v1"), ms
        self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.inner.reset(seed=seed, options=options)

    def step(self, action: int) -> Any:
        time.sleep(self.ms * 1e-3 * self.np_random.uniform(0.5, 1.5))
        return self.inner.step(action)


FORMS: dict[str, tuple[int, int, Any, SamplingConfig]] = {
    # processes that wait at the same time, and how
    "local": (1, 1, "serial", SamplingConfig()),
    "async": (0, 1, WorkersConfig(), SamplingConfig()),
    "pipelined": (1, 1, "serial", SamplingConfig(type="pipelined")),
    "pipelined, async": (0, 1, WorkersConfig(), SamplingConfig(type="pipelined")),
    "pipelined, 2 producers": (2, 2, "serial", SamplingConfig(type="pipelined", producers=2)),
    "pipelined, 4 producers": (4, 4, "serial", SamplingConfig(type="pipelined", producers=4)),
    "pipelined, 8 producers": (8, 8, "serial", SamplingConfig(type="pipelined", producers=8)),
}
"""Name → processes that wait at the same time (0: one for each environment), producers, vectorization, sampling."""


class Contender:
    """One form of the run."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        waiters, _, how, sampling = FORMS[name]
        env = make_env(lambda: Waiting(args.ms), args.envs, vectorization=how)
        learner = {"type": "ppo", "n_steps": STEPS, "n_epochs": 4, "batch_size": 64}
        policy = {"hidden_sizes": [64, 64], "activation": "tanh"}
        self.trainer = Trainer(Agent.assemble(env, learner, policy=policy), env, sampling=sampling)
        self.bound = (waiters or args.envs) / args.ms * 1e3
        self.rates: list[float] = []
        self.waits: list[float] = []

    def block(self, rows: int, keep: bool = True) -> None:
        steps, trainer = rows * self.trainer.sampler.columns, self.trainer
        seconds = getattr(trainer.sampler, "seconds", {"waited": 0.0})
        waited, started = seconds["waited"], time.perf_counter()
        trainer.fit(trainer.counters.env_steps + steps)
        wall = time.perf_counter() - started
        if keep:
            self.rates.append(steps / wall)
            self.waits.append((seconds["waited"] - waited) / wall)


def spread(values: list[float], digits: int = 2) -> dict[str, float]:
    found = {"median": median(values), "least": min(values), "most": max(values)}
    return {name: round(value, digits) for name, value in found.items()}


def measure(args: argparse.Namespace, blocks: int, rows: int) -> dict[str, Any]:
    """All forms in turns → figures."""
    names = [name for name in FORMS if name == "local" or name.startswith(args.only or "")]
    names = [name for name in names if args.envs % FORMS[name][1] == 0]
    forms = {name: Contender(name, args) for name in names}
    try:
        for form in forms.values():
            form.block(2 * STEPS, keep=False)
        for turn in range(blocks):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                forms[name].block(rows)
    finally:
        for form in forms.values():
            form.trainer.close()
    local = forms["local"].rates
    return {
        name: {
            "steps_per_s": spread(form.rates, 1),
            "times_local": spread([a / b for a, b in zip(form.rates, local, strict=True)]),
            "learner_waited": spread(form.waits),
            "waiting_alone": round(form.bound, 1),
        }
        for name, form in forms.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ms", type=float, default=5.0, help="milliseconds of a step on average")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--only", help="forms whose name begins with this, beside local")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, help="default: benchmarks/speed/producers.json; none by --quick")
    args = parser.parse_args()
    torch.set_num_threads(1)
    blocks, rows = (2, 2 * STEPS) if args.quick else (5, 8 * STEPS)
    found = measure(args, blocks, rows)
    print("| form | steps/s | times local | learner waited | waiting alone, steps/s |\n|---|---|---|---|---|")
    for name, row in found.items():
        rate, times = row["steps_per_s"], row["times_local"]
        print(
            f"| {name} | {rate['median']:,.0f} | {times['median']:.2f} ({times['least']:.2f}–{times['most']:.2f}) | "
            f"{row['learner_waited']['median']:.0%} | {row['waiting_alone']:,.0f} |"
        )
    output = args.json or (None if args.quick or args.only else HERE / "speed" / "producers.json")
    if output is not None:
        about = {"ms": args.ms, "envs": args.envs, "load": [round(x, 2) for x in os.getloadavg()]}
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps({**about, "torch": torch.__version__, "forms": found}, indent=1) + "\n")
        print(f"wrote {output}")


if __name__ == "__main__":
    main()
