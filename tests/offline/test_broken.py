"""Files that are damaged, incomplete or say two things at once: each gets a sentence of its own."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.offline.episodes import ACTIONS, OBSERVATIONS, keyed, random_episodes, record
from uniarena.data import DataConfig, DataError, load, records
from uniarena.data.convert import convert

OFFLINE = pytest.mark.extra("offline")
N = 12


def arrays(**other: Any) -> dict[str, Any]:
    """Twelve whole steps, with some arrays exchanged; None leaves one out."""
    obs = np.arange(N * 2, dtype=np.float32).reshape(N, 2)
    found: dict[str, Any] = {
        "observations": obs,
        "next_observations": obs + 2,
        "actions": np.zeros((N, 1), np.float32),
        "rewards": np.ones(N),
        "terminals": np.arange(N) == 5,
        "timeouts": np.arange(N) == N - 1,
    }
    return {name: array for name, array in {**found, **other}.items() if array is not None}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"observations": None, "observation_s": np.zeros((N, 2))}, r"did you mean 'observation_s'"),
        ({"rewards": None}, "reward"),
        ({"terminals": None}, "would be the terminated of each step"),
        (
            {"terminals": None, "timeouts": None, "dones": np.zeros(N)},
            "not whether its future was worth nothing",
        ),
        (
            {"observations": np.zeros((N - 1, 2))},
            "misaligned: observations has 11 rows, and rewards make 12 steps",
        ),
        ({"observations": np.zeros((N + 1, 2))}, "one observation more than steps"),
        ({"terminals": np.zeros(N + 2)}, "misaligned: the key terminals has 14 rows"),
        ({"observations": np.array(["a"] * N)}, "strings where numbers belong"),
        ({"rewards": np.array(["1"] * N)}, "strings where numbers belong"),
        ({"observations": np.zeros((N, 2), complex)}, "complex numbers where numbers belong"),
        ({"rewards": np.ones((N, 2))}, "expected one number a step"),
        ({"terminals": np.full(N, 2)}, "expected true or false"),
        (
            {"rewards": np.where(np.arange(N) == 3, np.nan, 1.0)},
            "rewards has 1 row with NaN .* first at row 3",
        ),
        (
            {"rewards": np.where(np.arange(N) == 3, -1e300, 1.0)},
            r"rewards has 1 row with values too large for float32, the largest -1e\+300, the first at row 3",
        ),
        (
            {"observations": np.where(np.arange(2 * N) < 6, 1e300, 1.0).reshape(N, 2)},
            r"observations has 3 rows with values too large for float32, the largest 1e\+300, the first at row 0",
        ),
        (
            {"next_observations": np.where(np.arange(2 * N) < 6, 1e300, np.nan).reshape(N, 2)},
            "observations has 9 rows with NaN or infinite values, the first at row 3",
        ),
        (
            {"next_observations": np.zeros((N, 3))},
            r"next_observations: has rows of shape \(3,\); the observations before them are Box\(2\)",
        ),
        ({"actions": np.full((N, 1), np.inf)}, "actions has 12 rows with NaN or infinite"),
        ({"actions": np.full(N, -1)}, "holds the action -1"),
        ({"actions": np.arange(N) + 10**12}, "actions: row 11 holds the class 1000000000011, and without"),
        ({"actions": np.full(N, 2**63, np.uint64)}, "row 0 holds the class 9223372036854775808"),
    ],
)
def test_what_is_wrong_with_arrays_is_named(tmp_path: Path, other: dict[str, Any], said: str) -> None:
    path = keyed(tmp_path / "a.npz", **arrays(**other))
    with pytest.raises(DataError, match=said) as error:
        load(path)
    assert str(path) in str(error.value)


def test_the_whole_ones_are_read(tmp_path: Path) -> None:
    assert len(load(keyed(tmp_path / "a.npz", **arrays()))) == N


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays(observations=np.array([[1, 2], [1]] * (N // 2), object)))
    with pytest.raises(DataError, match="objects, which could run code"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_an_archive_that_is_cut_short(tmp_path: Path, keep: float) -> None:
    path = keyed(tmp_path / "a.npz", **arrays())
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(DataError):
        load(DataConfig(path=str(path), format="npz"))


def test_a_byte_that_was_changed_in_an_archive(tmp_path: Path) -> None:
    observed, acted = OBSERVATIONS["vector"], ACTIONS["box"]
    path = record(
        tmp_path / "a.npz", random_episodes(np.random.default_rng(0), observed, acted, 2), observed, acted
    )
    data = bytearray(path.read_bytes())
    at = data.index(b"action.npy") + 200
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        load(path)


def test_an_array_that_promises_more_than_there_is(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays())
    data = path.read_bytes().replace(b"(12, 2), }          ", b"(99999999999, 2), } ")
    assert b"99999999999" in data
    path.write_bytes(data)
    for limit in (None, 0.0):
        with pytest.raises(DataError, match=r"promises|damaged"):
            load(DataConfig(path=str(path), memory_gb=limit))


def test_what_no_format_is(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"hello")
    (tmp_path / "empty").mkdir()
    for name, said in (("a.bin", "neither HDF5"), ("empty", "a folder without"), ("none", "no such file")):
        with pytest.raises(DataError, match=said):
            load(tmp_path / name)


def test_keys_that_are_none(tmp_path: Path) -> None:
    path = str(keyed(tmp_path / "a.npz", **arrays()))
    with pytest.raises(DataError, match="no fields of a step"):
        load(DataConfig(path=path, keys={"speed": "x"}))
    with pytest.raises(DataError, match="nothing here is called x"):
        load(DataConfig(path=path, keys={"obs": "x"}))


def test_nothing_terminates_only_where_that_is_said(tmp_path: Path) -> None:
    path = str(keyed(tmp_path / "a.npz", **arrays(terminals=None)))
    data = load(DataConfig(path=path, keys={"terminated": "none"}))
    assert not data.terminated.any() and data.account.flags["terminated"] == "none, as was said"


def test_classes_that_the_space_lacks(tmp_path: Path) -> None:
    path = keyed(tmp_path / "a.npz", **arrays(actions=np.arange(N) % 4))
    with pytest.raises(DataError, match=r"row 3 holds 3; Discrete\(3\) has 0 to 2"):
        load(path, action_space=spaces.Discrete(3))
    from_one = keyed(tmp_path / "b.npz", **arrays(actions=1 + np.arange(N) % 4))
    data = load(from_one, action_space=spaces.Discrete(4, start=1))
    assert data.action(np.arange(4)).tolist() == [0, 1, 2, 3]
    assert any("No action is 0" in note for note in load(from_one).account.notes)


@pytest.mark.parametrize("found", [np.arange(N), np.arange(N) % 4 - 1, np.arange(N) * 1.0])
def test_classes_of_observations_that_the_space_lacks(tmp_path: Path, found: np.ndarray) -> None:
    path = keyed(tmp_path / "a.npz", **arrays(observations=found, next_observations=None))
    with pytest.raises(DataError, match=r"observations: row \d+ holds (8|-1); Discrete\(8\) has 0 to 7"):
        load(path, spaces.Discrete(8))


def test_classes_of_observations_count_from_where_the_space_does(tmp_path: Path) -> None:
    path = keyed(tmp_path / "a.npz", **arrays(observations=1 + np.arange(N) % 4, next_observations=None))
    data = load(path, spaces.Discrete(4, start=1))
    assert data.obs(np.arange(4)).tolist() == [1, 2, 3, 4]
    with pytest.raises(DataError, match=r"row 3 holds 4; Discrete\(4\) has 0 to 3"):
        load(path, spaces.Discrete(4))


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Box(-1, 1, (3,), np.float32), r"rows of shape \(2,\); the environment has Box\(3\)"),
        (spaces.Dict(a=spaces.Box(-1, 1, (2,))), "has one array; the environment has {a:"),
        (spaces.Box(0, 255, (2,), np.uint8), "which is no uint8"),
    ],
)
def test_another_environments_observations(tmp_path: Path, space: Any, said: str) -> None:
    path = keyed(tmp_path / "a.npz", **arrays(observations=np.full((N, 2), 0.5)))
    with pytest.raises(DataError, match=said):
        load(path, space)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.float32(2**31), np.int32),
        (np.float32(2**63), np.int64),
        (np.int8(-1), np.uint64),
        (2**33, np.int32),
    ],
)
def test_numbers_at_the_edge_of_a_dtype_are_not_wrapped_around(
    tmp_path: Path, values: Any, dtype: Any
) -> None:
    ends = np.iinfo(dtype)
    path = keyed(tmp_path / "a.npz", **arrays(observations=np.full((N, 2), values), next_observations=None))
    with pytest.raises(DataError, match=f"which is no {np.dtype(dtype)}"):
        load(path, spaces.Box(ends.min, ends.max, (2,), dtype)).obs(np.arange(2))


def test_steps_with_too_large_rewards_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    path = keyed(tmp_path / "a.npz", **arrays(rewards=np.where(np.arange(N) == 3, 1e300, 1.0)))
    data = load(DataConfig(path=str(path), nonfinite="drop"))
    assert len(data) == N - 1 and data.reward.max() == 1.0


def test_steps_with_nan_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    obs = arrays()["observations"].copy()
    obs[3] = np.nan
    path = keyed(
        tmp_path / "a.npz", **arrays(observations=obs, next_observations=np.roll(obs, -1, axis=0) * 1.0)
    )
    data = load(DataConfig(path=str(path), nonfinite="drop"))
    assert len(data) == N - 2 and data.lengths.tolist() == [
        2,
        2,
        6,
    ]  # the step itself, and the one that leads to it
    assert data.truncated.tolist() == [False, True, False, False] + [False] * 5 + [True]
    assert (
        np.isfinite(data.obs(np.arange(N - 2))).all() and np.isfinite(data.next_obs(np.arange(N - 2))).all()
    )


@pytest.mark.parametrize("lost", [slice(None), 0])
def test_a_lost_observation_is_no_end_of_an_episode(tmp_path: Path, lost: Any) -> None:
    """The next observations are whole, so only the row's own is missing, wholly or in one entry."""
    obs = arrays()["observations"]
    holed = obs.copy()
    holed[3, lost] = np.nan
    path = keyed(tmp_path / "a.npz", **arrays(observations=holed, timeouts=None, next_observations=obs + 2))
    data = load(DataConfig(path=str(path), nonfinite="drop"))
    assert data.account.lengths.tolist() == [6, 6] and data.account.returns.tolist() == [6.0, 6.0]
    assert data.lengths.tolist() == [3, 2, 6] and not any(
        "next row" in what for what in data.account.inferred
    )


