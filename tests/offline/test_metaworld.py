"""Demonstrations by scripted experts, where Meta-World is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.metaworld_experts import expert_of, record
from uniarena.data import load


@pytest.mark.extra("metaworld")
@pytest.mark.filterwarnings("ignore")  # Gymnasium's and Meta-World's own, of spaces and constants
def test_scripted_experts_become_data(tmp_path: Path) -> None:
    path, share = record("reach-v3", 1, 0.0, 3, tmp_path / "reach.npz")
    data = load(path)
    assert share == 1.0 and data.episodes == 1 and len(data) == 500
    assert not data.account.dropped and path.with_suffix(".md").is_file()
    rows = np.arange(len(data) - 1)
    assert np.array_equal(data.next_obs(rows), data.obs(rows + 1))
    with pytest.raises(SystemExit, match="no scripted policy"):
        expert_of("juggle-v3")
