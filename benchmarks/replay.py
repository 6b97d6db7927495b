"""What replay costs: microseconds of single inserts and samples of a ring of a million transitions.

    python benchmarks/replay.py            # the table, against the targets
    python benchmarks/replay.py --json replay.json

Every call is timed on its own, with a clock that costs about 0.1 µs; the table shows the fastest percent and the median
of many. On a shared machine the first tells more about the code, the second about the neighbours. Run with one thread:
OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from uniarena.batch import Batch, Rollout
from uniarena.buffers.frames import StackedLeaf
from uniarena.buffers.her import HindsightConfig
from uniarena.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.buffers.spec import BufferSpec

OBS, ACTION = spaces.Box(-np.inf, np.inf, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32)
CAPACITY = 1_000_000
EPISODE = 1000


class Chunks:
    """Rollouts as a sampler gives them: the same tensors again and again, the newest observation in its own."""

    def __init__(self, columns: int, steps: int = 1) -> None:
        self.obs = torch.zeros(steps + 1, columns, 17)
        self.first = torch.zeros(steps + 1, columns, dtype=torch.bool)
        shape = (steps, columns)
        self.fields = {
            "obs": self.obs[:-1],
            "is_first": self.first[:-1],
            "action": torch.zeros(*shape, 6),
            "reward": torch.zeros(shape),
            "terminated": torch.zeros(shape, dtype=torch.bool),
            "truncated": torch.zeros(shape, dtype=torch.bool),
            "valid": torch.ones(shape, dtype=torch.bool),
        }

    def __call__(self) -> Rollout:
        steps, columns = self.fields["reward"].shape
        last = Batch((columns,), obs=self.obs[-1].clone(), is_first=self.first[-1].clone())
        return Rollout(Batch((steps, columns), self.fields), Batch((columns,), is_first=self.first[0]), last)


def fill(buffer: ReplayBuffer, columns: int) -> None:
    """More than the ring holds, in episodes of a thousand steps that time limits end."""
    chunk = Chunks(columns, EPISODE)
    chunk.first[0] = True
    chunk.fields["truncated"][-1] = True
    count = torch.arange(columns)
    for _ in range(CAPACITY // (EPISODE * columns) + 2):
        rollout = chunk()
        ended = Batch((columns,), t=torch.full((columns,), EPISODE - 1), b=count, obs=rollout.last.obs)
        last = rollout.last.replace(is_first=torch.ones(columns, dtype=torch.bool))
        buffer.add(Rollout(rollout.rows, rollout.start, last, ended))


def timed(
    call: Callable[[Any], Any], make: Callable[[], Any] = lambda: None, count: int = 4000
) -> tuple[float, float]:
    """(1st percentile, median) of one call in µs; what `make` gives is not timed."""
    clock, times = time.perf_counter_ns, np.empty(count)
    for k in range(-200, count):
        given = make()
        start = clock()
        call(given)
        times[k] = clock() - start
    return float(np.percentile(times, 1)) / 1000, float(np.median(times)) / 1000


def make_spec(columns: int, **more: Any) -> BufferSpec:
    return BufferSpec(OBS, ACTION, columns, gamma=0.99, batch_size=256, **more)


def plain_replay() -> dict[str, tuple[float, float]]:
    """Inserts and uniform samples, of one environment and of eight."""
    rows: dict[str, tuple[float, float]] = {}
    source = torch.Generator()
    for columns in (1, 8):
        buffer = ReplayBuffer(ReplayConfig(capacity=CAPACITY), make_spec(columns))
        fill(buffer, columns)
        one, four = Chunks(columns), Chunks(columns, 4)
        one.first[:] = four.first[:] = False
        start = one()
        start.rows.is_first.fill_(True)
        buffer.add(start)
        start.rows.is_first.fill_(False)
        rows[f"insert one step, {columns} environment(s)"] = timed(buffer.add, one, 20_000)
        rows[f"insert four steps, {columns} environment(s)"] = timed(buffer.add, four)
        rows[f"sample 256, {columns} environment(s)"] = timed(lambda _, own=buffer: own.sample(source))
    three = ReplayBuffer(ReplayConfig(capacity=CAPACITY), make_spec(1, n_step=3))
    fill(three, 1)
    rows["sample 256, returns of 3 steps"] = timed(lambda _: three.sample(source))
    return rows


def prioritized_replay() -> dict[str, tuple[float, float]]:
    """A sample and its priorities, alone and with a new transition each time."""
    source = torch.Generator()
    buffer = PrioritizedReplay(PrioritizedConfig(capacity=CAPACITY), make_spec(1))
    fill(buffer, 1)
    chunk, priority = Chunks(1), torch.rand(256)

    def cycle(_: Any) -> None:
        batch = buffer.sample(source)
        buffer.reprioritise(batch["index"], priority)

    def with_insert(rollout: Rollout) -> None:
        buffer.add(rollout)
        cycle(None)

    for _ in range(4000):
        cycle(None)  # until priorities differ everywhere
    return {
        "prioritized: sample 256 and set 256": timed(cycle),
        "prioritized: insert, sample and set": timed(with_insert, chunk),
    }


def other_samples() -> dict[str, tuple[float, float]]:
    """Stacks of pictures, and goals in hindsight."""
    source = torch.Generator()
    picture = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    stacks = (StackedLeaf("", 4, 0),)
    given = BufferSpec(picture, spaces.Discrete(6), batch_size=256, stacks=stacks)
    buffer = ReplayBuffer(ReplayConfig(capacity=50_000), given)
    frames = torch.randint(0, 255, (503, 1, 84, 84), dtype=torch.uint8)
    flags = torch.zeros(500, 1, dtype=torch.bool)
    seen = torch.cat([frames[:1]] * 3 + [frames[:501]])
    obs = torch.stack([seen[k : k + 501, 0] for k in range(4)], 1)[:, None]
    first = flags.clone()
    first[0] = True
    rows = Batch(
        (500, 1), obs=obs[:-1], action=flags.long(), reward=flags.float(), terminated=flags, truncated=flags
    )
    rows = rows.replace(valid=~flags, is_first=first)
    last = Batch((1,), obs=obs[-1], is_first=first[1])
    for _ in range(101):
        buffer.add(Rollout(rows, Batch((1,), is_first=first[0]), last))
    figures = {"sample 256 stacks of 4 × 84 × 84": timed(lambda _: buffer.sample(source), count=300)}

    def reached(achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        return -(np.abs(achieved - desired).sum(-1) > 0.05).astype(np.float32), np.zeros(len(achieved), bool)

    goal = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    space = spaces.Dict({"observation": OBS, "achieved_goal": goal, "desired_goal": goal})
    given = BufferSpec(space, ACTION, batch_size=256, goal_reward=reached)
    her = ReplayBuffer(ReplayConfig(capacity=CAPACITY // 10, her=HindsightConfig()), given)
    chunk = Chunks(1, 50)
    chunk.first[0], chunk.fields["truncated"][-1] = True, True
    for _ in range(2002):
        rollout = chunk()
        goals = {
            "observation": rollout.rows.obs,
            "achieved_goal": torch.rand(50, 1, 3),
            "desired_goal": torch.rand(50, 1, 3),
        }
        after = {name: leaf[-1] for name, leaf in goals.items()}
        ended = Batch((1,), t=torch.tensor([49]), b=torch.tensor([0]), obs=after)
        last = Batch((1,), obs=after, is_first=torch.ones(1, dtype=torch.bool))
        her.add(Rollout(rollout.rows.replace(obs=goals), rollout.start, last, ended))
    figures["sample 256 with goals in hindsight"] = timed(lambda _: her.sample(source))
    return figures


TARGETS = {
    "insert one step": 6.0,
    "sample 256, 1 env": 40.0,
    "sample 256, 8 env": 40.0,
    "prioritized: sample 256 and": 150.0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    table, row = np.zeros((1000, 17), np.float32), np.zeros(17, np.float32)
    figures = {"for comparison: write 17 numbers with NumPy": timed(lambda _: table.__setitem__(5, row))}
    figures |= plain_replay() | prioritized_replay() | other_samples()
    print(f"{'µs':48}{'fastest 1 %':>12}{'median':>10}{'target':>9}")
    for name, (fast, median) in figures.items():
        target = next((value for start, value in TARGETS.items() if name.startswith(start)), None)
        print(f"{name:48}{fast:12.1f}{median:10.1f}{'' if target is None else f'{target:9.0f}'}")
    if args.json:
        named = {
            name: {"fastest_percent_us": fast, "median_us": median}
            for name, (fast, median) in figures.items()
        }
        args.json.write_text(json.dumps(named, indent=2) + "\n")


if __name__ == "__main__":
    main()
