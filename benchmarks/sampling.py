"""What it gains to sample in a process beside the learner, and what each side waits for the other.

    python benchmarks/sampling.py                          # PPO on CartPole-v1
    python benchmarks/sampling.py --work dqn --json s.json
    python benchmarks/sampling.py --overhead               # what the local sampler adds to what it has to do

Blocks of both forms take turns, so that a busy neighbour slows each alike; their first chunk is not beside anything, so
they are long. `speed_up` is the median, over the blocks, of wall time here over wall time pipelined. `of_two_cores` is
what the processor's time says of two cores without other work: that of the one process over that of the busier of the
two. `idle` is the share of a block that the trainer waits for the producer, and that the producer does not collect; the
smaller one is of the busier side.

`--overhead` times chunks of 128 steps of 8 CartPoles, and in turns with them what no sampler can do without: the same
environments stepped and reset by a plain loop, actions for rows that are there, and six writes of NumPy a row.

Run it with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import torch

from uniarena import Agent, Trainer, make_env
from uniarena.config import SamplingConfig

TANH = {"hidden_sizes": [64, 64], "activation": "tanh"}
WORK: dict[str, tuple[str, int, dict[str, Any], dict[str, Any]]] = {
    "ppo": ("CartPole-v1", 8, {"type": "ppo", "n_steps": 128, "n_epochs": 4, "batch_size": 256}, TANH),
    "ppo-halfcheetah": (
        "HalfCheetah-v5",
        8,
        {"type": "ppo", "n_steps": 256, "n_epochs": 10, "batch_size": 64},
        TANH,
    ),
    "dqn": ("CartPole-v1", 1, {"type": "dqn", "learning_starts": 100}, {}),
    "sac": ("Pendulum-v1", 1, {"type": "sac", "learning_starts": 100}, {"hidden_sizes": [256, 256]}),
}


class Contender:
    """One form of a run.

    Attributes:
        wall, trainer, producer: microseconds an env step of every block, by the clock and by each process's time.
        waits: of each block, the shares that the trainer and the producer waited.
    """

    def __init__(self, work: str, kind: Any, lag: Any) -> None:
        env_id, columns, learner, policy = WORK[work]
        env = make_env(env_id, columns)
        agent = Agent.assemble(env, learner, policy=policy)
        self.run = Trainer(agent, env, sampling=SamplingConfig(type=kind, lag=lag))
        pids = getattr(self.run.sampler, "pids", [])
        self.other = psutil.Process(pids[0]) if pids else None
        self.wall: list[float] = []
        self.trainer: list[float] = []
        self.producer: list[float] = []
        self.waits: list[tuple[float, float]] = []

    def block(self, steps: int) -> None:
        start, clocks, waits = time.perf_counter(), self._clocks(), self._waits()
        self.run.fit(self.run.counters.env_steps + steps)
        wall = time.perf_counter() - start
        spent = [after - before for before, after in zip(clocks, self._clocks(), strict=True)]
        waited = [after - before for before, after in zip(waits, self._waits(), strict=True)]
        for kept, seconds in zip((self.wall, self.trainer, self.producer), (wall, *spent), strict=True):
            kept.append(seconds / steps * 1e6)
        self.waits.append((waited[0] / wall, 1 - waited[1] / wall))

    def _clocks(self) -> tuple[float, float]:
        times = None if self.other is None else self.other.cpu_times()
        return time.process_time(), 0.0 if times is None else times.user + times.system

    def _waits(self) -> tuple[float, float]:
        seconds = getattr(self.run.sampler, "seconds", {"waited": 0.0, "collecting": 0.0})
        return seconds["waited"], seconds["collecting"]


def measure(work: str, lag: Any, blocks: int, steps: int) -> dict[str, Any]:
    """Both forms in turns → figures."""
    forms = {"local": Contender(work, "local", 1), "pipelined": Contender(work, "pipelined", lag)}
    for form in forms.values():
        form.block(steps)
        for kept in (form.wall, form.trainer, form.producer, form.waits):
            kept.clear()
    for _ in range(blocks):
        for form in forms.values():
            form.block(steps)
    here, beside = forms["local"], forms["pipelined"]
    pairs = list(zip(here.wall, beside.wall, strict=True))
    busier = max(median(beside.trainer), median(beside.producer))
    for form in forms.values():
        form.run.close()
    return {
        "work": work,
        "lag": lag,
        "blocks": blocks,
        "steps": steps,
        "local_us": round(median(here.trainer), 1),
        "trainer_us": round(median(beside.trainer), 1),
        "producer_us": round(median(beside.producer), 1),
        "speed_up": round(median(a / b for a, b in pairs), 2),
        "of_two_cores": round(median(here.trainer) / busier, 2),
        "idle": [round(median(wait[side] for wait in beside.waits), 3) for side in (0, 1)],
        "load": round(psutil.getloadavg()[0], 1),
    }


def overhead(blocks: int, rows: int = 128, columns: int = 8) -> dict[str, Any]:
    """What a vector step of the local sampler takes, µs, and what of it is environment, acting and writing."""
    env = make_env("CartPole-v1", columns)
    learner = {"type": "ppo", "n_steps": rows, "n_epochs": 1, "batch_size": 256}
    run = Trainer(Agent.assemble(env, learner, policy=TANH), env, sampling=SamplingConfig(type="local"))
    run.fit(rows * columns)
    actor, single = (
        run.agent.actor,
        [gym.make("CartPole-v1", disable_env_checker=True) for _ in range(columns)],
    )
    for seed, each in enumerate(single):
        each.reset(seed=seed)
    generator = torch.Generator().manual_seed(0)
    rollout = run.sampler.collect(rows * columns)
    obs = torch.zeros(rows + 1, columns, 4)
    obs[:-1] = rollout.rows.obs
    steps, written = obs.numpy(), [np.zeros((rows + 1, columns), np.float32) for _ in range(5)]
    actions = rollout.rows.action.tolist()

    def stepping() -> None:
        for chosen in actions:
            for each, action in zip(single, chosen, strict=True):
                _, _, terminated, truncated, _ = each.step(action)
                if terminated or truncated:
                    each.reset()

    def acting() -> None:
        with torch.no_grad():
            act = actor.on_arrays(obs, actor.noise(rows, columns, generator))
            assert act is not None
            for t in range(rows):
                act(steps[t], t)

    def writing() -> None:
        row, of_obs = np.zeros(columns, np.float32), np.zeros((columns, 4), np.float32)
        for t in range(rows):
            steps[t + 1] = of_obs
            for field in written:
                field[t] = row

    parts = {
        "whole": lambda: run.sampler.collect(rows * columns),
        "environments": stepping,
        "acting": acting,
        "writing": writing,
    }
    taken: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(blocks):
        for name, part in parts.items():
            start = time.perf_counter()
            part()
            taken[name].append((time.perf_counter() - start) / rows * 1e6)
    run.close()
    for each in single:
        each.close()
    found = {name: round(median(times), 1) for name, times in taken.items()}
    rest = [a - b - c - d for a, b, c, d in zip(*taken.values(), strict=True)]
    return {**found, "overhead": round(median(rest), 1), "load": round(psutil.getloadavg()[0], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", choices=WORK, default="ppo")
    parser.add_argument("--lag", choices=["1", "free"], default="1")
    parser.add_argument("--blocks", type=int, help="blocks of each form (7), or chunks of each part (140)")
    parser.add_argument("--steps", type=int, default=40_960)
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.overhead and (given.work, given.lag, given.steps) != ("ppo", "1", 40_960):
        parser.error("--overhead is of one work and size; of the others only --blocks and --json go with it")
    torch.set_num_threads(1)
    if given.overhead:
        found = overhead(given.blocks or 140)
    else:
        found = measure(given.work, 1 if given.lag == "1" else given.lag, given.blocks or 7, given.steps)
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
