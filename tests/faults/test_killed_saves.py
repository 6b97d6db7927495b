"""A process killed at any moment of a save, a replacement or a deletion: the newest whole checkpoint always loads."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from uniarena import checkpoint
from uniarena.checkpoint import CheckpointError, Segment, files

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process to kill")

CHANGES = ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.truncate")
"""Audit events of whatever touches the disk."""


def state(turn: int, size: int = 50) -> dict[str, Any]:
    """Every part says the same turn, but the first segment, which all turns share."""
    parts = [
        Segment({"x": torch.zeros(size)}, "0" * 32),
        Segment({"x": torch.full((size,), turn)}, f"{turn:032x}"),
    ]
    return {"agent": {"x": torch.full((size,), float(turn)), "turn": turn}, "buffer": {"parts": parts}}


def turn_of(folder: Path) -> int:
    """The turn that a whole checkpoint is of."""
    loaded, meta = checkpoint.load(folder)
    turn = loaded["agent"]["turn"]
    shared, own = loaded["buffer"]["parts"]
    assert meta == {"turn": turn, "kind": "step"}
    assert bool(
        (loaded["agent"]["x"] == turn).all() and (own["x"] == turn).all() and (shared["x"] == 0).all()
    )
    return int(turn)


def save(root: Path, name: str, turn: int, size: int = 50) -> None:
    checkpoint.save(root / name, state(turn, size), {"turn": turn, "kind": "step"})


def in_a_child(work: Callable[[], Any]) -> int:
    """Run in a forked process → its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    finally:
        os._exit(0)


def killed(pid: int) -> bool:
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def work_until(root: Path, moment: int) -> Callable[[], None]:
    """Save, replace, delete, sweep; and die at the `moment`-th change of the disk."""

    def work() -> None:
        left = moment

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            if event in CHANGES:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        files._fsync = lambda path: None  # the power does not fail here
        sys.addaudithook(count)
        save(root, "200", 2)
        save(root, "best", 3)
        checkpoint.remove(root / "100")
        checkpoint.sweep(root)

    return work


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_change_of_the_disk(stride: int, tmp_path: Path) -> None:
    template = tmp_path / "template"
    save(template, "100", 1)
    save(template, "best", 1)
    moment, seen = 0, set()
    while True:
        root = tmp_path / str(moment)
        shutil.copytree(template, root)
        if not killed(in_a_child(work_until(root, moment))):
            break
        turn = turn_of(checkpoint.newest(root)[0])
        checkpoint.sweep(root)
        assert turn_of(checkpoint.newest(root)[0]) == turn
        save(root, "300", 4)  # and the next save is as good as any
        assert turn_of(checkpoint.newest(root)[0]) == 4
        for path in root.iterdir():
            assert path.name.startswith(".best.") or turn_of(path)
        seen.add(turn)
        shutil.rmtree(root)
        moment += stride
    assert moment > 30 and {1, 2} <= seen <= {1, 2, 3}


def test_killed_with_half_of_a_file_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, "100", 1)

    def half(tensors: Any, path: Path) -> None:
        path.write_bytes(b"\0" * 100)
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        files.save_file = half
        save(tmp_path, "200", 2)

    assert killed(in_a_child(work))
    found, broken = checkpoint.newest(tmp_path)
    assert turn_of(found) == 1 and broken == []
    checkpoint.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["100"]


@pytest.mark.slow
def test_fifty_kills_at_random_times_while_a_large_state_is_written(tmp_path: Path) -> None:
    rng, size, turn = random.Random(0), 2_000_000, 1  # 24 MB
    started = time.perf_counter()
    save(tmp_path, "1", turn, size)
    longest = 3.0 * (time.perf_counter() - started)

    def work() -> None:
        for k in range(turn + 1, turn + 1000):
            save(tmp_path, str(k), k, size)
            for path in sorted(tmp_path.glob("[0-9]*"), key=lambda path: int(path.name))[:-2]:
                checkpoint.remove(path)

    for _ in range(50):
        pid = in_a_child(work)
        select.select([], [], [], rng.uniform(0.0, longest))
        os.kill(pid, signal.SIGKILL)
        assert killed(pid)
        checkpoint.sweep(tmp_path)
        after = turn_of(checkpoint.newest(tmp_path)[0])
        assert after >= turn
        turn = after
    assert turn > 10


@pytest.mark.slow
def test_more_than_two_gigabytes_are_saved_and_loaded(tmp_path: Path) -> None:  # case B52
    count = 2**31 // 4 + 2**20
    if psutil.virtual_memory().available < 8 * 2**30 or shutil.disk_usage(tmp_path).free < 4 * 2**30:
        pytest.skip("needs 8 GiB of memory and 4 GiB of disk")
    weight = torch.zeros(count)
    weight[-1] = 7.0
    checkpoint.save(tmp_path / "c", {"agent": {"embedding": weight}}, {})
    assert (tmp_path / "c" / "agent.safetensors").stat().st_size > 2**31
    loaded = checkpoint.load(tmp_path / "c")[0]["agent"]["embedding"]
    assert loaded.shape == (count,) and loaded[-1] == 7.0 and loaded[0] == 0.0
    os.truncate(tmp_path / "c" / "agent.safetensors", 2**31)
    with pytest.raises(CheckpointError, match="cut off"):
        checkpoint.load(tmp_path / "c")
