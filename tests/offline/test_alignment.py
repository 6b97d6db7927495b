"""Data whose next observations or flags stand a row off: refused where that is certain, said where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.offline.episodes import keyed
from uniarena import train
from uniarena.data import DataConfig, DataError, load
from uniarena.data.rows import NEXT

FORMS = [pytest.param(".npz"), pytest.param(".hdf5", marks=pytest.mark.extra("offline"))]
SHIFTED = {  # how next observations are read → what the error says they are
    "not moved on": (lambda data: data["observations"], "that row's own observation"),
    "late by one": (lambda data: np.roll(data["next_observations"], 1, 0), "that row's own observation"),
    "early by one": (lambda data: np.roll(data["next_observations"], -1, 0), "the observation two rows on"),
    "late by two": (
        lambda data: np.roll(data["next_observations"], 2, 0),
        "the observation of the row before",
    ),
}


def walks(lengths: tuple[int, ...] = (10, 10, 10), seed: int = 0) -> dict[str, Any]:
    """Random walks that each begin far from where the one before ended; the second is cut off, the others end."""
    rng = np.random.default_rng(seed)
    paths = [np.cumsum(rng.normal(size=(n + 1, 3)), 0) + 100 * k for k, n in enumerate(lengths)]
    steps, last = sum(lengths), np.cumsum(lengths) - 1
    ends, cut = np.zeros(steps, bool), np.zeros(steps, bool)
    ends[np.delete(last, 1)], cut[last[1]] = True, True
    return {
        "observations": np.concatenate([path[:-1] for path in paths]).astype(np.float32),
        "next_observations": np.concatenate([path[1:] for path in paths]).astype(np.float32),
        "actions": rng.uniform(-1, 1, (steps, 1)).astype(np.float32),
        "rewards": np.ones(steps, np.float32),
        "terminals": ends,
        "timeouts": cut,
    }


@pytest.mark.parametrize("suffix", FORMS)
@pytest.mark.parametrize("how", SHIFTED)
def test_next_observations_of_another_row_are_refused(tmp_path: Path, how: str, suffix: str) -> None:
    data = walks()
    shifted, said = SHIFTED[how]
    path = keyed(tmp_path / f"data{suffix}", **{**data, "next_observations": shifted(data)})
    with pytest.raises(DataError, match=said) as told:
        load(path)
    assert "misaligned" in str(told.value) and told.value.hint is not None
    without = load(DataConfig(path=str(path), keys={"next_obs": "none"}))  # the way out that it names
    assert without.account.lengths.tolist() == [10, 10, 10]


def test_next_observations_without_an_order_are_single_transitions(tmp_path: Path) -> None:
    data = walks()
    order = np.random.default_rng(3).permutation(30)
    path = keyed(tmp_path / "data.npz", **{name: values[order] for name, values in data.items()})
    loaded = load(path)
    assert len(loaded) >= 29 and any(
        "single transitions without order" in note for note in loaded.account.notes
    )


@pytest.mark.parametrize("order", ["taking turns", "backwards"])
def test_rows_in_another_order_are_no_shift(tmp_path: Path, order: str) -> None:
    """Two environments row by row, or the last row first: next observations are two rows on, or in the row before."""
    data = walks((10, 10, 10, 10))
    places = np.arange(40).reshape(2, 20).T.ravel() if order == "taking turns" else np.arange(40)[::-1]
    path = keyed(tmp_path / "data.npz", **{name: values[places] for name, values in data.items()})
    loaded = load(path)
    assert len(loaded) == 40 and any("environments take turns" in note for note in loaded.account.notes)
    index = np.arange(40)
    assert np.array_equal(loaded.next_obs(index), data["next_observations"][places])


def test_images_that_did_not_move_on_are_refused(tmp_path: Path) -> None:
    data = walks()
    images = np.random.default_rng(0).integers(0, 256, (30, 5, 5), dtype=np.uint8)
    with pytest.raises(DataError, match="that row's own observation"):
        load(keyed(tmp_path / "data.npz", **{**data, "observations": images, "next_observations": images}))


def test_whole_numbers_may_be_equal_by_chance(tmp_path: Path) -> None:
    data = walks()
    still = np.random.default_rng(0).integers(0, 40, 30)  # an agent that never moves, in no order
    path = keyed(tmp_path / "data.npz", **{**data, "observations": still, "next_observations": still})
    loaded = load(path)
    assert len(loaded) > 20 and any("may be chance" in note for note in loaded.account.notes)


@pytest.mark.parametrize("moved", [1, -1])
def test_flags_of_another_row_are_refused(tmp_path: Path, moved: int) -> None:
    data = walks((10, 10, 10, 10))
    flags = {name: np.roll(data[name], moved) for name in ("terminals", "timeouts")}
    with pytest.raises(DataError, match=f"one row {'late' if moved > 0 else 'early'}") as told:
        load(keyed(tmp_path / "data.npz", **{**data, **flags}))
    assert "next_obs: none" in told.value.hint


@pytest.mark.parametrize("moved", [1, -1])
def test_flags_beside_jumps_are_told(tmp_path: Path, moved: int) -> None:
    data = walks((10, 12, 9, 11, 10))
    del data["next_observations"]
    assert not any("flags seem" in note for note in load(keyed(tmp_path / "a.npz", **data)).account.notes)
    flags = {name: np.roll(data[name], moved) for name in ("terminals", "timeouts")}
    notes = load(keyed(tmp_path / "b.npz", **{**data, **flags})).account.notes
    assert any(f"seem to be one row {'late' if moved > 0 else 'early'}" in note for note in notes)


def test_flags_that_fit_are_taken(tmp_path: Path) -> None:
    """Also episodes of one step, and ends after which the next episode begins where this one ended."""
    data = walks((1, 1, 6, 1, 1, 7))
    assert load(keyed(tmp_path / "short.npz", **data)).account.lengths.tolist() == [1, 1, 6, 1, 1, 7]
    ring = np.arange(41, dtype=np.float32)[:, None]
    ends = np.arange(40) % 10 == 9
    data = {
        "observations": ring[:-1],
        "next_observations": ring[1:],
        "actions": ring[:-1],
        "rewards": np.ones(40),
        "terminals": ends,
    }
    assert load(keyed(tmp_path / "ring.npz", **data)).account.lengths.tolist() == [10, 10, 10, 10]


def test_jumps_that_no_flag_tells_are_said(tmp_path: Path) -> None:
    data = walks((20, 20, 20))
    del data["next_observations"]
    data["timeouts"][:] = False  # the flag is there, and forgotten
    notes = load(keyed(tmp_path / "data.npz", **data)).account.notes
    assert any(note.startswith("In 1 of the rows looked at the observation changes") for note in notes)
    found = load(DataConfig(path=str(tmp_path / "data.npz"), boundary="jump", jump=20.0))
    assert found.account.lengths.tolist() == [20, 20, 20]


@pytest.mark.parametrize(("here", "there"), [("float16", "float64"), ("float64", "float16")])
def test_rounding_is_no_break(tmp_path: Path, here: str, there: str) -> None:
    data = walks()
    exact = {name: data[name].astype(np.float64) / 7 for name in ("observations", "next_observations")}
    kept = {
        "observations": exact["observations"].astype(here),
        "next_observations": exact["next_observations"].astype(there),
    }
    loaded = load(keyed(tmp_path / "data.npz", **{**data, **kept}))
    assert loaded.lengths.tolist() == [10, 10, 10] and not loaded.account.dropped


def test_a_length_against_the_flags_is_told(tmp_path: Path) -> None:
    path = keyed(tmp_path / "data.npz", **walks())
    loaded = load(DataConfig(path=str(path), boundary="fixed_length", episode_length=7))
    assert any("fixed_length cuts 3 episodes" in note for note in loaded.account.notes)
    assert loaded.account.dropped == {NEXT: 3}


def test_a_run_tells_what_was_left_out_and_concluded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = walks()
    del data["next_observations"], data["timeouts"]
    path = keyed(tmp_path / "data.npz", **data)
    config = {
        "learner": {"type": "bc", "batch_size": 4},
        "data": {"path": str(path)},
        "agent": {"policy": {"hidden_sizes": [4]}},
        "training": {"total_updates": 2, "threads": 1},
    }
    with caplog.at_level("WARNING", "uniarena"):
        train(config, run_dir=tmp_path / "run")
    assert "1 of 30 steps is no transition (1: jump of the observation)" in caplog.text
    assert "no timeouts and no next observations" in caplog.text