@pytest.mark.parametrize("name", ["a.hdf5", "a.tfrecord", "a.array_record"])
def test_a_package_that_is_missing_is_named_with_its_extra(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("h5py", "crc32c", "array_record", "array_record.python.array_record_module"):
        monkeypatch.setitem(sys.modules, module, None)
    records._crc32c.cache_clear()
    (tmp_path / name).write_bytes(b"\x89HDF\r\n\x1a\n" if name.endswith("hdf5") else b"0" * 50)
    with pytest.raises(DataError, match=r'not installed\n  fix: pip install "uniarena\[offline\]"'):
        load(tmp_path / name)
    records._crc32c.cache_clear()


# -- HDF5 ------------------------------------------------------------------------------------------------------------
@OFFLINE
@pytest.mark.parametrize("keep", [0.2, 0.5, 0.95])
def test_hdf5_that_is_cut_short(tmp_path: Path, keep: float) -> None:
    path = keyed(tmp_path / "a.hdf5", **arrays())
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(DataError, match="cut short"):
        load(path)


@OFFLINE
def test_hdf5_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.hdf5").write_bytes(b"0123456789" * 100)
    with pytest.raises(DataError, match="no HDF5 file"):
        load(DataConfig(path=str(tmp_path / "a.hdf5"), format="d4rl"))


@OFFLINE
def test_hdf5_with_links_and_strings(tmp_path: Path) -> None:
    import h5py

    path = keyed(tmp_path / "a.hdf5", **arrays(rewards=None))
    with h5py.File(path, "a") as file:
        file["rewards"] = h5py.ExternalLink("other.hdf5", "/x")
    with pytest.raises(DataError, match="link into another file"):
        load(path)
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file["rewards"] = ["a"] * N
    with pytest.raises(DataError, match="where numbers belong"):
        load(path)
    with h5py.File(path, "a") as file:
        file["round"] = file["/"]
    with pytest.raises(DataError, match="groups deep"):
        load(path)


# -- Minari ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def minari_folder(tmp_path: Path) -> Path:
    observed, acted = OBSERVATIONS["vector"], ACTIONS["box"]
    episodes = random_episodes(np.random.default_rng(3), observed, acted, 3)
    data = load(record(tmp_path / "a.npz", episodes, observed, acted))
    convert(data, tmp_path / "toy-v0", "minari")
    return tmp_path / "toy-v0"


@OFFLINE
def test_minari_with_parts_that_do_not_fit(minari_folder: Path) -> None:
    import h5py

    with h5py.File(minari_folder / "data" / "main_data.hdf5", "a") as file:
        group = file["episode_1"]
        obs = group["observations"][()]
        del group["observations"]
        group["observations"] = obs[:-1]
    with pytest.raises(DataError, match=r"episode_1: the steps are misaligned: observations has"):
        load(minari_folder)


def put(group: Any, name: str, value: Any) -> None:
    """Write one part of an episode anew; a dict is a group of parts."""
    del group[name]
    if not isinstance(value, dict):
        group[name] = value
        return
    inner = group.create_group(name)
    for key, array in value.items():
        inner[key] = array


@OFFLINE
@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        (
            "observations",
            lambda rows: rows[:, :1],
            r"/observations: has rows of shape \(1,\); those of .*episode_0",
        ),
        ("actions", lambda rows: rows[:, :1], r"/actions: has rows of shape \(1,\); those of .*episode_0"),
        (
            "observations",
            lambda rows: {"a": rows},
            "/observations: has the parts a; .*episode_0.* has one array",
        ),
        ("observations", lambda rows: {}, "/observations: is a group without parts"),
        ("actions", lambda rows: {"_index_1": rows}, "/actions: has the parts _index_1; expected _index_0"),
        ("actions", lambda rows: np.full(len(rows), b"a"), "/actions: holds .* where numbers belong"),
        ("rewards", lambda rows: {"a": rows}, "/rewards: is a group of parts; expected one number a step"),
        ("terminations", lambda rows: {"a": rows}, "/terminations: is a group of parts"),
    ],
)
def test_an_episode_of_minari_that_is_unlike_the_others(
    minari_folder: Path, part: str, change: Any, said: str
) -> None:
    import h5py

    with h5py.File(minari_folder / "data" / "main_data.hdf5", "a") as file:
        group = file["episode_1"]
        put(group, part, change(group[part][()]))
    with pytest.raises(DataError, match=f"episode_1{said}"):
        load(minari_folder)


