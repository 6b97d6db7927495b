"""One process on a run's folder: the second is told who has it; a crash leaves no lock behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from uniarena import checkpoint, provenance
from uniarena.checkpoint import CheckpointError, lock, locked

HOLD = """
import os, sys
from uniarena.checkpoint import locked
with locked(sys.argv[1]):
    if len(sys.argv) > 2 and os.fork() == 0:
        import signal; signal.pause()  # a worker that outlives its parent
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path, *more: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(checkpoint.__file__).parents[2])},
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()


def test_a_second_process_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        with pytest.raises(CheckpointError) as caught, locked(tmp_path):
            pass
        assert f"process {process.pid} on {socket.gethostname()}" in str(caught.value)
        assert caught.value.path == tmp_path
    finally:
        end(process)


def test_a_killed_process_leaves_no_lock_behind(tmp_path: Path) -> None:
    end(holder(tmp_path))
    assert (tmp_path / lock.LOCK).exists()  # the file; it means nothing
    with locked(tmp_path):
        assert json.loads((tmp_path / lock.LOCK).read_text())["pid"] == os.getpid()
    assert not (tmp_path / lock.LOCK).exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_that_outlives_a_killed_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    process = holder(tmp_path, "fork")
    try:
        process.kill()
        process.wait()
        with locked(tmp_path):
            pass
    finally:
        end(process)


def test_the_same_process_cannot_take_it_twice_but_again(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(CheckpointError, match="is in use by process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_exception_lets_it_go(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        _ = 1 / 0
    with locked(tmp_path):
        pass


def test_a_file_deleted_by_the_last_holder_is_not_mistaken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, taken = lock._try, []

    def take_late(descriptor: int) -> bool:
        if not taken:  # between opening and locking it, whoever had it went
            (tmp_path / lock.LOCK).unlink()
        taken.append(descriptor)
        return take(descriptor)

    monkeypatch.setattr(lock, "_try", take_late)
    with locked(tmp_path):
        assert len(taken) == 2
        with pytest.raises(CheckpointError, match="is in use"), locked(tmp_path):
            pass


def test_a_file_system_without_locks_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(descriptor: int) -> bool:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lock, "_try", refuse)
    with locked(tmp_path):
        pass
    assert "cannot be locked (Operation not supported)" in caplog.text


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with (
        pytest.raises(CheckpointError, match=r"Read-only file system\. Make the run folder writable"),
        locked(tmp_path),
    ):
        pass


def test_the_lock_alone_does_not_make_a_folder_a_run(tmp_path: Path) -> None:
    assert provenance.LOCK == lock.LOCK
    folder = tmp_path / "run"
    folder.mkdir()
    with checkpoint.locked(folder):
        provenance.discard_if_empty(folder)
    assert not folder.exists()
