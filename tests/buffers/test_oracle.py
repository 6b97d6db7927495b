"""All at once, against lists: n-step × hindsight × priorities × stacks × masks × autoreset modes × wraparound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffers.streams import ACTIONS, MODES, Oracle, Stream, goal_reward
from uniarena.batch import Batch
from uniarena.buffers.frames import StackedLeaf
from uniarena.buffers.her import HindsightConfig
from uniarena.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.buffers.spec import BufferSpec

GAMMA = 0.9


def make_spec(stream: Stream, n: int = 1, **more: Any) -> BufferSpec:
    stacks = (StackedLeaf("obs", stream.depth, 0, stream.zero),) if stream.depth > 1 else ()
    return BufferSpec(
        stream.space,
        spaces.Discrete(ACTIONS),
        columns=len(stream.columns),
        gamma=GAMMA,
        batch_size=64,
        n_step=n,
        stacks=stacks,
        goal_reward=goal_reward,
        successors=True,
        **more,
    )


def check(buffer: ReplayBuffer, oracle: Oracle, batch: Batch, her: str | None) -> None:
    """Every sampled row is one that may be sampled, and says what the lists say."""
    columns = len(oracle.stream.columns)
    good = [oracle.can_sample(b) for b in range(columns)]
    for i, index in enumerate(batch["index"].tolist()):
        p, b = divmod(index, columns)
        assert p in good[b]
        row = oracle.stored(b)[p]
        goal = batch["obs"]["desired_goal"][i].numpy() if her else None
        expected = oracle.transition(b, p, goal)
        if her and goal is not None:
            check_goal(oracle, (b, p), goal, her)
        assert batch["action"][i] == row.action
        assert batch["n"][i] == expected.steps
        assert batch["reward"][i].item() == pytest.approx(expected.reward, abs=1e-4)
        assert batch["discount"][i].item() == pytest.approx(expected.discount, abs=1e-6)
        assert batch["terminated"][i].item() == expected.terminated
        check_obs(batch["obs"], i, row.obs, goal)
        if expected.next_obs is not None:
            check_obs(batch["next_obs"], i, expected.next_obs, goal)
        check_steps(oracle, batch, i, (b, p), goal)


def check_steps(oracle: Oracle, batch: Batch, i: int, at: tuple[int, int], goal: np.ndarray | None) -> None:
    """Every summed step of a window, its true successor, and where there is none."""
    stored, p = oracle.stored(at[0]), at[1]
    if "window" not in batch:
        assert batch["known"][i].item() == (stored[p].successor is not None)
        return
    window, steps = batch["window"], int(batch["n"][i])
    for k in range(oracle.n):
        row = stored[p + k] if k < steps else None
        known = row is not None and row.successor is not None
        assert window["valid"][i, k].item() == known, (i, k)
        if row is not None:
            assert window["action"][i, k] == row.action
            check_obs({name: leaf[i] for name, leaf in window["obs"].items()}, k, row.obs, goal)
        if row is not None and row.successor is not None:
            check_obs({name: leaf[i] for name, leaf in window["next_obs"].items()}, k, row.successor, goal)


def check_obs(given: Any, i: int, expected: dict[str, np.ndarray], goal: np.ndarray | None) -> None:
    for name, leaf in expected.items():
        leaf = goal if name == "desired_goal" and goal is not None else leaf
        assert given[name].dtype == torch.from_numpy(leaf).dtype
        np.testing.assert_array_equal(given[name][i].numpy(), leaf, name)


def check_goal(oracle: Oracle, at: tuple[int, int], goal: np.ndarray, strategy: str) -> None:
    b, p = at
    stored = oracle.stored(b)
    episode = [q for q in oracle.episode(b, p) if stored[q].successor is not None]
    reach = {"future": [q for q in episode if q >= p], "final": episode[-1:], "episode": episode}[strategy]
    assert goal.tolist() in [stored[q].successor["achieved_goal"].tolist() for q in reach]  # type: ignore[index]


def run(
    stream: Stream, buffer: ReplayBuffer, oracle: Oracle, chunks: list[int], her: str | None, draws: int = 40
) -> None:
    generator = torch.Generator()
    generator.manual_seed(0)
    for k, steps in enumerate(chunks):
        buffer.add(stream.rollout(steps))
        expected = sum(len(oracle.can_sample(b)) for b in range(len(stream.columns)))
        assert buffer.size == expected
        assert buffer.ready == (expected > 0)
        if not expected or k % 2:
            continue
        batch = buffer.sample(generator, draws)
        check(buffer, oracle, batch, her)
        priority = torch.rand(draws, generator=generator)
        buffer.reprioritise(batch["index"], priority)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10_000),
    columns=st.integers(1, 3),
    mode=st.sampled_from(MODES),
    stack=st.sampled_from([(1, False), (3, False), (4, True)]),
    n=st.sampled_from([1, 2, 5]),
    her=st.sampled_from([None, None, "future", "final", "episode"]),
    prioritized=st.booleans(),
    capacity=st.integers(1, 40),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=14),
)
def test_the_whole_product_agrees_with_lists_of_rows(
    seed: int,
    columns: int,
    mode: str,
    stack: tuple[int, bool],
    n: int,
    her: str | None,
    prioritized: bool,
    capacity: int,
    chunks: list[int],
) -> None:
    if her and mode == "lost":
        mode = "same_step"  # hindsight refuses what loses the goals of ends
    stream = Stream(seed, columns, mode, *stack)
    hindsight = HindsightConfig(strategy=her, ratio=1.0) if her else None  # type: ignore[arg-type]
    spec = make_spec(stream, n)
    buffer: ReplayBuffer
    if prioritized:
        buffer = PrioritizedReplay(PrioritizedConfig(capacity=capacity, her=hindsight), spec)
    else:
        buffer = ReplayBuffer(ReplayConfig(capacity=capacity, her=hindsight), spec)
    run(stream, buffer, Oracle(stream, -(-capacity // columns), GAMMA, n), chunks, her)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("columns", [1, 4, 20])
@pytest.mark.parametrize("steps", [1, 2])
def test_long_streams_of_few_steps(
    mode: str, columns: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way off-policy samplers add: a row or two at a time, most of them plain."""
    monkeypatch.setattr("uniarena.buffers.ring.TO_CHECK", 20)
    stream = Stream(1, columns, mode, 3, events=0.3 / columns)
    buffer = ReplayBuffer(ReplayConfig(capacity=29 * columns), make_spec(stream, 3))
    run(stream, buffer, Oracle(stream, 29, GAMMA, 3), [steps] * 120, None, draws=12)