@OFFLINE
@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"a": 1}, "episode_1/observations: has the parts a; .*episode_0/observations has the parts a, b"),
        ({"a": 1, "b": 1, "c": 1}, "episode_1/observations: has the parts a, b, c; .* has the parts a, b"),
        (
            {"a": 1, "b": 2},
            r"episode_1/observations/b: has rows of shape \(2,\); those of .*episode_0/.*b are",
        ),
    ],
)
def test_parts_that_only_some_episodes_of_minari_have(
    minari_folder: Path, parts: dict[str, int], said: str
) -> None:
    import h5py

    with h5py.File(minari_folder / "data" / "main_data.hdf5", "a") as file:
        for name in file:
            mine = parts if name == "episode_1" else {"a": 1, "b": 1}
            count = len(file[name]["rewards"]) + 1
            put(file[name], "observations", {key: np.zeros((count, size)) for key, size in mine.items()})
    described(minari_folder, {"observation_space": None})
    with pytest.raises(DataError, match=said):
        load(minari_folder)


@OFFLINE
def test_a_part_that_minari_calls_otherwise(minari_folder: Path) -> None:
    import h5py

    with h5py.File(minari_folder / "data" / "main_data.hdf5", "a") as file:
        file["episode_1"].move("terminations", "terminateds")
    with pytest.raises(
        DataError, match="nothing here is called terminations, which every episode of"
    ) as error:
        load(minari_folder)
    assert "keys" not in error.value.hint and "'terminateds' seems to be it" in error.value.hint


