"""The sum tree against exact sums, and sampling in proportion to priorities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.buffers.rollouts import generator, line, same, spec
from uniarena.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from uniarena.buffers.sum_tree import SumTree
from uniarena.optim.schedules import ScheduleConfig

# -- the tree --------------------------------------------------------------------------------------------------------


def tree_of(values: list[float]) -> SumTree:
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), np.array(values))
    return tree


def test_leaves_come_in_order_at_any_size() -> None:  # case B40
    assert tree_of([1, 1, 1]).find(np.array([0.5, 1.5, 2.5])).tolist() == [0, 1, 2]
    five = tree_of([1, 2, 3, 4, 5])
    assert five.find(np.array([0.0, 0.99, 1.0, 2.99, 3.0, 5.99, 6.0, 9.9, 10.0, 14.9])).tolist() == [
        0, 0, 1, 1, 2, 2, 3, 3, 4, 4,
    ]  # fmt: skip
    assert five.total == 15


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 255, 256, 257, 4095, 4097, 70_000])
def test_find_agrees_with_the_running_sum(size: int) -> None:
    values = np.random.default_rng(size).integers(0, 5, size).astype(float)  # whole numbers: sums are exact
    values[0] = 1
    tree, sums = tree_of(values.tolist()), np.cumsum(values)
    mass = np.sort(np.random.default_rng(1).random(500)) * sums[-1]
    assert tree.total == sums[-1]
    np.testing.assert_array_equal(tree.find(mass), np.searchsorted(sums, mass, side="right"))


@pytest.mark.parametrize("size", [1000, 65_537])
def test_sums_are_exact_after_a_million_updates(size: int) -> None:
    rng, tree, values = np.random.default_rng(0), SumTree(size), np.zeros(size)
    for k in range(4000):
        index = rng.integers(0, size, 250)
        value = rng.random(250) ** 4 * 10.0 ** rng.integers(-6, 6, 250)
        tree.set(index, value)
        values[index] = value
        if k % 500 == 0:
            assert tree.total == pytest.approx(math.fsum(values), rel=1e-12)
    assert np.array_equal(tree.leaves, values)
    assert tree.total == pytest.approx(math.fsum(values), rel=1e-13)
    again = tree_of(values.tolist())  # made anew it is the same, bit for bit
    mass = np.sort(rng.random(10_000)) * tree.total
    assert again.total == tree.total and np.array_equal(again.find(mass), tree.find(mass))


@given(st.lists(st.lists(st.tuples(st.integers(0, 39), st.floats(0, 1e6)), max_size=30), max_size=8))
def test_many_small_changes_equal_one_large(batches: list[list[tuple[int, float]]]) -> None:
    tree, values = SumTree(40), np.zeros(40)
    for batch in batches:
        index = np.array([i for i, _ in batch], np.int64)
        tree.set(index, np.array([value for _, value in batch]))
        for i, value in batch:
            values[i] = value
        assert tree.total == pytest.approx(values.sum())
    assert np.array_equal(tree.leaves, values)


# -- the buffer ------------------------------------------------------------------------------------------------------


def per(capacity: int = 50, columns: int = 1, **more: Any) -> PrioritizedReplay:
    return PrioritizedReplay(PrioritizedConfig(capacity=capacity, **more), spec(columns))


def filled(count: int, capacity: int = 50, **more: Any) -> PrioritizedReplay:
    buffer = per(capacity, **more)
    buffer.add(line(range(count), float(count), first=[0]))
    return buffer


def counts(buffer: PrioritizedReplay, draws: int, size: int) -> np.ndarray:
    """How often each observation was drawn in batches of 50."""
    source, total = generator(), np.zeros(size, np.int64)
    for _ in range(draws // 50):
        total += np.bincount(buffer.sample(source, 50).obs[:, 0].long().numpy(), minlength=size)
    return total


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_frequencies_follow_priorities(alpha: float) -> None:
    buffer = filled(20, alpha=alpha, epsilon=0.0)
    priority = np.arange(1, 21) ** 2.0
    buffer.reprioritise(torch.arange(20), torch.from_numpy(priority))
    share = priority**alpha / (priority**alpha).sum()
    draws = 50_000
    found = counts(buffer, draws, 20)
    assert (np.abs(found - draws * share) <= 3 * np.sqrt(draws * share * (1 - share)) + 1).all()


def test_one_large_priority_gets_its_share() -> None:  # case B42
    buffer = filled(4, alpha=1.0, epsilon=0.0)
    buffer.reprioritise(torch.arange(4), torch.tensor([1.0, 1, 1, 1000]))
    share, draws = 1000 / 1003, 10_000
    found = counts(buffer, draws, 4)
    assert abs(found[3] - draws * share) <= 3 * (draws * share * (1 - share)) ** 0.5
    assert found[:3].sum() > 0


def test_sampling_is_stratified() -> None:
    buffer = filled(10)
    assert torch.bincount(buffer.sample(generator(), 20).obs[:, 0].long()).tolist() == [2] * 10


def test_importance_weights() -> None:
    """w_i = (P_min / P_i)^β, at most 1."""
    buffer = filled(3, alpha=1.0, epsilon=0.0, beta=0.5)
    buffer.reprioritise(torch.arange(3), torch.tensor([1.0, 4.0, 16.0]))
    batch = buffer.sample(generator(), 200)
    expected = torch.tensor([1.0, 0.5, 0.25])[batch.obs[:, 0].long()]
    assert batch.weight.dtype == torch.float32 and torch.allclose(batch.weight, expected)
    assert batch.weight.max() == 1
    buffer.beta = 0.0
    assert (buffer.sample(generator(), 50).weight == 1).all()


def test_beta_follows_its_schedule() -> None:
    buffer = filled(3)
    assert buffer.beta == pytest.approx(0.4)
    buffer.set_progress(0.5)
    assert buffer.beta == pytest.approx(0.7)
    buffer.set_progress(1.0)
    assert buffer.beta == pytest.approx(1.0)
    fixed = filled(3, beta=ScheduleConfig(start=0.2, end=0.8))
    fixed.set_progress(0.5)
    assert fixed.beta == pytest.approx(0.5)


def test_all_zero_priorities_fall_back_to_uniform() -> None:
    buffer = filled(20, capacity=10, epsilon=0.0)
    buffer.reprioritise(torch.arange(10, 20), torch.zeros(10))
    batch = buffer.sample(generator(), 300)
    assert set(batch.obs[:, 0].tolist()) == set(range(10, 20)) and (batch.weight == 1).all()


def test_new_rows_get_the_largest_priority_that_was_seen() -> None:
    buffer = filled(3, alpha=1.0, epsilon=0.0)
    buffer.reprioritise(torch.arange(3), torch.tensor([0.5, 8.0, 0.5]))
    buffer.reprioritise(torch.tensor([1]), torch.tensor([0.5]))
    buffer.add(line([3], 4.0))
    buffer.sample(generator())
    assert buffer.tree.leaves[:5].tolist() == [0.5, 0.5, 0.5, 8.0, 0.0]


def test_rows_that_were_overwritten_keep_their_successors_priority() -> None:
    buffer = filled(4, capacity=4, alpha=1.0, epsilon=0.0)
    batch = buffer.sample(generator(), 8)
    buffer.add(line([4, 5], 6.0))  # rows 0 and 1 are gone
    buffer.reprioritise(batch.index, torch.full((8,), 0.125))
    found = {int(obs): buffer.tree.leaves[int(obs) % 5] for obs in range(2, 6)}
    assert found == {2: 0.125, 3: 0.125, 4: 1.0, 5: 1.0}
    buffer.reprioritise(torch.tensor([0, 1, 6, 1000]), torch.full((4,), 50.0))  # not there, or not yet
    assert buffer.tree.total == 2.25


def test_rows_that_are_no_steps_never_get_a_priority() -> None:
    buffer = per(20, alpha=1.0)
    buffer.add(line([0, 1, 2, 3], 4.0, first=[0], invalid=[1, 2]))
    buffer.reprioritise(torch.arange(4), torch.ones(4))
    assert set(buffer.sample(generator(), 64).obs[:, 0].tolist()) == {0, 3}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_impossible_priorities_are_refused(bad: float) -> None:
    buffer = filled(4)
    with pytest.raises(ValueError, match=r"priority of entry 2 of 3 is .*from 0 up"):
        buffer.reprioritise(torch.arange(3), torch.tensor([1.0, 2.0, bad]))
    buffer.reprioritise(torch.zeros(0, dtype=torch.int64), torch.zeros(0))


def test_a_ring_that_wrapped_many_times_is_sampled_where_it_is() -> None:
    buffer = per(7, alpha=1.0)
    for start in range(40):
        buffer.add(line([start], start + 1.0, first=[0] if start == 0 else []))
        batch = buffer.sample(generator(start), 14)
        assert set(batch.obs[:, 0].tolist()) == set(range(max(0, start - 6), start + 1))
        assert torch.equal(batch.index, batch.obs[:, 0].long())
        buffer.reprioritise(batch.index, torch.ones(14))


def test_state_goes_on_exactly() -> None:
    one = per(30, alpha=0.7)
    source = generator(3)

    def use(buffer: PrioritizedReplay, start: int, stop: int, rng: torch.Generator) -> Any:
        batch = None
        for k in range(start, stop):
            buffer.add(line([k], k + 1.0, first=[0] if k == 0 else []))
            buffer.set_progress(k / 100)
            batch = buffer.sample(rng, 16)
            buffer.reprioritise(batch.index, torch.rand(16, generator=rng))
        return batch

    use(one, 0, 50, source)
    state = one.state_dict()
    other = per(30, alpha=0.7)
    other.load_state_dict(state)
    twin = torch.Generator()
    twin.set_state(source.get_state())
    assert same(use(one, 50, 100, source), use(other, 50, 100, twin))
    assert np.array_equal(one.tree.leaves, other.tree.leaves) and one.max_priority == other.max_priority
