"""Episodes that have no transition are counted, and flags of RLDS that contradict each other are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.offline.episodes import ACTIONS, OBSERVATIONS, random_episodes, record
from tests.offline.test_broken import episode
from uniarena.data import DataError, Episode, load, records
from uniarena.data.convert import convert

OFFLINE = pytest.mark.extra("offline")


@OFFLINE
def test_rlds_episodes_of_a_single_step_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    records.write_tf_records(path, [episode(1), episode(3), episode(0), episode(1)])
    notes = load(path).account.notes
    assert "2 episodes have a single step, which makes no transition: left out." in notes
    assert "1 episode without any step was left out." in notes
    records.write_tf_records(path, [episode(1), episode(3)])
    assert "1 episode has a single step, which makes no transition: left out." in load(path).account.notes
    records.write_tf_records(path, [episode(1)] * 3)
    with pytest.raises(DataError, match="holds no transition: 3 episodes have a single step") as error:
        load(path)
    assert "T transitions as T + 1 steps" in error.value.hint


@OFFLINE
def test_minari_episodes_without_an_action_are_counted(tmp_path: Path) -> None:
    import h5py

    observed, acted = OBSERVATIONS["vector"], ACTIONS["box"]
    episodes = random_episodes(np.random.default_rng(0), observed, acted, 3)
    data = load(record(tmp_path / "a.npz", episodes, observed, acted))
    convert(data, tmp_path / "toy-v0", "minari")

    def emptied(*numbers: int) -> None:
        with h5py.File(tmp_path / "toy-v0" / "data" / "main_data.hdf5", "a") as file:
            for number in numbers:
                group = file[f"episode_{number}"]
                for name in list(group):
                    kept = group[name][: int(name == "observations")]
                    del group[name]
                    group[name] = kept

    emptied(1)
    again = load(tmp_path / "toy-v0")
    said = "1 episode has one observation and no action, which makes no transition: left out."
    assert again.lengths.tolist() == [len(episodes[0].reward), len(episodes[2].reward)]
    assert said in again.account.notes
    emptied(0, 2)
    with pytest.raises(
        DataError, match="no transition: 3 episodes have one observation and no action"
    ) as error:
        load(tmp_path / "toy-v0")
    assert error.value.hint


def test_a_recording_of_no_steps(tmp_path: Path) -> None:
    whole = random_episodes(np.random.default_rng(0), OBSERVATIONS["vector"], ACTIONS["box"], 1)[0]
    none = Episode(whole.obs[:1], whole.action[:0], *(part[:0] for part in whole[2:5]), True)
    path = record(tmp_path / "a.npz", [none, whole], OBSERVATIONS["vector"], ACTIONS["box"])
    assert "1 episode has no step, which makes no transition: left out." in load(path).account.notes
    path = record(tmp_path / "b.npz", [none, none], OBSERVATIONS["vector"], ACTIONS["box"])
    with pytest.raises(DataError, match="holds no transition: 2 episodes have no step") as error:
        load(path)
    assert error.value.hint


END = np.arange(4) == 3


@OFFLINE
@pytest.mark.parametrize(
    ("flags", "said", "terminated"),
    [
        (
            {"is_terminal": END, "is_last": np.zeros(4, bool)},
            "2 episodes end in a step that is_terminal and not is_last: read as terminated.",
            2,
        ),
        (
            {"is_first": np.zeros(4, bool)},
            "is_first is false on the first step of 2 episodes: every record is read as an episode all the same.",
            0,
        ),
        (
            {"discount": 1.0 - END},
            "2 episodes end with discount 0 and without is_terminal, which decides: read as truncated",
            0,
        ),
        (
            {"discount": np.float32([1, 1, 0, 1])},
            "2 episodes end with discount 0 and without is_terminal, which decides: read as truncated",
            0,
        ),
    ],
)
def test_flags_of_rlds_that_contradict_each_other(
    tmp_path: Path, flags: dict[str, Any], said: str, terminated: int
) -> None:
    path = tmp_path / "a.tfrecord"
    records.write_tf_records(path, [episode(**flags), episode(), episode(**flags), episode(1)])
    data = load(path)
    assert int(data.terminated.sum()) == terminated and int(data.truncated.sum()) == 3 - terminated
    assert any(note.startswith(said) for note in data.account.notes)


@OFFLINE
@pytest.mark.parametrize(
    "flags",
    [
        {"discount": 1.0 - END, "is_terminal": END},
        {"discount": np.ones(4, np.float32)},
        {"discount": np.ones(2, np.float32)},
        {"discount": np.float32([0, 1, 1, 1])},
        {"discount": [b"0"] * 4},
    ],
)
def test_flags_that_agree_are_not_told(tmp_path: Path, flags: dict[str, Any]) -> None:
    path = tmp_path / "a.tfrecord"
    records.write_tf_records(path, [episode(**flags)])
    assert len(load(path).account.notes) == 2  # of shapes and bounds that the file does not say