@OFFLINE
def test_minari_with_a_flag_within_an_episode(minari_folder: Path) -> None:
    import h5py

    with h5py.File(minari_folder / "data" / "main_data.hdf5", "a") as file:
        long = max(file, key=lambda name: len(file[name]["rewards"]))
        file[long]["terminations"][0] = True
    with pytest.raises(DataError, match="is terminated at step 0 and goes on"):
        load(minari_folder)


@OFFLINE
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data_format": "arrow"}, "stored as arrow"),
        ({"observation_space": json.dumps({"type": "Text"})}, "Text spaces are not supported"),
        ({"action_space": "{"}, "cannot be read"),
        ({"action_space": "[" * 9999 + "]" * 9999}, "is JSON with more than 64 lists and objects within"),
        ({"action_space": "[" * 300 + "]" * 300}, "is JSON with more than 64 lists and objects within"),
        ({"action_space": "[]"}, "its action_space cannot be read"),
        ({"action_space": {"type": "Box"}}, "its action_space cannot be read: 'shape' is missing"),
        ({"action_space": {"type": "Discrete", "n": -1}}, "its action_space cannot be read"),
        (
            {"action_space": {"type": "Box", "shape": [2**40, 2**40], "dtype": "int8", "low": 0, "high": 1}},
            "has more than 268,435,456 numbers",
        ),
        ({"action_space": {"type": "MultiBinary", "n": 2**70}}, "it has more than 268,435,456 numbers"),
        ({"total_steps": "abc"}, "total_steps is 'abc', and a count belongs there"),
        ({"total_steps": [3]}, r"total_steps is \[3\], and a count belongs there"),
        ({"total_episodes": "nan"}, "total_episodes is 'nan', and a count belongs there"),
        ({"total_episodes": 5}, "says 5 episodes, and main_data.hdf5 holds 3: 2 are missing"),
    ],
)
def test_minari_with_metadata_that_cannot_be(minari_folder: Path, change: dict[str, Any], said: str) -> None:
    described(minari_folder, change)
    with pytest.raises(DataError, match=said) as error:
        load(minari_folder)
    assert "metadata.json" in str(error.value) or "data_format" in change


