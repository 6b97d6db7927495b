"""Mixed samples: parts by weight, priorities back to where rows came from."""

from __future__ import annotations

import pytest
import torch

from tests.buffers.rollouts import generator, line, same, spec
from uniarena.buffers.mix import mix
from uniarena.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig


def replay(start: int = 0, count: int = 10) -> ReplayBuffer:
    buffer = ReplayBuffer(ReplayConfig(capacity=50), spec())
    if count:
        buffer.add(line(range(start, start + count), float(start + count), first=[0]))
    return buffer


def test_parts_have_the_sizes_of_their_weights() -> None:
    mixed = mix([replay(0), replay(100)], [3, 1])
    batch = mixed.sample(generator(), 34)
    assert torch.bincount(batch.source).tolist() in ([26, 8], [25, 9])
    assert torch.equal(batch.obs[:, 0] >= 100, batch.source == 1)
    assert mixed.sample(generator()).shape == (32,) and mixed.size == 20 and mixed.ready


def test_new_experience_goes_into_one_and_an_empty_one_gives_its_part_to_the_others() -> None:
    own, shown = replay(count=0), replay(100)
    mixed = mix([own, shown], [0.5, 0.5])
    assert (mixed.sample(generator()).source == 1).all()
    mixed.add(line([0, 1], 2.0, first=[0]))
    assert own.size == 2 and shown.size == 10
    assert torch.bincount(mixed.sample(generator()).source).tolist() == [16, 16]
    with pytest.raises(RuntimeError, match="none of the mixed buffers"):
        mix([replay(count=0)], [1]).sample(generator())
    assert not mix([replay(count=0)], [1]).ready


def test_priorities_find_their_way_back() -> None:
    own = PrioritizedReplay(PrioritizedConfig(capacity=50, alpha=1.0, epsilon=0.0), spec())
    own.add(line(range(4), 4.0, first=[0]))
    mixed = mix([replay(100), own], [1, 1])
    batch = mixed.sample(generator())
    mixed.reprioritise(batch.index, torch.where(batch.source == 1, batch.obs[:, 0] + 1, 1000.0))
    assert own.tree.leaves[:4].tolist() == [1, 2, 3, 4] and own.max_priority == 4
    assert "weight" in batch


def test_progress_and_state_reach_all_parts() -> None:
    def make() -> tuple[PrioritizedReplay, ReplayBuffer]:
        return PrioritizedReplay(PrioritizedConfig(capacity=50), spec()), replay(count=0)

    parts = make()
    mixed = mix(parts, [1, 1])
    mixed.add(line(range(5), 5.0, first=[0]))
    parts[1].add(line(range(10, 15), 15.0, first=[0]))
    mixed.set_progress(1.0)
    assert parts[0].beta == 1.0
    again = mix(make(), [1, 1])
    again.load_state_dict(mixed.state_dict())
    assert same(again.sample(generator()), mixed.sample(generator()))


@pytest.mark.parametrize("weights", [[1], [1, -1], [0, 0], [1, float("nan")]])
def test_weights_that_are_no_parts_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="mix was given"):
        mix([replay(), replay()], weights)
