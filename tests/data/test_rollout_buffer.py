"""The rollout buffer fills up to a train batch, copies what must wait, and survives a save."""

import pytest
import torch

from tests.data.test_batch import rollout
from uniarena.buffers.rollout import RolloutBuffer, RolloutBufferConfig


def test_every_rollout_is_a_batch_by_default_and_is_not_copied() -> None:
    buffer = RolloutBuffer(RolloutBufferConfig())
    part = rollout(3, [])
    assert not buffer.ready
    buffer.add(part)
    assert buffer.ready
    assert buffer.sample().rows.reward.data_ptr() == part.rows.reward.data_ptr()
    assert not buffer.ready
    with pytest.raises(RuntimeError, match="empty"):
        buffer.sample()


def test_gathers_until_the_train_batch_is_full_and_copies_what_waits() -> None:
    buffer = RolloutBuffer(RolloutBufferConfig(train_batch_size=10))
    first = rollout(3, [(2, 1)])
    buffer.add(first)
    assert not buffer.ready and buffer.size == 6
    first.rows.reward.fill_(-1)  # the sampler writes the next chunk into the same memory
    buffer.add(rollout(2, [(0, 0)]))
    assert buffer.ready
    joined = buffer.sample()
    assert joined.rows.reward.flatten().tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert joined.ended is not None and joined.ended.t.tolist() == [2, 3]


def test_invalid_rows_do_not_fill_the_batch() -> None:
    buffer = RolloutBuffer(RolloutBufferConfig(train_batch_size=6))
    part = rollout(3, [])
    part.rows.valid[1] = False
    buffer.add(part)
    assert buffer.size == 4 and not buffer.ready


def test_a_half_full_buffer_survives_a_save() -> None:
    buffer = RolloutBuffer(RolloutBufferConfig(train_batch_size=10))
    buffer.add(rollout(3, [(2, 1)]))
    other = RolloutBuffer(RolloutBufferConfig(train_batch_size=10))
    other.load_state_dict(buffer.state_dict())
    for each in (buffer, other):
        each.add(rollout(2, []))
    a, b = buffer.sample(), other.sample()
    assert torch.equal(a.rows.reward, b.rows.reward) and torch.equal(a.rows.obs["a"], b.rows.obs["a"])
    assert torch.equal(a.ended.t, b.ended.t)  # type: ignore[union-attr]
