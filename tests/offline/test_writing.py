"""What is written is there whole or not at all, and what a format cannot hold is refused or told before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.offline.episodes import ACTIONS, OBSERVATIONS, check_same, keyed, random_episodes, record
from uniarena.data import DataConfig, DataError, Dataset, Episode, load, report
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
    assert convert(load(path, lazy=True), tmp_path / "b", "rlds").not_said == [
        "1 reward at all: it is too large for float32",
        "the exact value of 1 reward: float32 rounds it, by 9.31e-10 at most",
    ]


def unordered(tmp_path: Path, **changed: Any) -> Path:
    """30 transitions that do not follow each other, in three episodes by their flags."""
    rng, rows = np.random.default_rng(0), np.arange(30)
    arrays = {
        "observations": rng.normal(size=(30, 3)),
        "next_observations": rng.normal(size=(30, 3)),
        "actions": rng.uniform(-1, 1, (30, 2)),
        "rewards": np.ones(30),
        "terminals": np.isin(rows, (9, 29)),
        "timeouts": rows == 19,
    }
    return keyed(tmp_path / "steps.npz", **{**arrays, **changed})


@pytest.mark.parametrize("kind", KINDS)
def test_that_transitions_without_order_become_episodes_is_told(tmp_path: Path, kind: str) -> None:
    data = load(unordered(tmp_path), lazy=True)
    assert (len(np.unique(data.rows.found)), data.episodes, int(data.truncated.sum())) == (3, 30, 1)
    told = convert(data, tmp_path / "b", kind).not_said
    again = load(tmp_path / "b")
    if kind == "d4rl":  # rows with next observations need no order there either
        assert not told and len(np.unique(again.rows.found)) == 3 and again.truncated.sum() == 1
    else:
        assert again.episodes == 30 and again.truncated.sum() == 28
        assert told[0] == (
            "that transitions without order belong together: 3 episodes of them become 30, and 27 transitions that "
            "nothing cut off are read as truncated"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_that_pieces_become_episodes_is_told(tmp_path: Path, kind: str) -> None:
    walk = np.cumsum(np.random.default_rng(0).normal(size=(31, 3)), axis=0)
    reward = np.where(np.isin(np.arange(30), (4, 14)), np.nan, 1.0)
    path = unordered(tmp_path, observations=walk[:-1], next_observations=walk[1:], rewards=reward)
    data = load(DataConfig(path=str(path), nonfinite="drop"), lazy=True)
    assert (len(np.unique(data.rows.found)), data.episodes) == (3, 5)
    lost = (
        "that 5 pieces belong to 3 episodes, within which steps were left out: each piece is an episode there"
    )
    assert convert(data, tmp_path / "b", kind) == ([lost], [])
    assert len(np.unique(load(tmp_path / "b").rows.found)) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_training_refuses_are_told(tmp_path: Path, kind: str) -> None:
    walk = np.cumsum(np.random.default_rng(0).normal(size=(31, 3)), axis=0)
    walk[3, 0], walk[30] = np.nan, 1e300
    action, reward = np.zeros((30, 2)), np.ones(30)
    action[7], reward[:2] = np.inf, (np.inf, 1e300)
    path = unordered(
        tmp_path, observations=walk[:-1], next_observations=walk[1:], actions=action, rewards=reward
    )
    told = convert(load(path, lazy=True), tmp_path / "b", kind).warnings
    rest = "values that are NaN, infinite or too large for float32; training refuses such steps (nonfinite: drop leaves"
    seen = {"observations": "2 rows have"}
    if kind == "d4rl":
        seen = {"observations": "1 row has", "next_observations": "2 rows have"}
    seen = {"rewards": "2 rows have", **seen, "actions": "1 row has"}
    assert [each.partition(" them out")[0] for each in told] == [f"{k}: {v} {rest}" for k, v in seen.items()]
