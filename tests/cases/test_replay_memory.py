"""Cases B40, B42 and B44: drawing by priority at any capacity, and how much memory image replay takes."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import uniarena
from tests.buffers.rollouts import generator, line, spec
from uniarena import Agent, make_env
from uniarena.buffers import memory
from uniarena.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from uniarena.config import ConfigError


def prioritized(capacity: int, rows: int, priorities: list[float]) -> PrioritizedReplay:
    """α = 1; the newest `len(priorities)` of `rows` rows have these."""
    buffer = PrioritizedReplay(PrioritizedConfig(capacity=capacity, alpha=1.0, epsilon=0.0), spec())
    for start in range(rows):
        buffer.add(line([start], start + 1.0, first=[0] if start == 0 else []))
    newest = torch.arange(rows - len(priorities), rows)
    buffer.reprioritise(newest, torch.tensor(priorities))
    return buffer


def drawn(buffer: PrioritizedReplay, rows: int, count: int, draws: int = 10_000) -> np.ndarray:
    """How often each of the newest rows was drawn."""
    source, found = generator(), np.zeros(rows, np.int64)
    for _ in range(draws // 50):
        found += np.bincount(buffer.sample(source, 50).obs[:, 0].long().numpy(), minlength=rows)
    assert found[: rows - count].sum() == 0, "what is gone is not drawn"
    return found[rows - count :]


@pytest.mark.parametrize("rows", ["filling", "full", "wrapped"])
@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 6, 7, 12, 31, 33])
def test_b40_frequencies_at_capacities_that_are_no_powers_of_two(capacity: int, rows: str) -> None:
    """Case B40: leaf i has priority i, before the ring is full, when it is, and when it has wrapped."""
    total = {"filling": max(1, capacity - 1), "full": capacity, "wrapped": 2 * capacity + 1}[rows]
    count = min(capacity, total)
    priorities = [float(i + 1) for i in range(count)]
    found = drawn(prioritized(capacity, total, priorities), total, count)
    share = np.array(priorities) / sum(priorities)
    assert (np.abs(found - 10_000 * share) <= 3 * np.sqrt(10_000 * share * (1 - share)) + 1).all()


@pytest.mark.parametrize("at", [0, 1, 2, 3])
@pytest.mark.parametrize("capacity", [4, 5, 100])
def test_b42_the_last_items_are_part_of_the_sum(capacity: int, at: int) -> None:
    """Case B42: one of four has nearly everything, wherever it stands."""
    priorities = [1.0] * 4
    priorities[at] = 1000.0
    found = drawn(prioritized(capacity, 4, priorities), 4, 4)
    share = 1000 / 1003
    assert abs(found[at] - 10_000 * share) <= 3 * (10_000 * share * (1 - share)) ** 0.5
    assert found.sum() == 10_000 and (np.delete(found, at) > 0).any()


# -- B44 -----------------------------------------------------------------------------------------------------------
class Screen(gym.Env[np.ndarray, int]):
    """A picture of noise; episodes of nine steps."""

    def __init__(self, shape: tuple[int, ...] = (84, 84)) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(2)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._obs(), 1.0, self.t == 9, False, {}

    def _obs(self) -> np.ndarray:
        shape = self.observation_space.shape
        return self.np_random.integers(0, 255, shape).astype(np.uint8)


GYMNASIUM = [{"type": "gymnasium.wrappers:FrameStackObservation", "stack_size": 4}]
OURS = [{"type": "frame_stack", "n_frames": 4, "new_axis": True, "axis": 0}]
PIPELINE = [
    {"type": "preprocess_image", "layout": "HWC", "grayscale": True, "size": 84},
    {"type": "frame_stack", "n_frames": 4},
]


@pytest.mark.parametrize(
    ("make", "wrappers"),
    [
        (Screen, GYMNASIUM),
        (Screen, OURS),
        (partial(Screen, (100, 90, 3)), PIPELINE),
        (partial(Screen, (1, 84, 84)), [{"type": "frame_stack", "n_frames": 4, "axis": 0}]),
    ],
    ids=["gymnasium's", "ours", "from colour", "channels first"],
)
@pytest.mark.parametrize("kind", ["replay", "prioritized"])
def test_b44_a_hundred_thousand_stacked_screens(
    make: Any, wrappers: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Case B44: 84 · 84 · 100k bytes, told before it is taken, whichever way the stack was made."""
    env = make_env(make, 2, wrappers=wrappers)
    with caplog.at_level(logging.INFO, "uniarena"):
        agent = Agent.assemble(env, "dqn", parts={"buffer": {"type": kind, "capacity": 100_000}})
    env.close()
    ring = agent.buffer.ring
    rows = ring.table.nbytes + sum(each.nbytes for each in ring.frames)
    assert 84 * 84 * 100_000 <= rows < 1.01 * 84 * 84 * 100_000
    assert [each.dtype for each in ring.frames] == [np.uint8]
    assert "0.71 GB of RAM" in caplog.text or "0.72 GB of RAM" in caplog.text


def config(**buffer: Any) -> dict[str, Any]:
    return {
        "environment": {"id": partial(Screen, (36, 36)), "wrappers": GYMNASIUM, "num_envs": 3},
        "learner": {"type": "dqn", "learning_starts": 20, "batch_size": 4},
        "agent": {"buffer": buffer, "policy": {"network": "mlp", "hidden_sizes": [4]}},
        "training": {"total_timesteps": 48, "n_eval_episodes": 1},
    }


def test_b44_a_run_that_does_not_fit_is_refused_and_one_on_disk_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Case B44: with 10 MB of free RAM; the advice that is given is followed."""
    monkeypatch.setattr(memory, "available_ram", lambda: 10_000_000)
    with pytest.raises(ConfigError) as caught:
        uniarena.train(config(capacity=10_000), run_dir=tmp_path / "run", quiet=True)
    said = " ".join(str(caught.value).split())
    assert "agent.buffer.capacity" in said and "13 MB of RAM; 10 MB are free" in said
    assert "memory_map" in said and not (tmp_path / "run").exists()
    fits = int(said.split("agent.buffer.capacity to ")[1].split(" or")[0].replace(",", ""))
    with caplog.at_level(logging.INFO, "uniarena"):
        uniarena.train(config(capacity=fits), run_dir=tmp_path / "less", quiet=True)
        disk = str(tmp_path / "disk")
        uniarena.train(config(capacity=10_000, memory_map=disk), run_dir=tmp_path / "disk-run", quiet=True)
    assert "replay memory: 10,005 transitions" in caplog.text and f"in {disk}" in caplog.text
    assert caplog.text.index("replay memory") < caplog.text.index("agent: dqn"), "before it is taken"
    assert not list(Path(disk).iterdir()), "files go with the run"
