"""Chunks of few rows are stored number by number: the same as by arrays, whatever ends or breaks off in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffers.streams import MODES, Stream
from tests.buffers.test_oracle import make_spec
from uniarena.buffers import ring as rings
from uniarena.buffers.chunk import ChunkReader, flags_of, flags_of_few
from uniarena.buffers.flags import FINAL, OK
from uniarena.buffers.gather import gather
from uniarena.buffers.ring import Ring


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), columns=st.integers(1, 3), steps=st.integers(1, 4))
def test_the_ring_is_the_same(mode: str, seed: int, columns: int, steps: int) -> None:
    stream = Stream(seed, columns, mode)
    spec = make_spec(stream)
    few, many = Ring(spec, 20 * columns), Ring(spec, 20 * columns)
    for _ in range(15):  # around the ring more than once
        rollout = stream.rollout(steps)
        few.add(rollout)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rings, "FEW", 0)
            many.add(rollout)
        assert (few.cursor, few.size) == (many.cursor, many.size)
        assert few.flags.tolist() == many.flags.tolist()
        places = np.flatnonzero(few.flags & OK)
        if len(places):
            found = [gather(each, places, each.flags[places]) for each in (few, many)]
            for one, other in zip(*found, strict=True):
                for a, b in zip(one, other, strict=True):
                    np.testing.assert_array_equal(a, b)
            assert few.reward[places].tolist() == many.reward[places].tolist()


@pytest.mark.parametrize("mode", MODES)
def test_flags_by_hand_are_those_of_arrays(mode: str) -> None:
    stream = Stream(3, 2, mode)
    reader = ChunkReader(Ring(make_spec(stream), 10).layout)
    seen = 0
    for _ in range(60):
        chunk = reader.read(stream.rollout(3))
        if not chunk.valid.all():
            continue
        seen += 1
        t, b = ([], []) if chunk.ends is None else (chunk.ends[0].tolist(), chunk.ends[1].tolist())
        first = [*chunk.first.tolist(), chunk.last_first.tolist()]
        listed = set(zip(t, b, strict=True))
        found = flags_of_few(chunk.terminated.tolist(), chunk.truncated.tolist(), first, listed)
        expected = flags_of(chunk)
        expected[t, b] |= FINAL
        assert found == expected.tolist()
    assert seen > 5
