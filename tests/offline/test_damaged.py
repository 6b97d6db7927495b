"""Files of bytes that went wrong: whatever the damage, one DataError with the file, the place and what to do."""

from __future__ import annotations

import io
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


def partly(file: Any) -> None:
    file.create_dataset("rewards", (10**15,), "f4", chunks=(4,))[0] = 1.0


def empty(file: Any) -> None:
    import h5py

    file.create_dataset("rewards", data=h5py.Empty("f4"))


def elsewhere(file: Any) -> None:
    import h5py

    file["rewards"] = h5py.ExternalLink("/nowhere", "/x")


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
        (partly, {"rewards": None}, "/rewards: claims 4,000,000,000,000,000 bytes at once, more than memory"),
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
