"""What is written is there whole or not at all, and what a format cannot hold is refused or told before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.offline.episodes import ACTIONS, OBSERVATIONS, check_same, random_episodes, record
from uniarena.data import DataError, Dataset, Episode, load, report
from uniarena.data.convert import convert
from uniarena.data.writing import refuse_unwritable

OFFLINE = pytest.mark.extra("offline")
KINDS = ["npz", *(pytest.param(kind, marks=OFFLINE) for kind in ("d4rl", "minari", "rlds"))]
BOX = spaces.Box(-1, 1, (2,), np.float32)


def data_of(
    tmp_path: Path, observed: Any = OBSERVATIONS["vector"], count: int = 3
) -> tuple[list[Episode], Dataset]:
    episodes = random_episodes(np.random.default_rng(0), observed, ACTIONS["box"], count)
    return episodes, load(record(tmp_path / "a.npz", episodes, observed, ACTIONS["box"]))


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Larger files cannot be written, as on a disk that is full."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 8000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path: Path, kind: str, size: int) -> None:
    episodes, data = data_of(tmp_path, count=200)
    with files_of_at_most(size), pytest.raises(DataError, match="cannot be written: File too large") as error:
        convert(data, tmp_path / "b", kind)
    assert error.value.where == str(tmp_path / "b") and error.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    convert(data, tmp_path / "b", kind)
    check_same(load(tmp_path / "b"), episodes, both=kind != "rlds")


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_that_cannot_be_written_to(tmp_path: Path, kind: str) -> None:
    _, data = data_of(tmp_path)
    for place in (tmp_path / "a.npz" / "b", Path("/proc/b")):
        with pytest.raises(DataError, match="cannot be written"):
            convert(data, place, kind)


def test_what_another_process_left_is_taken_away(tmp_path: Path) -> None:
    episodes, data = data_of(tmp_path)
    (tmp_path / ".b.npz.part").mkdir()
    (tmp_path / ".b.npz.part" / "data").write_text("half")
    convert(data, tmp_path / "b.npz", "npz")
    check_same(load(tmp_path / "b.npz"), episodes)
    assert {path.name for path in tmp_path.iterdir()} == {"a.npz", "b.npz"}


def test_trying_a_place_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("there")
    refuse_unwritable(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_text() == "there" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(DataError, match="cannot be written"):
        refuse_unwritable(tmp_path / "a.npz" / "b.npz")


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    from uniarena.data.audit import audit

    _, data = data_of(tmp_path)
    with pytest.raises(DataError, match="cannot be written"):
        report.write(audit(data), tmp_path / "a.npz" / "page.html")


@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        (("a", "a/b"), {"d4rl", "minari", "rlds"}),
        (("a/b", "c"), {"d4rl", "minari", "rlds"}),
        (("a.b", "c"), {"d4rl", "rlds"}),
        (("_index_0", "_index_1"), {"minari"}),
        (("", "c"), {"d4rl", "minari", "rlds"}),
        ((".", "c"), {"d4rl", "minari", "rlds"}),
    ],
)
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=OFFLINE) for kind in ("d4rl", "minari", "rlds")])
@pytest.mark.parametrize("within", [False, True])
def test_keys_that_a_format_cannot_keep(
    tmp_path: Path, keys: tuple[str, ...], refused: set[str], kind: str, within: bool
) -> None:
    space = spaces.Dict([(key, BOX) for key in keys])
    episodes, data = data_of(tmp_path, spaces.Dict(inner=space) if within else space)
    if kind not in refused:
        convert(data, tmp_path / "b", kind)
        check_same(load(tmp_path / "b"), episodes, both=kind != "rlds")
        return
    with pytest.raises(DataError, match="observations have the key") as error:
        convert(data, tmp_path / "b", kind)
    assert "--format npz" in error.value.hint and not (tmp_path / "b").exists()


def test_keys_that_nothing_keeps_apart(tmp_path: Path) -> None:
    space = spaces.Dict([("a.b", BOX), ("a", spaces.Dict(b=BOX))])
    _, data = data_of(tmp_path)
    with pytest.raises(DataError, match=r"several parts that are called a\.b"):
        convert(Dataset(data.source, data.rows, space, data.action_space, True), tmp_path / "b.npz", "npz")


@OFFLINE
def test_what_rlds_loses_of_rewards_is_told(tmp_path: Path) -> None:
    obs, flags = np.zeros((5, 3), np.float32), np.zeros(4, bool)
    ended = flags | (np.arange(4) == 3)
    reward = np.array([0.5, 1 + 2.0**-30, 1e300, np.nan])
    episode = Episode(obs, np.zeros((4, 2), np.float32), reward, flags, ended, True)
    path = record(tmp_path / "a.npz", [episode], OBSERVATIONS["vector"], ACTIONS["box"])
    assert convert(load(path, lazy=True), tmp_path / "b", "rlds") == [
        "1 rewards at all: they are too large for float32",
        "the exact value of 1 rewards: float32 rounds them, by 9.31e-10 at most",
    ]
