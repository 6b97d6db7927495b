"""Sequences lie in one episode, begin where they should, and say what is padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.buffers.rollouts import generator, line, spec
from tests.buffers.streams import MODES, Stream
from tests.buffers.test_oracle import make_spec
from uniarena.batch import Batch
from uniarena.buffers.her import HindsightConfig
from uniarena.buffers.sequence import SequenceConfig, SequenceReplay
from uniarena.config import ConfigError


def sequences(capacity: int, length: int, burn_in: int, columns: int = 1, **more: Any) -> SequenceReplay:
    return SequenceReplay(
        SequenceConfig(capacity=capacity, length=length, burn_in=burn_in), spec(columns, **more)
    )


def test_a_sequence_is_padded_before_the_start_and_after_the_end() -> None:
    buffer = sequences(100, length=3, burn_in=2)
    finals = {3: 4.0}
    buffer.add(line([0, 1, 2, 3, 10, 11], 12.0, first=[0, 4], truncated=[3], finals=finals))
    batch = buffer.sample(generator(), 200)
    assert batch.shape == (5, 200) and batch.obs.shape == (5, 200, 1)
    found = {}
    for i in range(200):
        found[int(batch.obs[2, i])] = [
            tuple(batch[name][:, i].flatten().tolist()) for name in ("obs", "valid", "is_first", "next_obs")
        ]
    assert found[0] == [
        (0, 0, 0, 1, 2), (False, False, True, True, True), (True, True, True, False, False), (1, 1, 1, 2, 3),
    ]  # fmt: skip
    assert found[2] == [
        (0, 1, 2, 3, 3), (True, True, True, True, False), (True, False, False, False, False), (1, 2, 3, 4, 4),
    ]  # fmt: skip
    assert found[11][0] == (10, 10, 11, 11, 11) and found[11][1] == (False, True, True, False, False)
    assert found[11][3] == (11, 11, 12, 12, 12)
    assert set(found) == {0, 1, 2, 3, 10, 11}
    weight = batch.weight
    assert (weight[:2] == 0).all() and torch.equal(weight[2:], batch.valid[2:].float())
    last = batch.obs[:, :, 0] == 3
    assert batch.truncated[last].all() and (batch.discount == 0.9).all() and not batch.terminated.any()


def test_sequences_end_at_the_newest_row_and_begin_after_the_oldest() -> None:
    buffer = sequences(6, length=4, burn_in=4)
    buffer.add(line(range(20), 20.0, first=[0]))
    batch = buffer.sample(generator(), 300)
    real = batch.obs[:, :, 0][batch.valid]
    assert real.min() == 14 and real.max() == 19
    first = batch.obs[4, :, 0]
    assert set(first.tolist()) == set(range(14, 20))
    assert torch.equal(
        batch.valid.sum(0),
        torch.minimum(first - 14, torch.tensor(4.0)) + torch.minimum(20 - first, torch.tensor(4.0)),
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("frames", [1, 3])
def test_real_rows_follow_each_other(mode: str, frames: int) -> None:
    stream = Stream(3, 3, mode, frames)
    cfg = SequenceConfig(capacity=90, length=5, burn_in=3)
    buffer = SequenceReplay(cfg, make_spec(stream))
    for _ in range(40):
        buffer.add(stream.rollout(2))
        if not buffer.ready:
            continue
        batch: Batch = buffer.sample(generator(), 50)
        assert batch.valid[3].all()
        for t in range(7):
            both = batch.valid[t] & batch.valid[t + 1]
            assert torch.equal(batch.index[t + 1][both], batch.index[t][both] + 3)
            for name, leaf in batch.next_obs.items():
                assert torch.equal(leaf[t][both], batch.obs[name][t + 1][both])
            assert not batch.is_first[t + 1][both].any()
            ended = batch.valid[t] & (batch.terminated[t] | batch.truncated[t])
            assert not (ended & batch.valid[t + 1]).any()


def test_the_recurrent_state_of_every_row_is_an_extra_field() -> None:
    box = spec().observation_space
    buffer = sequences(50, length=2, burn_in=1, extra={"state": box})
    part = line(range(6), 6.0, first=[0])
    rows = part.rows.replace(state=part.rows.obs * 10)
    buffer.add(type(part)(rows, part.start, part.last))
    batch = buffer.sample(generator())
    assert torch.equal(batch.state, batch.obs * 10)


def test_hindsight_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be relabelled"):
        SequenceReplay(SequenceConfig(capacity=10, her=HindsightConfig()), spec())
