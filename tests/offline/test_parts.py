"""Parts of a dataset by fixed rules, large files that are not read whole, and what tells data from other data."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.offline.episodes import ACTIONS, OBSERVATIONS, check_same, keyed, random_episodes, record
from uniarena.config import ConfigError, parse
from uniarena.data import DataConfig, DataError, Episode, Recorder, load
from uniarena.data.audit import audit
from uniarena.data.columns import ArrayColumn, Keeping, PartsColumn, SourceColumn, Store

BOX = OBSERVATIONS["vector"]


def with_returns(path: Path, returns: list[float]) -> str:
    """Episodes of two steps with these returns."""
    recorder = Recorder(BOX, ACTIONS["box"])
    for k, total in enumerate(returns):
        ends = np.array([False, True])
        obs = np.full((3, 3), k, np.float32)
        recorder.add(
            Episode(obs, np.zeros((2, 2), np.float32), np.array([0.0, total]), ends, ~ends & False, True)
        )
    return str(recorder.save(path))


def chosen(**options: object) -> list[int]:
    """Which episodes are left, by the number that their observations are."""
    data = load(DataConfig(**options))  # type: ignore[arg-type]
    return data.obs(data.rows.starts[:-1])[:, 0].astype(int).tolist()


def test_parts_by_place_return_and_share(tmp_path: Path) -> None:
    path = with_returns(tmp_path / "a.npz", [3.0, 9.0, 1.0, 9.0, 5.0, 7.0])
    assert chosen(path=path) == [0, 1, 2, 3, 4, 5]
    assert chosen(path=path, episodes=(1, 4)) == [1, 2, 3]
    assert chosen(path=path, min_return=5.0) == [1, 3, 4, 5]
    assert chosen(path=path, top_fraction=0.5) == [1, 3, 5]
    assert chosen(path=path, top_fraction=0.1) == [1]  # rounded up, and of equals the earlier one
    assert chosen(path=path, episodes=(0, 3), min_return=2.0, top_fraction=0.5) == [1]
    part = load(DataConfig(path=path, min_return=5.0))
    assert any("4 of 6 episodes" in note for note in part.account.notes)
    assert part.returns.tolist() == [9.0, 9.0, 5.0, 7.0] and len(part.episode_id) == 8
    with pytest.raises(DataError, match="no episode of 6 is left, whose returns are 1 to 9"):
        chosen(path=path, min_return=10.0)


def test_a_share_is_drawn_by_seed_alone(tmp_path: Path) -> None:
    path = with_returns(tmp_path / "a.npz", list(range(20)))
    drawn = {seed: chosen(path=path, fraction=0.3, seed=seed) for seed in range(4)}
    assert all(len(found) == 6 and found == sorted(found) for found in drawn.values())
    assert len({tuple(found) for found in drawn.values()}) > 1
    assert drawn[0] == chosen(path=path, fraction=0.3, seed=0)
    assert drawn[0] == [5, 6, 12, 13, 16, 18]  # for ever: a table of results says a seed and no list


def test_options_that_contradict_each_other() -> None:
    for options in (
        {"boundary": "fixed_length"},
        {"episode_length": 5},
        {"episodes": [3, 3]},
        {"fraction": 0},
        {"top_fraction": 1.5},
        {"formt": "npz"},
    ):
        with pytest.raises(ConfigError):
            parse(DataConfig, {"path": "x", **options}, "data")


def test_a_fingerprint_tells_files_and_parts_apart(tmp_path: Path) -> None:
    one = with_returns(tmp_path / "a.npz", [3.0, 9.0])
    other = with_returns(tmp_path / "b.npz", [3.0, 8.0])
    same = Path(one).rename(tmp_path / "c.npz")
    first, second = load(same).fingerprint, load(other).fingerprint
    assert first["sha256"] != second["sha256"] and first["rows"] == second["rows"]
    part = load(DataConfig(path=str(same), episodes=(0, 1))).fingerprint
    assert part["sha256"] == first["sha256"] and part["rows"] != first["rows"]
    assert load(same).fingerprint == first


def sparse(path: Path, steps: int) -> Path:
    """A recording whose observations are a hole in the file: it is far larger than what it takes on the disk."""
    recorder = Recorder(BOX, ACTIONS["discrete"])
    terminated = np.arange(steps) == steps - 1
    obs = np.broadcast_to(np.float32(0), (steps + 1, 3))
    actions = np.zeros(steps, np.int64)
    recorder.add(Episode(obs, actions, np.ones(steps), terminated, np.zeros(steps, bool), True))
    return recorder.save(path)


@pytest.mark.extra("offline")
def test_a_large_hdf5_file_is_opened_and_looked_at_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import h5py

    steps, width = 40_000, 1_000
    with h5py.File(tmp_path / "a.hdf5", "w") as file:  # 160 MB of holes
        file.create_dataset("observations", (steps, width), np.float32)
        for name in ("actions", "rewards", "terminals", "timeouts"):
            file.create_dataset(name, (steps,), np.float32)
            file[name][-1] = 0.0  # what was never written at all is refused
        file["timeouts"][999::1000] = 1.0
        file["observations"][-1] = 1.0
    monkeypatch.setattr("uniarena.data.audit.BUDGET", 4_000_000)
    monkeypatch.setattr("uniarena.data.dataset.WHOLE", 1_000_000)
    tracemalloc.start()
    found = audit(load(DataConfig(path=str(tmp_path / "a.hdf5"), memory_gb=0.01), lazy=True))
    data = load(DataConfig(path=str(tmp_path / "a.hdf5"), memory_gb=0.01, nonfinite="drop"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 120e6
    assert (found["transitions"], found["dropped"], found["truncated"]) == (39_960, 40, 40)
    assert found["looked_at"] < 2_000 and any("spread evenly" in warning for warning in found["warnings"])
    assert data.resident and isinstance(data.source.obs.array, np.memmap)
    assert data.obs(np.array([0, 39_959]))[:, 0].tolist() == [0.0, 0.0]
    assert data.next_obs(np.array([39_959]))[0, 0] == 1.0
    assert data.fingerprint["bytes"] > 160e6


def test_a_large_recording_is_mapped(tmp_path: Path) -> None:
    path = sparse(tmp_path / "a.npz", 5_000)
    data = load(DataConfig(path=str(path), memory_gb=0))
    assert isinstance(data.source.obs.array, np.memmap)
    assert Path(data.source.obs.array.filename) == path
    assert len(data) == 5_000


def test_a_compressed_archive_is_unpacked_into_a_file_that_goes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    observed, acted = OBSERVATIONS["vector"], ACTIONS["box"]
    episodes = random_episodes(rng, observed, acted, 4)
    path = record(tmp_path / "a.npz", episodes, observed, acted)
    with np.load(path, allow_pickle=False) as found:
        np.savez_compressed(tmp_path / "b.npz", **found)
    data = load(DataConfig(path=str(tmp_path / "b.npz"), memory_gb=0, memory_map=str(tmp_path / "spill")))
    assert any((tmp_path / "spill").iterdir())
    check_same(data, episodes)
    del data
    assert not any((tmp_path / "spill").iterdir())


@pytest.mark.parametrize("limit", [0, 10**9])
def test_columns_of_every_kind_give_the_same_rows(limit: int) -> None:
    rng = np.random.default_rng(0)
    array = rng.normal(size=(500, 2)).astype(np.float32)
    store = Store(Keeping(limit), (2,), np.float32)
    for part in np.array_split(array, 7):
        store.append(part)
    kinds = [
        ArrayColumn(array),
        SourceColumn(array.shape, array.dtype, lambda start, stop: array[start:stop]),
        PartsColumn([ArrayColumn(part) for part in np.array_split(array, [0, 3, 3, 200])]),
        store.finish(),
    ]
    rows = rng.integers(0, 500, 300)
    for column in kinds:
        np.testing.assert_array_equal(column.all(), array)
        np.testing.assert_array_equal(column.take(rows), array[rows])
        np.testing.assert_array_equal(column.read(2, 201), array[2:201])
        np.testing.assert_array_equal(np.concatenate([rows for _, rows in column.blocks()]), array)
        assert column.take(rows[:0]).shape == (0, 2)


def test_an_unordered_npz_of_columns_in_fortran_order(tmp_path: Path) -> None:
    obs = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(6, 2))
    path = keyed(
        tmp_path / "a.npz",
        observations=obs,
        actions=np.zeros((6, 1), np.float32),
        rewards=np.ones(6),
        terminals=np.arange(6) == 5,
        timeouts=np.zeros(6),
    )
    np.testing.assert_array_equal(load(path).obs(np.arange(6)), obs)


def test_an_episode_that_was_cut_into_pieces_is_one(tmp_path: Path) -> None:
    """Two steps of the best of four episodes are no numbers, and are dropped."""
    draw, count = np.random.default_rng(0), 40
    obs = np.cumsum(draw.normal(size=(count, 3)), 0)
    following = np.vstack([obs[1:], obs[:1]])
    following[9::10] += 0.1
    for step in (3, 6):
        obs[step] = following[step - 1] = np.nan
    path = tmp_path / "cut.npz"
    np.savez(
        path,
        observations=obs,
        actions=draw.uniform(-1, 1, (count, 1)),
        rewards=np.repeat([0.4, 0.3, 0.2, 0.1], 10),
        terminals=np.arange(count) % 10 == 9,
        timeouts=np.zeros(count, bool),
        next_observations=following,
    )
    whole = load(DataConfig(path=str(path), nonfinite="drop"))
    assert len(set(whole.rows.found.tolist())) == 4 < whole.episodes
    best = load(DataConfig(path=str(path), nonfinite="drop", top_fraction=0.25))
    assert set(best.rows.found.tolist()) == {0} and len(best) == len(whole) - 30
    half = load(DataConfig(path=str(path), nonfinite="drop", top_fraction=0.5))
    assert set(half.rows.found.tolist()) == {0, 1} and len(half) == len(whole) - 20
    assert len(set(load(DataConfig(path=str(path), nonfinite="drop", fraction=0.5)).rows.found.tolist())) == 2
