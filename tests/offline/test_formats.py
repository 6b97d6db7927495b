"""Whatever is written in a format is read back: the same transitions, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.offline.episodes import ACTIONS, OBSERVATIONS, check_same, random_episodes, record
from uniarena.data import DataConfig, Dataset, load
from uniarena.data.convert import convert

OFFLINE = pytest.mark.extra("offline")
FORMATS = [
    pytest.param("npz", "b.npz"),
    pytest.param("d4rl", "b.hdf5", marks=OFFLINE),
    pytest.param("minari", "toy-v0", marks=OFFLINE),
    pytest.param("rlds", "toy", marks=OFFLINE),
]


def made(tmp_path: Path, seed: int) -> tuple[Any, Dataset]:
    """Random episodes of random spaces, and the dataset of their recording."""
    rng = np.random.default_rng(seed)
    observed = list(OBSERVATIONS.values())[seed % len(OBSERVATIONS)]
    acted = list(ACTIONS.values())[rng.integers(len(ACTIONS))]
    episodes = random_episodes(rng, observed, acted, int(rng.integers(1, 7)))
    return episodes, load(record(tmp_path / "a.npz", episodes, observed, acted))


@pytest.mark.parametrize("seed", range(18))
def test_a_recording_is_read_back(tmp_path: Path, seed: int) -> None:
    episodes, data = made(tmp_path, seed)
    check_same(data, episodes)
    assert data.source.env == {"id": "Toy-v0"} and data.source.origin == {"made_by": "a test"}
    assert not data.account.dropped and not data.account.inferred


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("kind", "name"), FORMATS)
def test_every_format_keeps_every_transition(tmp_path: Path, seed: int, kind: str, name: str) -> None:
    episodes, data = made(tmp_path, seed)
    both = int((data.terminated & data.truncated).sum()) if kind == "rlds" else 0
    which = "1 terminated transition is" if both == 1 else f"{both} terminated transitions are"
    lost = [f"that {which} truncated as well"] if both else []
    assert convert(data, tmp_path / name, kind) == (lost, [])
    for cfg in (DataConfig(path=str(tmp_path / name)), DataConfig(path=str(tmp_path / name), format=kind)):
        again = load(cfg)
        check_same(
            again, episodes, both=kind != "rlds"
        )  # RLDS says of a last step only whether it is terminal
        assert again.action_space == data.action_space
    lazily = load(tmp_path / name, lazy=True)
    check_same(lazily, episodes, both=kind != "rlds")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("kind", "name"), FORMATS)
def test_every_format_is_read_from_mapped_files(tmp_path: Path, seed: int, kind: str, name: str) -> None:
    episodes, data = made(tmp_path, seed)
    convert(data, tmp_path / name, kind)
    mapped = load(DataConfig(path=str(tmp_path / name), memory_gb=0, memory_map=str(tmp_path / "spill")))
    check_same(mapped, episodes, both=kind != "rlds")
    assert mapped.resident


def test_the_same_episodes_give_the_same_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    observed, acted = OBSERVATIONS["dict"], ACTIONS["box"]
    episodes = random_episodes(rng, observed, acted, 3)
    one, two = (record(tmp_path / name, episodes, observed, acted) for name in ("a.npz", "b.npz"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("seed", range(8))
def test_plain_arrays_of_steps(tmp_path: Path, seed: int) -> None:
    """The keys of D4RL without anything that only we write, with and without what is optional."""
    rng = np.random.default_rng(seed)
    observed, acted = OBSERVATIONS["vector"], ACTIONS["box"]
    episodes = random_episodes(rng, observed, acted, 5)
    arrays = {
        "observations": np.concatenate([each.obs[:-1] for each in episodes]),
        "next_observations": np.concatenate([each.obs[1:] for each in episodes]),
        "actions": np.concatenate([each.action for each in episodes]),
        "rewards": np.concatenate([each.reward for each in episodes])[:, None],
        "terminals": np.concatenate([each.terminated for each in episodes]),
        "timeouts": np.concatenate([each.truncated for each in episodes]).astype(np.float32),
    }
    np.savez(tmp_path / "plain.npz", **arrays)
    check_same(load(tmp_path / "plain.npz"), episodes)
    names = {"observations": "x", "actions": "u", "rewards": "r", "terminals": "d"}
    np.savez(tmp_path / "odd.npz", **{names.get(name, name): array for name, array in arrays.items()})
    keys = {"obs": "x", "action": "u", "reward": "r", "terminated": "d"}
    check_same(load(DataConfig(path=str(tmp_path / "odd.npz"), keys=keys)), episodes)


@OFFLINE
@pytest.mark.parametrize("seed", range(3))
def test_compressed_and_chunked_hdf5(tmp_path: Path, seed: int) -> None:
    import h5py

    episodes, data = made(tmp_path, 12 + seed)
    convert(data, tmp_path / "plain.hdf5", "d4rl")
    with h5py.File(tmp_path / "plain.hdf5") as plain, h5py.File(tmp_path / "small.hdf5", "w") as small:
        small.attrs.update(plain.attrs)
        found: list[str] = []
        plain.visit(found.append)
        for name in found:
            if isinstance(plain[name], h5py.Dataset):
                small.create_dataset(name, data=plain[name][()], chunks=True, compression="gzip")
    for lazy in (True, False):
        check_same(load(tmp_path / "small.hdf5", lazy=lazy), episodes)


@pytest.mark.extra("offline")
def test_array_records_are_read_like_tf_records(tmp_path: Path) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    from uniarena.data import records

    episodes, data = made(tmp_path, 4)
    convert(data, tmp_path / "toy", "rlds")
    [file] = (tmp_path / "toy").glob("*.tfrecord*")
    found = list(records.tf_records(file))
    file.unlink()
    writer = module.ArrayRecordWriter(
        str(tmp_path / "toy" / "toy-train.array_record-00000-of-00001"), "group_size:1"
    )
    for each in found:
        writer.write(each)
    writer.close()
    check_same(load(tmp_path / "toy"), episodes, both=False)


@pytest.mark.extra("minari")
def test_minari_reads_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    rng = np.random.default_rng(0)
    observed, acted = OBSERVATIONS["dict"], ACTIONS["discrete"]
    episodes = random_episodes(rng, observed, acted, 3)
    data = load(record(tmp_path / "a.npz", episodes, observed, acted))
    convert(data, tmp_path / "minari" / "toy-v0", "minari")
    found = list(minari.load_dataset("toy-v0").iterate_episodes())
    for theirs, ours in zip(found, episodes, strict=True):
        np.testing.assert_array_equal(theirs.actions, ours.action - 1)
        np.testing.assert_array_equal(theirs.observations["pos"], ours.obs["pos"])
        np.testing.assert_array_equal(theirs.terminations, ours.terminated)
    check_same(load("toy-v0"), episodes)  # found by its name, as Minari finds it
