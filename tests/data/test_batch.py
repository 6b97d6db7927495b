"""Batch and Rollout: shapes are checked, faults are named, joins and cuts lose nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from uniarena.batch import Batch, Rollout, tree_leaves, tree_map, tree_paths, tree_unflatten


def make(steps: int = 3, columns: int = 2) -> Batch:
    count = steps * columns
    return Batch(
        (steps, columns),
        obs={
            "a": torch.arange(count * 4.0).reshape(steps, columns, 4),
            "b": (torch.arange(count).reshape(steps, columns),),
        },
        reward=torch.arange(float(count)).reshape(steps, columns),
        valid=torch.ones(steps, columns, dtype=torch.bool),
    )


def test_a_leaf_with_other_leading_dims_is_named() -> None:
    with pytest.raises(ValueError, match=r"'obs\.cam' has shape \(3, 5\).*\(3, 2\)"):
        Batch((3, 2), obs={"cam": torch.zeros(3, 5)})


def test_missing_fields_are_named_with_those_present() -> None:
    batch = make()
    with pytest.raises(AttributeError, match=r"no field 'log_prob'; it has obs, reward, valid"):
        _ = batch.log_prob
    with pytest.raises(KeyError, match="no field 'value'"):
        batch.require("reward", "value")
    with pytest.raises(KeyError, match="no field 'weight'"):
        batch["weight"]


def test_indexing_keeps_structure_and_leading_dims() -> None:
    batch = make()
    assert batch[0].shape == (2,)
    assert batch[1:, 0].shape == (2,)
    assert batch[:, 1].obs["a"].shape == (3, 4)
    assert batch[torch.tensor([2, 0])].shape == (2, 2)
    mask = torch.tensor([[True, False], [False, False], [True, True]])
    assert batch[mask].shape == (3,)
    assert batch[mask].reward.tolist() == [0.0, 4.0, 5.0]
    assert batch[1, 1].obs["b"][0].item() == 3
    assert batch[1, 1].shape == ()


def test_replace_shares_and_does_not_touch_the_original() -> None:
    batch = make()
    other = batch.replace(value=torch.zeros(3, 2))
    assert "value" in other and "value" not in batch
    assert other.reward is batch.reward
    assert set(other.without("value")) == set(batch)
    assert list(batch.select("reward")) == ["reward"]


def test_select_valid_drops_exactly_the_invalid_rows() -> None:
    batch = make()
    valid = torch.tensor([[True, False], [True, True], [False, True]])
    kept = batch.replace(valid=valid).select_valid()
    assert kept.shape == (4,)
    assert kept.reward.tolist() == [0.0, 2.0, 3.0, 5.0]
    assert kept.obs["b"][0].tolist() == [0, 2, 3, 5]
    assert batch.without("valid").select_valid().shape == (6,)


@given(count=st.integers(1, 70), size=st.integers(1, 80), epochs=st.integers(1, 3))
def test_minibatches_cover_every_row_once_an_epoch_in_even_parts(count: int, size: int, epochs: int) -> None:
    batch = Batch((count,), index=torch.arange(count))
    parts = list(batch.minibatches(size, epochs, torch.Generator().manual_seed(0)))
    per_epoch = -(-count // size)
    assert len(parts) == per_epoch * epochs
    for epoch in range(epochs):
        mine = parts[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(torch.cat([part.index for part in mine]).tolist()) == list(range(count))
        sizes = [len(part) for part in mine]
        assert max(sizes) <= size and max(sizes) - min(sizes) <= 1


def test_minibatches_repeat_with_the_generator() -> None:
    batch = Batch((10,), index=torch.arange(10))
    first, second = (
        [part.index.tolist() for part in batch.minibatches(4, 2, torch.Generator().manual_seed(7))]
        for _ in range(2)
    )
    assert first == second
    assert first[:3] != first[3:]


def test_sequences_are_time_major_and_padding_is_invalid() -> None:
    pieces = make(steps=5).sequences(2)
    assert pieces.shape == (2, 6)
    # column 0 of the rollout has rewards 0 2 4 6 8, column 1 has 1 3 5 7 9; pieces of two, column by column
    assert pieces.reward[:, :4].T.tolist() == [[0.0, 2.0], [1.0, 3.0], [4.0, 6.0], [5.0, 7.0]]
    assert pieces.valid[:, 4:].T.tolist() == [[True, False], [True, False]]
    assert pieces.reward[0, 4:].tolist() == [8.0, 9.0]


def test_stack_and_cat() -> None:
    batch = make()
    assert Batch.stack([batch, batch]).shape == (2, 3, 2)
    assert Batch.cat([batch, batch]).shape == (6, 2)
    assert Batch.cat([batch, batch], dim=1).obs["a"].shape == (3, 4, 4)
    with pytest.raises(ValueError, match="differ in fields: value"):
        Batch.cat([batch, batch.replace(value=torch.zeros(3, 2))])
    with pytest.raises(ValueError, match="no batches"):
        Batch.cat([])


def test_is_a_pytree_and_vmaps() -> None:
    doubled = pytree.tree_map(lambda leaf: leaf * 2, make().without("valid"))
    assert isinstance(doubled, Batch) and doubled.reward[2, 1] == 10
    total = torch.func.vmap(lambda row: row.reward + row.obs["a"].sum())(make()[:, 0])
    assert total.shape == (3,)


def test_tree_functions() -> None:
    tree = {"x": (1, 2), "y": {"z": 3}}
    assert tree_leaves(tree) == [1, 2, 3]
    assert tree_paths(tree) == [("x.0", 1), ("x.1", 2), ("y.z", 3)]
    assert tree_map(lambda a, b: a + b, tree, tree) == {"x": (2, 4), "y": {"z": 6}}
    assert tree_unflatten(tree, [7, 8, 9]) == {"x": (7, 8), "y": {"z": 9}}


def rollout(steps: int, ended: list[tuple[int, int]]) -> Rollout:
    rows = make(steps).replace(terminated=torch.zeros(steps, 2, dtype=torch.bool))
    last = Batch((2,), obs=rows.obs["a"][-1] + 1, is_first=torch.zeros(2, dtype=torch.bool))
    start = Batch((2,), is_first=torch.ones(2, dtype=torch.bool))
    index = torch.tensor(ended).reshape(-1, 2)
    ends = (
        Batch((len(ended),), t=index[:, 0], b=index[:, 1], obs=torch.zeros(len(ended), 4)) if ended else None
    )
    return Rollout(rows, start, last, ends)


def test_joined_rollouts_shift_their_ends_in_time() -> None:
    joined = Rollout.join([rollout(3, [(1, 0)]), rollout(2, []), rollout(4, [(0, 1), (3, 0)])])
    assert joined.T == 9 and joined.B == 2
    assert joined.ended is not None
    assert joined.ended.t.tolist() == [1, 5, 8]
    assert joined.ended.b.tolist() == [0, 1, 0]
    assert torch.equal(joined.last.obs, rollout(4, []).last.obs)


def test_a_clone_does_not_share_memory() -> None:
    original = rollout(2, [(0, 0)])
    copy = original.clone()
    original.rows.reward.fill_(-1)
    assert copy.rows.reward.tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_numpy_leaves_index_like_tensors() -> None:
    batch = Batch((4,), obs=np.arange(8).reshape(4, 2))
    assert batch[1:3].obs.tolist() == [[2, 3], [4, 5]]
