"""One episode, and few: what is learned from them, and what is said of estimates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.offline.episodes import keyed
from tests.offline.test_alignment import walks
from uniarena import Agent, train
from uniarena.data import DataConfig, load
from uniarena.run import evaluate_on_data


def config(path: Path, **learner: Any) -> dict[str, Any]:
    return {
        "learner": {"type": "bc", "batch_size": 8, **learner},
        "data": {"path": str(path)},
        "agent": {"policy": {"hidden_sizes": [4]}},
        "training": {"total_updates": 6, "save_interval": 3, "threads": 1},
    }


def weights(run: Path) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(Agent.load(run, trust=True).model.parameters())


def test_a_single_episode_is_learned_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = keyed(tmp_path / "one.npz", **{name: values[:10] for name, values in walks().items()})
    with caplog.at_level("WARNING", "uniarena"):
        train(config(path), run_dir=tmp_path / "run")
    early, late = (weights(tmp_path / "run" / "checkpoints" / name) for name in ("3", "6"))
    assert not torch.equal(early, late)
    assert "none of the 1 episode is held out" in caplog.text and "validation_share" in caplog.text


def test_few_episodes_are_said_to_tell_little(tmp_path: Path) -> None:
    path = keyed(tmp_path / "few.npz", **walks())
    train(config(path), run_dir=tmp_path / "run", quiet=True)
    settings = {"updates": 5, "members": 2, "hidden_sizes": [4]}
    report = evaluate_on_data(tmp_path / "run", path, ["fqe"], fqe=settings, trust=True)
    assert "the data has 3 episodes" in str(report.to_json())


def test_a_done_that_means_a_cut_off_is_read(tmp_path: Path) -> None:
    data = walks()
    data["dones"] = data.pop("timeouts") | data.pop("terminals")
    path = str(keyed(tmp_path / "dones.npz", **data))
    cut = load(DataConfig(path=path, keys={"truncated": "dones", "terminated": "none"}))
    assert not cut.terminated.any() and cut.lengths.tolist() == [10, 10, 10]
    unread = load(DataConfig(path=path, keys={"terminated": "none"}))
    assert any("There is dones, and it is not read" in note for note in unread.account.notes)


def test_actions_beyond_their_bounds_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = walks()
    data["actions"] = data["actions"] * 3.0
    path = keyed(tmp_path / "wide.npz", **data)
    told = config(path)
    told["data"]["action_bounds"] = [-1.0, 1.0]
    with caplog.at_level("WARNING", "uniarena"):
        train(told, run_dir=tmp_path / "run")
    assert "are beyond the bounds -1 to 1" in caplog.text and "They are clipped" in caplog.text
