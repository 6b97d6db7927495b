"""A ring is saved in segments: what did not change is shared by checkpoints side by side, and never stale."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffers.rollouts import generator, line, same, spec
from tests.buffers.streams import MODES, Stream
from tests.buffers.test_state import make
from tests.state.forging import seal
from uniarena import checkpoint
from uniarena.buffers import segments
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.checkpoint import files
from uniarena.checkpoint.reading import verify


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "LEAST", 1)
    monkeypatch.setattr(segments, "MOST", 8)


def filled(rows: int, capacity: int = 80) -> ReplayBuffer:
    buffer = ReplayBuffer(ReplayConfig(capacity=capacity), spec())
    feed(buffer, 0, rows)
    return buffer


def feed(buffer: ReplayBuffer, start: int, rows: int) -> None:
    """Rows whose observations count up, in one episode."""
    first = [0] if start == 0 else []
    buffer.add(line([float(k) for k in range(start, start + rows)], float(start + rows), first=first))


def save(root: Path, name: str, buffer: Any) -> Path:
    return checkpoint.save(root / name, {"buffer": buffer.state_dict()}, {})


def shared(one: Path, other: Path) -> list[str]:
    """Names of the files in `other` that are files of `one`."""
    inodes = {path.stat().st_ino for path in one.iterdir()}
    return sorted(path.name for path in other.iterdir() if path.stat().st_ino in inodes)


def contents(buffer: Any) -> list[Any]:
    return [copy.deepcopy(dict(part)) for part in buffer.state_dict()["ring"]["segments"]]


def test_only_touched_segments_are_written_again(tmp_path: Path) -> None:
    buffer = filled(80)  # 81 rows in 8 segments of 11 rows; the open row is the last
    first = save(tmp_path, "80", buffer)
    feed(buffer, 80, 5)  # places 80, 0 .. 4
    second = save(tmp_path, "85", buffer)
    assert shared(first, second) == [f"buffer@000{k}.safetensors" for k in range(1, 7)]
    assert shared(second, save(tmp_path, "again", buffer)) == [f"buffer@000{k}.safetensors" for k in range(8)]


def test_a_shared_file_keeps_the_digest_of_the_first_manifest(tmp_path: Path, monkeypatch: Any) -> None:
    buffer = filled(80)
    save(tmp_path, "80", buffer)
    hashed: list[str] = []
    digest = files.sha256
    monkeypatch.setattr(files, "sha256", lambda path: hashed.append(path.name) or digest(path))  # type: ignore[func-returns-value]
    second = save(tmp_path, "again", buffer)
    assert hashed == ["state.json", "buffer.safetensors"]
    verify(second)


def test_deleting_a_checkpoint_leaves_those_that_share_its_files_whole(tmp_path: Path) -> None:
    buffer = filled(80)
    first, second = save(tmp_path, "80", buffer), save(tmp_path, "again", buffer)
    checkpoint.remove(first)
    verify(second)
    third = save(tmp_path, "again", buffer)  # in its own place: linked from what it replaces
    verify(third)
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


@pytest.mark.parametrize("trouble", ["no links", "cut off", "gone", "symlink"])
def test_what_cannot_be_linked_is_written(
    tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = filled(80)
    first = save(tmp_path, "80", buffer)
    if trouble == "no links":

        def refuse(*args: object) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "link", refuse)
    for path in first.glob("buffer@*") if trouble != "no links" else ():
        if trouble == "cut off":
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.rename(path.with_name("aside.safetensors")) if trouble == "symlink" else path.unlink()
            if trouble == "symlink":
                path.symlink_to("aside.safetensors")
                break
    second = save(tmp_path, "again", buffer)
    verify(second)
    assert not any(path.is_symlink() for path in second.iterdir())
    again = ReplayBuffer(ReplayConfig(capacity=80), spec())
    again.load_state_dict(checkpoint.load(second)[0]["buffer"])
    assert same(buffer.sample(generator(1)), again.sample(generator(1)))


def test_a_resumed_ring_goes_on_sharing(tmp_path: Path) -> None:
    buffer = filled(80)
    first = save(tmp_path, "80", buffer)
    again = ReplayBuffer(ReplayConfig(capacity=80), spec())
    again.load_state_dict(checkpoint.load(first)[0]["buffer"])
    feed(again, 80, 5)
    assert len(shared(first, save(tmp_path, "85", again))) == 6


def test_a_copy_of_a_state_is_no_longer_tied_to_the_ring(tmp_path: Path) -> None:
    buffer = filled(20)
    kept = copy.deepcopy(buffer.state_dict())
    feed(buffer, 20, 70)
    buffer.load_state_dict(kept)  # as a rollback does
    assert buffer.ring.cursor == 20
    assert same(buffer.sample(generator(1)), filled(20).sample(generator(1)))


def test_going_back_in_memory_never_leads_to_stale_files(tmp_path: Path) -> None:
    buffer = filled(40)
    kept = copy.deepcopy(buffer.state_dict())
    feed(buffer, 40, 30)
    save(tmp_path, "70", buffer)
    buffer.load_state_dict(kept)
    buffer.add(line([-1.0] * 30, -1.0))
    again = ReplayBuffer(ReplayConfig(capacity=80), spec())
    again.load_state_dict(checkpoint.load(save(tmp_path, "other", buffer))[0]["buffer"])
    assert all(same(a, b) for a, b in zip(contents(buffer), contents(again), strict=True))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    mode=st.sampled_from(MODES[:3]),
    frames=st.sampled_from([1, 3]),
    prioritized=st.booleans(),
    her=st.booleans(),
    capacity=st.integers(4, 60),
    pauses=st.lists(st.integers(0, 6), min_size=2, max_size=5),
    lost=st.integers(0, 3),
)
def test_shared_files_always_hold_what_the_ring_holds(
    seed: int,
    mode: str,
    frames: int,
    prioritized: bool,
    her: bool,
    capacity: int,
    pauses: list[int],
    lost: int,
) -> None:
    stream = Stream(seed, 2, mode, frames)
    buffer = make(stream, prioritized, her, capacity)
    root = Path(tempfile.mkdtemp())
    try:
        for turn, pause in enumerate(pauses):
            for _ in range(pause):
                buffer.add(stream.rollout(3).clone())
            if turn == lost:
                buffer.state_dict()  # a save that failed
                continue
            again = make(stream, prioritized, her, capacity)
            state = checkpoint.load(save(root, str(turn), buffer))[0]["buffer"]
            again.load_state_dict(state)
            assert all(same(a, b) for a, b in zip(contents(buffer), contents(again), strict=True))
    finally:
        shutil.rmtree(root)


def test_a_checkpoint_of_the_first_format_is_migrated(tmp_path: Path) -> None:
    stream = Stream(5, 2, frames=3)
    buffer = make(stream, True, True, 50)
    for _ in range(40):
        buffer.add(stream.rollout(2).clone())
    state = buffer.state_dict()
    ring = state["ring"]
    parts = ring.pop("segments")
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    one = {name: joined.pop(name) for name in ("rows", "flags", "reward", "age", "until")}
    state["ring"] = {
        **ring,
        **one,
        "frames": [joined["frames.0"]],
        "finals": {"rows": joined["finals.rows"], "frames": [joined["finals.frames.0"]]},
    }
    old = checkpoint.save(tmp_path / "old", {"agent": {"x": 1}, "buffer": {"buffers": [state]}}, {})
    seal(old, lambda manifest: manifest.update(version=1))
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    loaded = checkpoint.load(old)[0]
    again = make(stream, True, True, 50)
    again.load_state_dict(loaded["buffer"]["buffers"][0])
    assert loaded["agent"] == {"x": 1} and same(buffer.sample(generator(3)), again.sample(generator(3)))
    assert before == {path.name: path.read_bytes() for path in old.iterdir()}
    save(tmp_path, "new", again)


@pytest.mark.parametrize("fault", ["too few", "too many", "dtype", "missing"])
def test_segments_that_do_not_fit_are_refused(fault: str) -> None:
    buffer = filled(40)
    state = copy.deepcopy(buffer.state_dict())
    parts = state["ring"]["segments"]
    if fault == "too few":
        parts.pop()
    elif fault == "too many":
        parts.append(parts[0])
    elif fault == "dtype":
        parts[0]["reward"] = parts[0]["reward"].double()
    else:
        del parts[0]["reward"]
    with pytest.raises((ValueError, KeyError), match=r"replay memory|reward"):
        filled(0 + 3).load_state_dict(state)
