"""Files of bytes that went wrong: whatever the damage, one DataError with the file, the place and what to do."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.offline.episodes import keyed
from tests.offline.test_broken import N, arrays
from uniarena.data import DataConfig, DataError, load
from uniarena.data.audit import audit

OFFLINE = pytest.mark.extra("offline")


def hdf5(path: Path, change: Callable[[Any], None] = lambda file: None, **other: Any) -> Path:
    """The twelve steps as HDF5, with some changed."""
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in arrays(**other).items():
            file[name] = array
        change(file)
    return path


def claimed(name: str, rows: int) -> Callable[[Any], None]:
    """A dataset with so many rows, of which one chunk at most is in the file."""
    return lambda file: file.create_dataset(name, (rows,), "f4", chunks=(4,))


def partly(name: str) -> Callable[[Any], None]:
    """A dataset with ever so many rows, of which one chunk is in the file."""

    def change(file: Any) -> None:
        file.create_dataset(name, (10**15,), "f4", chunks=(4,))[0] = 1.0

    return change


def half(name: str, *row: int) -> Callable[[Any], None]:
    """Twelve rows, of which the first eight are in the file, and of the others a part at most."""

    def change(file: Any) -> None:
        data = file.create_dataset(name, (N, *row), "f4", chunks=(4, *(1 for _ in row)))
        data[:8] = 1.0
        data[(slice(8), *(0 for _ in row))] = 1.0

    return change


def virtual(file: Any) -> None:
    import h5py

    layout = h5py.VirtualLayout((N,), "f4")
    layout[:] = h5py.VirtualSource("gone.hdf5", "rewards", (N,))
    file.create_virtual_dataset("rewards", layout)


def external(file: Any) -> None:
    file.create_dataset("rewards", (N,), "f4", external=[("gone.bin", 0, 4 * N)])


def nothing(file: Any) -> None:
    file.create_group("observations")


def empty(file: Any) -> None:
    import h5py

    file.create_dataset("rewards", data=h5py.Empty("f4"))


def elsewhere(file: Any) -> None:
    import h5py

    file["rewards"] = h5py.ExternalLink("/nowhere", "/x")


@OFFLINE
@pytest.mark.parametrize(
    ("field", "key"),
    [("terminated", "terminals"), ("truncated", "timeouts"), ("next_obs", "next_observations")],
)
@pytest.mark.parametrize("chunks", [None, (3,)])
def test_what_was_never_written_and_is_not_needed_names_the_way_to_do_without(
    tmp_path: Path, field: str, key: str, chunks: Any
) -> None:
    import h5py

    path, wide = tmp_path / "a.hdf5", key == "next_observations"
    with h5py.File(path, "w") as file:
        for name in ("observations", "actions", "rewards", "terminals"):
            if name != key:
                file[name] = np.zeros((12, 2) if name == "observations" else 12, np.float32)
        shape = (12, 2) if wide else (12,)
        file.create_dataset(key, shape, np.float32, chunks=chunks and (3, 2)[: len(shape)])
    with pytest.raises(DataError, match="12 rows, and none of them was ever written") as told:
        load(str(path))
    assert f"keys: {{{field}: none}}" in told.value.hint
    assert len(load(DataConfig(path=str(path), keys={field: "none"}))) >= 11  # and it is one


@OFFLINE
@pytest.mark.parametrize(
    ("change", "other", "said"),
    [
        (
            lambda file: None,
            {"rewards": np.float32(1)},
            "/rewards: is a single value; expected one row a step",
        ),
        (lambda file: None, {"observations": np.float32(1)}, "/observations: is a single value"),
        (empty, {"rewards": None}, "/rewards: is empty; expected one row a step"),
        (
            claimed("rewards", 10**12),
            {"rewards": None},
            "/rewards: claims 1,000,000,000,000 rows, and none of them was ever written",
        ),
        (
            partly("rewards"),
            {"rewards": None},
            "/rewards: claims 1,000,000,000,000,000 rows, and 4 of them were written",
        ),
        (
            partly("timeouts"),
            {"timeouts": None},
            "/timeouts: claims 4,000,000,000,000,000 bytes at once, more than",
        ),
        (half("rewards"), {"rewards": None}, "/rewards: claims 12 rows, and 8 of them were written"),
        (half("actions", 3), {"actions": None}, "/actions: claims 12 rows, and 8 of them were written"),
        (
            half("next_observations", 2),
            {"next_observations": None},
            "/next_observations: claims 12 rows, and 8 of",
        ),
        (
            virtual,
            {"rewards": None},
            r"/rewards is a virtual dataset: its values lie in other files \(gone.hdf5\)",
        ),
        (
            external,
            {"rewards": None},
            r"/rewards is stored externally: its values lie in other files \(gone.bin\)",
        ),
        (nothing, {"observations": None}, "observations is a group without any part"),
        (
            lambda file: None,
            {"observations": np.zeros((N, 0)), "next_observations": None},
            r"rows of shape \(0,\)",
        ),
        (lambda file: None, {"actions": np.zeros((N, 0), np.float32)}, r"actions has rows of shape \(0,\)"),
        (elsewhere, {"rewards": None}, r"hdf5: /rewards is a link into another file \(/nowhere\)"),
    ],
)
def test_datasets_of_hdf5_without_rows(
    tmp_path: Path, change: Callable[[Any], None], other: dict[str, Any], said: str
) -> None:
    path = hdf5(tmp_path / "a.hdf5", change, **other)
    with pytest.raises(DataError, match=said) as error:
        load(path, lazy=True)
    assert error.value.hint and str(path) in str(error.value)


@OFFLINE
def test_what_is_odd_and_not_needed_does_no_harm(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "a.hdf5", claimed("infos", 10**12), version=np.float32(1))
    assert len(load(path)) == N


@OFFLINE
def test_flags_of_which_only_some_were_written_are_read_and_told(tmp_path: Path) -> None:
    """Whoever sets only what is true leaves the other chunks unwritten: that is no damage, and may be."""

    def change(file: Any) -> None:
        file.create_dataset("timeouts", (N,), bool, chunks=(3,))[N - 1] = True

    data = load(hdf5(tmp_path / "a.hdf5", change, timeouts=None))
    assert np.flatnonzero(data.truncated).tolist() == [N - 1]
    [note] = [note for note in data.account.notes if "timeouts" in note]
    assert note.startswith("timeouts claims 12 rows, and 3 of them were written. The others are read as")


@OFFLINE
@pytest.mark.parametrize("size", [512, 4096])
def test_hdf5_behind_a_block_of_its_writer(tmp_path: Path, size: int) -> None:
    import h5py

    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w", userblock_size=size) as file:
        for name, array in arrays().items():
            file[name] = array
    assert len(load(path)) == N
    path.write_bytes(b"any words" + path.read_bytes()[9:])
    np.testing.assert_array_equal(load(path).reward, np.ones(N))


@OFFLINE
def test_bytes_that_were_changed_in_hdf5(tmp_path: Path) -> None:
    import h5py

    path, rng, refused = tmp_path / "a.hdf5", np.random.default_rng(0), 0
    with h5py.File(path, "w") as file:
        for name, array in arrays().items():
            file.create_dataset(name, data=array, chunks=True, compression="gzip")
        file.attrs["uniarena"] = "{}"
    refused = _changed(path, rng, "d4rl")
    assert refused > 30


@pytest.mark.parametrize("compressed", [True, False])
def test_bytes_that_were_changed_in_an_archive(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "a.npz"
    (np.savez_compressed if compressed else np.savez)(path, **arrays())
    assert _changed(path, np.random.default_rng(1), "npz") > 30


def _changed(path: Path, rng: np.random.Generator, form: Any) -> int:
    """Of 60 copies with some bytes changed, how many are refused; the others are read."""
    whole, refused = path.read_bytes(), 0
    for _ in range(60):
        data = bytearray(whole)
        for at in rng.integers(8, len(data), 3):
            data[at] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        try:
            with np.errstate(all="ignore"):
                audit(load(DataConfig(path=str(path), format=form), lazy=True))
        except DataError:
            refused += 1
    return refused


def test_what_is_odd_in_an_archive_and_not_needed_does_no_harm(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}] * N, object)
    odd = {
        "gamma": 0.99,
        "env_name": "Hopper-v5",
        "infos": objects,
        "void": np.zeros(3, "V0"),
        "told": np.array(None),
    }
    np.savez(tmp_path / "a.npz", **arrays(), **odd)
    notes = load(tmp_path / "a.npz").account.notes
    assert [note.partition(" is an array of objects")[0] for note in notes if "objects" in note] == [
        "infos",
        "told",
    ]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"rewards": np.float32(1)}, "a.npz rewards.npy: is a single value; expected one row a step"),
        ({"rewards": np.zeros(N, "V0")}, r"a.npz rewards.npy: holds values of no size \(\|V0\)"),
        (
            {"timeouts": np.array([None] * N)},
            "a.npz timeouts.npy: is an array of objects, which could run code",
        ),
        (
            {"observations": np.zeros((N, 0)), "next_observations": None},
            r"observations has rows of shape \(0,\)",
        ),
    ],
)
def test_what_is_odd_in_an_archive_and_needed_is_refused(
    tmp_path: Path, other: dict[str, Any], said: str
) -> None:
    np.savez(tmp_path / "a.npz", **arrays(**other))
    with pytest.raises(DataError, match=said) as error:
        load(tmp_path / "a.npz")
    assert error.value.hint


def test_two_arrays_of_one_name(tmp_path: Path) -> None:
    path, text = keyed(tmp_path / "a.npz", **arrays()), io.BytesIO()
    np.save(text, np.zeros(N))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("rewards.npy", text.getvalue())
    with pytest.raises(DataError, match="holds two arrays that are both called rewards"):
        load(path)


def test_two_names_for_one_field_are_told(tmp_path: Path) -> None:
    path = keyed(tmp_path / "a.npz", **arrays(), obs=np.zeros((N, 2)), reward=np.zeros(N))
    said = "There is observations and also obs: observations is read as the obs of each step. To have another read"
    notes = load(path).account.notes
    assert any(note.startswith(said) for note in notes) and any("and also reward:" in note for note in notes)
    chosen = load(DataConfig(path=str(path), keys={"obs": "obs", "reward": "rewards"}))
    assert not chosen.obs(np.arange(N)).any() and not any("and also" in note for note in chosen.account.notes)


DEEP = "[" * 30_000 + "]" * 30_000
SPACES = {"observation_space": {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"}}
SPACES["action_space"] = SPACES["observation_space"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DEEP, "is JSON with more than [0-9]+ lists and objects within each other"),
        ("[1, 2]", r"is no JSON object; it holds \[1, 2\]"),
        ({"env": [1, 2]}, r"its env is list \[1, 2\]; expected names and values"),
        ({"env": "abc"}, "its env is str 'abc'"),
        ({"origin": 3}, "its origin is int 3"),
        ({"action_space": None}, "its action_space cannot be read"),
        ({"action_space": {**SPACES["action_space"], "n": 0}}, "its action_space cannot be read"),
        ({"action_space": {"type": "Tuple", "spaces": 3}}, "its action_space cannot be read"),
    ],
)
@pytest.mark.parametrize("suffix", [".npz", pytest.param(".hdf5", marks=OFFLINE)])
def test_headers_of_our_own(tmp_path: Path, suffix: str, text: Any, said: str) -> None:
    if not isinstance(text, str):
        text = json.dumps({"format": "uniarena-recording", "version": 1, **SPACES, **text})
    if suffix == ".hdf5":
        path = hdf5(tmp_path / "a.hdf5", lambda file: file.attrs.update(uniarena=text))
    else:
        other = {name: np.zeros(N) for name in ("obs", "action", "reward", "terminated", "truncated")}
        whole = {"header": np.frombuffer(text.encode(), np.uint8), "length": [N], "final_known": [1]}
        path = keyed(tmp_path / "a.npz", **other, **whole)
    with pytest.raises(DataError, match=said) as error:
        load(path)
    assert error.value.hint


def test_an_array_that_is_a_group_as_well(tmp_path: Path) -> None:
    part = {"observations/pos": np.zeros((N, 2))}
    for order in ({**part, **arrays()}, {**arrays(), **part}):
        np.savez(tmp_path / "a.npz", **order)
        with pytest.raises(DataError, match="there is observations and also observations/pos"):
            load(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("(-12, 2)", r"the shape \(-12, 2\), which no array has"),
        ("(10**12, 2)", "is no array: malformed .* an expression where a value belongs$"),
        ("(4294967296, 4294967296)", "promises 73,786,976,294,838,206,464 bytes"),
    ],
)
def test_headers_of_arrays(tmp_path: Path, shape: str, said: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    text = io.BytesIO(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(96))
    np.savez(tmp_path / "a.npz", **arrays(observations=None))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("observations.npy", text.getvalue())
    with pytest.raises(DataError) as error:
        load(tmp_path / "a.npz")
    assert error.value.where.endswith("a.npz observations.npy")
    with pytest.raises(DataError, match=said):
        raise DataError(error.value.message)


def test_no_key_is_suggested_that_means_something_else(tmp_path: Path) -> None:
    path = keyed(tmp_path / "a.npz", **arrays(actions=None))
    with pytest.raises(DataError) as error:
        load(DataConfig(path=str(path), keys={"action": "observation"}))
    assert "did you mean" not in str(error.value) and "keys: {action: KEY}" in str(error.value)