@OFFLINE
@pytest.mark.parametrize("text", ["null", "[]", "{", "\xff", '{"a":' * 999 + "1" + "}" * 999])
def test_metadata_of_minari_that_is_no_object(minari_folder: Path, text: str) -> None:
    (minari_folder / "data" / "metadata.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"metadata\.json: (is|cannot be read as) (no )?JSON"):
        load(minari_folder)


@OFFLINE
def test_what_more_minari_holds_than_is_said_is_noted(minari_folder: Path) -> None:
    described(minari_folder, {"total_episodes": 2, "total_steps": "1", "env_spec": "[1]"})
    data = load(minari_folder)
    assert data.episodes == 3 and data.source.env == {}
    assert any("says 2 episodes; the file holds 3" in note for note in data.account.notes)
    assert any("says 1 steps; the file holds" in note for note in data.account.notes)


def described(folder: Path, change: dict[str, Any]) -> None:
    """Change entries of a Minari dataset's metadata."""
    path = folder / "data" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


@OFFLINE
def test_an_episode_without_steps_counts_for_nothing(minari_folder: Path) -> None:
    import h5py

    before = load(minari_folder)
    with h5py.File(minari_folder / "data" / "main_data.hdf5", "a") as file:
        for name in ("episode_1",):
            group = file[name]
            group.move("observations", "old")
            group["observations"] = group["old"][:1]
            for part in ("actions", "rewards", "terminations", "truncations"):
                rows = group[part][:0]
                del group[part]
                group[part] = rows
    data = load(minari_folder)
    assert data.episodes == 2
    np.testing.assert_array_equal(data.episode(1).obs, before.episode(2).obs)


# -- records ---------------------------------------------------------------------------------------------------------
def episode(count: int = 4, **other: Any) -> bytes:
    at = np.arange(count)
    found: dict[str, Any] = {
        "observation": at.astype(np.float32),
        "action": at.astype(np.float32),
        "reward": at.astype(np.float32),
        "is_first": at == 0,
        "is_last": at == count - 1,
        "is_terminal": np.zeros(count, bool),
        **other,
    }
    return records.encode({f"steps/{name}": array for name, array in found.items() if array is not None})


@OFFLINE
@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"is_last": np.array([0, 1, 0, 1])}, "step 1 is_last"),
        ({"is_first": np.array([1, 0, 1, 0])}, "step 2 is_first, within an episode"),
        ({"is_terminal": np.array([1, 0, 0, 0])}, "step 0 is_terminal"),
        ({"is_terminal": np.array([0, 0, 0])}, "misaligned: is_first 4, is_last 4, is_terminal 3"),
        ({"reward": np.ones(3)}, "misaligned: 3 rewards and 4 steps"),
        ({"observation": np.ones(6)}, "misaligned: observation has 6 numbers"),
        ({"observation": [b"a"] * 4}, "strings where numbers or pictures belong"),
        ({"action": None}, "called action"),
        ({"is_terminal": None}, "called is_terminal, which every step of RLDS has"),
        ({"is_terminal": np.array([0, 0, 0, 2])}, "is_terminal holds 2 where flags belong"),
        ({"reward": [b"a"] * 4}, "reward: holds strings where numbers or pictures belong"),
        ({"reward": None, "rewards": np.ones(4)}, "called reward, which every step of RLDS has"),
        ({"observation": np.ones(8)}, r"observation: has rows of shape \(2,\), and those before are of \(\)"),
        (
            {"observation": None, "observation/a": np.ones(4)},
            "has the parts action, observation/a; the records",
        ),
        (
            {"observation/a": np.ones(4)},
            "has the parts action, observation, observation/a; the records before",
        ),
    ],
)
def test_episodes_that_contradict_themselves(tmp_path: Path, other: dict[str, Any], said: str) -> None:
    records.write_tf_records(tmp_path / "a.tfrecord", [episode(), episode(**other)])
    with pytest.raises(DataError, match=said) as error:
        load(tmp_path / "a.tfrecord")
    assert "record 1" in str(error.value)


