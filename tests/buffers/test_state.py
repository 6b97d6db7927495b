"""A saved buffer goes on bit for bit: contents, cursor, cuts, running episodes, final observations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffers.rollouts import generator, line, same, spec
from tests.buffers.streams import MODES, Stream
from tests.buffers.test_oracle import make_spec
from uniarena import checkpoint
from uniarena.buffers.her import HindsightConfig
from uniarena.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig


def make(stream: Stream, prioritized: bool, her: bool, capacity: int) -> ReplayBuffer:
    given = make_spec(stream, 3)
    hindsight = HindsightConfig() if her else None
    if prioritized:
        return PrioritizedReplay(PrioritizedConfig(capacity=capacity, her=hindsight), given)
    return ReplayBuffer(ReplayConfig(capacity=capacity, her=hindsight), given)


def use(buffer: ReplayBuffer, rollouts: list[Any], source: torch.Generator) -> list[Any]:
    batches = []
    for rollout in rollouts:
        buffer.add(rollout)
        if buffer.ready:
            batch = buffer.sample(source, 8)
            buffer.reprioritise(batch.index, torch.rand(8, generator=source))
            batches.append(batch)
    return batches


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1000),
    mode=st.sampled_from(MODES[:3]),
    frames=st.sampled_from([1, 3]),
    prioritized=st.booleans(),
    her=st.booleans(),
    capacity=st.integers(2, 60),
    steps=st.integers(1, 4),
    before=st.integers(0, 15),
)
def test_the_second_half_is_the_same_with_a_reload_between(
    seed: int, mode: str, frames: int, prioritized: bool, her: bool, capacity: int, steps: int, before: int
) -> None:
    stream = Stream(seed, 2, mode, frames)
    rollouts = [stream.rollout(steps).clone() for _ in range(before + 12)]
    through, source = make(stream, prioritized, her, capacity), generator(1)
    use(through, rollouts[:before], source)
    state, position = through.state_dict(), source.get_state()
    again, twin = make(stream, prioritized, her, capacity), generator(2)
    again.load_state_dict(state)
    twin.set_state(position)
    assert again.size == through.size
    one, other = use(through, rollouts[before:], source), use(again, rollouts[before:], twin)
    assert len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("steps", [3, 40])
def test_a_checkpoint_keeps_everything(tmp_path: Path, steps: int) -> None:  # case B45
    stream = Stream(5, 2, frames=3)
    buffer = make(stream, True, True, 50)
    use(buffer, [stream.rollout(2) for _ in range(steps)], generator())
    checkpoint.save(tmp_path / "saved", {"agent": {"buffer": buffer.state_dict()}}, {})
    state, _ = checkpoint.load(tmp_path / "saved")
    again = make(stream, True, True, 50)
    again.load_state_dict(state["agent"]["buffer"])
    assert same(buffer.sample(generator(3)), again.sample(generator(3)))
    more = [stream.rollout(2).clone() for _ in range(10)]
    assert all(
        same(a, b)
        for a, b in zip(use(buffer, more, generator(4)), use(again, more, generator(4)), strict=True)
    )


def test_a_large_ring_that_is_little_used_saves_little() -> None:
    buffer = ReplayBuffer(ReplayConfig(capacity=1_000_000), spec())
    buffer.add(line(range(20), 0.0, first=[0], terminated=[19], finals={19: 20.0}, last_first=True))
    total: list[int] = []

    def count(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            total.append(value.numel() * value.element_size())
        elif isinstance(value, (dict, list)):
            for item in value.values() if isinstance(value, dict) else value:
                count(item)

    count(buffer.state_dict())
    assert sum(total) < 1000


def test_a_state_replaces_what_was_there() -> None:
    source, target = (ReplayBuffer(ReplayConfig(capacity=30), spec()) for _ in range(2))
    source.add(line([1, 2], 0.0, first=[0], terminated=[1], finals={1: 3.0}, last_first=True))
    for _ in range(30):
        target.add(line([7], 0.0, first=[0], terminated=[0], finals={0: 8.0}, last_first=True))
    target.load_state_dict(source.state_dict())
    assert target.size == 2 and target.ring.finals.used == 1
    assert same(source.sample(generator()), target.sample(generator()))


@pytest.mark.parametrize("other", [{"capacity": 20}, {"columns": 2}, {"extra": True}])
def test_a_state_of_another_shape_is_refused(other: dict[str, Any]) -> None:
    buffer = ReplayBuffer(ReplayConfig(capacity=10), spec())
    extra = {"bonus": spec().observation_space} if "extra" in other else {}
    wrong = ReplayBuffer(
        ReplayConfig(capacity=other.get("capacity", 10)), spec(other.get("columns", 1), extra=extra)
    )
    with pytest.raises(ValueError, match="Give the same capacity"):
        wrong.load_state_dict(buffer.state_dict())
