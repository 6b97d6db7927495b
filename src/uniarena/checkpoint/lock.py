"""One process on one run folder. The lock is the system's, so that it ends with its process, however that ends."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from uniarena.checkpoint.manifest import CheckpointError

LOCK = "run.lock"
"""The locked file inside a run's folder. It says who holds it; that it is there means nothing."""

_log = logging.getLogger("uniarena")
_held: dict[int, Path] = {}  # descriptors of this process
_SIZE = 4096
ATTEMPTS = 10


@contextlib.contextmanager
def locked(folder: Path | str) -> Iterator[None]:
    """Hold the lock of a run's folder. File systems without locks are warned of, and nothing is locked there.

    Raises:
        CheckpointError: another process holds it (named by its number and host), or the folder cannot be written.
    """
    path = Path(folder) / LOCK
    descriptor = _taken(path)
    try:
        if descriptor in _held:
            _sign(descriptor)
        yield
    finally:
        if _held.pop(descriptor, None) is not None and sys.platform != "win32":
            with contextlib.suppress(OSError):  # before it is let go: nobody else can have it yet
                path.unlink()
        with contextlib.suppress(OSError):
            os.close(descriptor)
        if sys.platform == "win32":
            with contextlib.suppress(OSError):
                path.unlink()


def _taken(path: Path) -> int:
    """Descriptor of the file, locked unless there are no locks here; `_held` tells."""
    for _ in range(ATTEMPTS):
        descriptor = _open(path)
        try:
            free = _try(descriptor)
        except OSError as error:
            _log.warning(
                "%s cannot be locked (%s): see to it that no second process uses it",
                path.parent,
                error.strerror,
            )
            return descriptor
        if free and _is_at(descriptor, path):
            _held[descriptor] = path
            return descriptor
        who = _holder(descriptor)
        os.close(descriptor)
        if not free:
            break  # else whoever let it go deleted the file that was opened: open the next one
    raise CheckpointError(path.parent, f"is in use by {who}; wait for it, or stop it first.")


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        raise CheckpointError(
            path,
            f"cannot be written: {error.strerror}. Make the run folder writable, or work on a copy of it.",
        ) from error


def _try(descriptor: int) -> bool:
    """Whether the lock was free.

    Raises:
        OSError: there are no locks on this file system.
    """
    if sys.platform == "win32":
        import msvcrt

        try:
            os.lseek(descriptor, _SIZE, os.SEEK_SET)  # beyond the text, which others may read
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _sign(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # a full disk: locked all the same
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())


def _holder(descriptor: int) -> str:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        who: Any = json.loads(os.read(descriptor, _SIZE))
        return f"process {who['pid']} on {who['host']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"


def _let_go_in_child() -> None:
    """A forked child shares the descriptor, and would keep the lock for as long as it lives."""
    for descriptor in list(_held):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