@OFFLINE
def test_what_is_advised_for_a_part_that_is_missing_can_be_done(tmp_path: Path) -> None:
    records.write_tf_records(
        tmp_path / "a.tfrecord", [episode(is_terminal=None, is_terminals=np.zeros(4, bool))]
    )
    with pytest.raises(DataError) as error:
        load(tmp_path / "a.tfrecord")
    assert error.value.hint == "write the data again, under that name; 'is_terminals' seems to be it"


def stepwise(tmp_path: Path, episodes: list[bytes], **dtypes: Any) -> Path:
    """A folder of RLDS whose features.json gives parts of a step these entries; none where there are none."""
    folder = tmp_path / "toy"
    folder.mkdir()
    records.write_tf_records(folder / "toy-train.tfrecord-00000-of-00001", episodes)
    parts = {
        name: {"tensor": {"shape": {}, "dtype": each}} if isinstance(each, str) else each
        for name, each in dtypes.items()
    }
    steps = {"sequence": {"feature": {"featuresDict": {"features": parts}}}}
    if dtypes:
        (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": {"steps": steps}}}))
    return folder


HALVES = np.arange(4) + np.float32(0.5)


@OFFLINE
@pytest.mark.parametrize(
    ("other", "dtypes", "said"),
    [
        ({"action": np.arange(256, 260)}, {"action": "uint8"}, "action: holds 256, which is no uint8"),
        ({"action": -np.arange(4)}, {"action": "uint8"}, "action: holds -1, which is no uint8"),
        ({"action": HALVES}, {"action": "int64"}, r"action: holds 0\.5, which is no int64"),
        ({"action": np.full(4, 2.0**63)}, {"action": "int64"}, "which is no int64"),
        ({"action": np.arange(4)}, {"action": "bool"}, "action: holds 2, which is no bool"),
        ({"observation": HALVES}, {"observation": "int32"}, r"observation: holds 0\.5, which is no int32"),
        ({"observation": np.arange(4) + 2**24}, {"observation": "float32"}, "16777217, which is no float32"),
        ({"reward": HALVES}, {"reward": "int32"}, r"reward: holds 0\.5, which is no int32"),
        ({"action": HALVES}, {}, r"action: holds 0\.5, which is no int64"),
        ({"observation": HALVES}, {"observation": "string"}, "holds numbers, and features.json says strings"),
    ],
)
def test_values_of_rlds_that_another_dtype_lacks(
    tmp_path: Path, other: dict[str, Any], dtypes: dict[str, str], said: str
) -> None:
    folder = stepwise(
        tmp_path, [episode(action=np.arange(4) % 2), episode(**other)][bool(dtypes) :], **dtypes
    )
    with pytest.raises(DataError, match=said) as error:
        load(folder)
    assert "record" in error.value.where


@OFFLINE
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_floats_of_rlds_are_read_as_the_record_has_them(tmp_path: Path, dtype: str) -> None:
    data = load(stepwise(tmp_path, [episode(observation=HALVES + 10**5)], observation=dtype))
    assert data.obs(np.arange(3)).tolist() == [100000.5, 100001.5, 100002.5]


@OFFLINE
def test_what_the_last_step_of_rlds_holds_means_nothing(tmp_path: Path) -> None:
    data = load(stepwise(tmp_path, [episode(action=np.array([0, 1, 1, 999]))], action="uint8"))
    assert data.action(np.arange(3)).tolist() == [0, 1, 1]


@OFFLINE
@pytest.mark.parametrize(
    ("feature", "said"),
    [
        ("float8_e9", r"toy/features.json observation: has the dtype 'float8_e9'"),
        ("i4,f4", "has the dtype 'i4,f4', as which numbers cannot be read"),
        ({"tensor": {"dtype": 3}}, "has the dtype 3, as which"),
        ({"tensor": "x"}, "tensor of observation is 'x'; expected a JSON object"),
        (
            {"tensor": {"shape": {"dimensions": ["x"]}}},
            "a dimension of observation is 'x', and a count belongs",
        ),
        ({"tensor": {"shape": {"dimensions": "3"}}}, "dimensions of observation are '3'; expected a list"),
        ({"tensor": {"shape": {"dimensions": ["-1"]}, "dtype": "int8"}}, "-1 differs from step to step"),
        ({"tensor": {"shape": {"dimensions": ["9" * 19, "9" * 19]}, "dtype": "int8"}}, "do not make"),
        ({"image": {"dtype": "float32"}}, "'float32', as which pictures cannot be read"),
        ({"featuresDict": []}, r"featuresDict of observation is \[\]; expected a JSON object"),
        ({"featuresDict": {"features": None}}, "features of observation is None; expected a JSON object"),
        (None, "observation is None; expected a JSON object"),
    ],
)
def test_features_of_rlds_that_cannot_be(tmp_path: Path, feature: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        load(stepwise(tmp_path, [episode()], observation=feature))


@OFFLINE
def test_a_feature_that_is_not_needed_does_no_harm(tmp_path: Path) -> None:
    assert len(load(stepwise(tmp_path, [episode()], embedding="float8_e9"))) == 3


@OFFLINE
@pytest.mark.parametrize("name", ["features.json", "dataset_info.json", "uniarena.json"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("null", "is no JSON object; it holds null"),
        ("{", "cannot be read as JSON"),
        ('{"a":' * 9999 + "1" + "}" * 9999, "is JSON with more than 64 lists and objects within each other"),
        ('{"a":' * 99 + "1" + "}" * 99, "is JSON with more than 64 lists and objects within each other"),
    ],
)
def test_files_beside_the_records_that_are_no_objects(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    folder = stepwise(tmp_path, [episode()])
    (folder / name).write_text(text)
    with pytest.raises(DataError, match=f"{name}: {said}"):
        load(folder)


@OFFLINE
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("features.json", {"featuresDict": []}, r"featuresDict is \[\]; expected a JSON object"),
        ("features.json", {"featuresDict": None}, "featuresDict is None; expected a JSON object"),
        ("features.json", {"featuresDict": {"features": {"steps": 1}}}, "features.steps is 1; expected"),
        ("dataset_info.json", {"splits": {}}, "splits is no list of objects"),
        ("dataset_info.json", {"splits": [{"shardLengths": "3"}]}, "shardLengths is '3'; expected a list"),
        (
            "dataset_info.json",
            {"splits": [{"shardLengths": ["x"]}]},
            "an entry of shardLengths is 'x', and a count",
        ),
        ("uniarena.json", {"origin": [1]}, r"its origin is \[1\]; expected a JSON object"),
        ("uniarena.json", {"env": "x"}, "its env is 'x'; expected a JSON object"),
        (
            "uniarena.json",
            {"observation_space": {"type": "x"}},
            "its observation_space cannot be read: unknown",
        ),
        (
            "uniarena.json",
            {"observation_space": {}},
            "its observation_space cannot be read: 'type' is missing",
        ),
        ("uniarena.json", {"observation_space": None}, "its observation_space cannot be read"),
        ("uniarena.json", {"action_space": {"type": "x"}}, "'observation_space' is missing"),
        (
            "uniarena.json",
            {"observation_space": {"type": "Discrete", "n": -1, "start": 0, "dtype": "int64"}},
            "its observation_space cannot be read",
        ),
    ],
)
def test_files_beside_the_records_that_say_what_cannot_be(
    tmp_path: Path, name: str, content: Any, said: str
) -> None:
    folder = stepwise(tmp_path, [episode()])
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(DataError, match=said) as error:
        load(folder)
    assert name in error.value.where


@OFFLINE
@pytest.mark.parametrize("whole", [True, False])
def test_records_that_are_fewer_than_is_said(tmp_path: Path, whole: bool) -> None:
    """A TFRecord file that is cut between two records is a shorter one, which only the other file tells."""
    folder = stepwise(tmp_path, [episode(), episode(), episode()])
    [file] = folder.glob("*.tfrecord*")
    split = {"name": "train", "shardLengths": ["3"]}
    (folder / "dataset_info.json").write_text(json.dumps({"splits": [split]}))
    assert load(folder if whole else file).episodes == 3
    file.write_bytes(file.read_bytes()[: len(file.read_bytes()) // 3])
    with pytest.raises(
        DataError, match=r"holds 1 records, and dataset_info\.json says 3: 2 episodes are missing"
    ):
        load(folder if whole else file)


@OFFLINE
def test_records_are_counted_by_split_and_file(tmp_path: Path) -> None:
    folder = stepwise(tmp_path, [episode(), episode()])
    file = folder / "toy-train.tfrecord-00000-of-00001"

    def info(*splits: tuple[str, list[str]]) -> list[str]:
        text = json.dumps({"splits": [{"name": name, "shardLengths": lengths} for name, lengths in splits]})
        (folder / "dataset_info.json").write_text(text)
        return load(folder).account.notes

    assert any("says 1 records of toy-train" in note for note in info(("train", ["1"])))
    assert any(
        "no files of the split test, of which" in note for note in info(("train", ["2"]), ("test", ["4"]))
    )
    assert not any("records" in note for note in info(("train", ["2"]), ("test", [])))
    file.rename(folder / "other.tfrecord")  # by another name than TFDS gives, only all of them can be counted
    assert not any("records" in note for note in info(("train", ["1"]), ("test", ["1"])))
    with pytest.raises(DataError, match=r"holds 2 records, and dataset_info\.json says 5"):
        info(("train", ["3"]), ("test", ["2"]))


@OFFLINE
def test_episodes_of_no_and_of_one_step(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    records.write_tf_records(path, [episode(1), episode(0), episode(2), episode(4)])
    data = load(path)
    assert data.lengths.tolist() == [1, 3]
    assert data.obs(np.arange(4)).ravel().tolist() == [0, 0, 1, 2]
    records.write_tf_records(tmp_path / "b.tfrecord", [episode(1)])
    with pytest.raises(DataError, match="holds no transition: 1 episode has a single step"):
        load(tmp_path / "b.tfrecord")


@OFFLINE
def test_records_that_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    records.write_tf_records(path, [episode(), episode()])
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    for damaged, said in (
        (whole[:-3], "cut short within a record"),
        (whole[: length + 16 + 5], "cut short within the length"),
        (bytes([whole[0] ^ 1]) + whole[1:], "length of a record is damaged"),
        (whole[:20] + bytes([whole[20] ^ 1]) + whole[21:], "checksum differs"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=said):
            load(path)
    records.write_tf_records(path, [b"\xff\xff\xff"])
    with pytest.raises(DataError, match=r"no tf\.train\.Example"):
        load(path)


@OFFLINE
def test_files_of_a_set_that_are_missing(tmp_path: Path) -> None:
    for k in (0, 2):
        records.write_tf_records(tmp_path / f"a-train.tfrecord-{k:05}-of-00003", [episode()])
    with pytest.raises(DataError, match=r"1 of 3 files of a-train\.tfrecord are missing: 1"):
        load(tmp_path)


@OFFLINE
def test_gzipped_records(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "a.tfrecord"
    records.write_tf_records(path, [episode()])
    (tmp_path / "b.tfrecord.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert len(load(tmp_path / "b.tfrecord.gz")) == 3
    packed = gzip.compress(path.read_bytes())
    for damaged in (packed[:-12], packed[:20] + bytes(each ^ 255 for each in packed[20:30]) + packed[30:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="cut short"):
            load(path)


def test_both_flags_on_one_row_are_kept_and_told(tmp_path: Path) -> None:
    from uniarena.data.audit import audit

    both = np.arange(N) == N - 1
    found = audit(load(keyed(tmp_path / "a.npz", **arrays(terminals=both, timeouts=both)), lazy=True))
    assert (found["terminated"], found["truncated"], found["both_flags"]) == (1, 1, 1)
    assert any("both terminated and truncated" in warning for warning in found["warnings"])
