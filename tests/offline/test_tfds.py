"""A dataset that TFDS itself wrote (tensorflow-datasets 4.9.10, kept in the folder `tfds`), read without it.

Three episodes of 3, 6 and 2 steps; in episode k step i has pos 10·k + i, u8 and n i, img 3·i, action 0.1·i, reward i;
the second one is cut off, the others are terminal. TFDS shuffled them when it wrote them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from uniarena.data import load

FOLDER = Path(__file__).parent / "tfds"


@pytest.mark.extra("offline")
def test_what_tfds_wrote_is_read() -> None:
    data = load(FOLDER)
    assert sorted(data.lengths.tolist()) == [1, 2, 5]
    for episode in data:
        steps = len(episode.reward)
        number, count = int(episode.obs["pos"][0, 0]) // 10, np.arange(steps + 1)
        np.testing.assert_array_equal(episode.obs["pos"], np.repeat(10 * number + count[:, None], 3, axis=1))
        assert episode.obs["u8"].dtype == np.uint8 and episode.obs["u8"].shape == (steps + 1, 2, 2)
        assert episode.obs["u8"][:, 0, 0].tolist() == count.tolist() == episode.obs["n"].tolist()
        assert episode.obs["img"].shape == (steps + 1, 8, 8, 3)  # stored as PNG
        assert episode.obs["img"][:, 4, 4, 1].tolist() == (3 * count).tolist()
        np.testing.assert_allclose(episode.action, 0.1 * np.repeat(count[:-1, None], 2, axis=1), rtol=1e-6)
        assert episode.reward.tolist() == count[:-1].tolist()
        assert episode.terminated.tolist() == [False] * (steps - 1) + [number != 1]
        assert episode.truncated.tolist() == [False] * (steps - 1) + [number == 1]
    assert data.source.origin["name"] == "my" and not data.account.dropped
