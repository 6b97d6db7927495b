"""Where replay memory lives (RAM, or files that the system pages), and whether it fits: said before it is taken."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil

from uniarena.config import ConfigError

log = logging.getLogger("uniarena")

MOST = 0.9
"""Part of the free memory that a buffer may take: networks and environments need some too."""

LOCK = "lock"
"""File beside memory-mapped rows that the process which uses them keeps locked."""

Shape = tuple[int, ...]


class Memory:
    """Gives zeroed arrays in RAM, or in files under `folder`, which go when this object does. What a killed process
    left there goes when the next buffer is made.

    Args:
        folder: where the files go; None: RAM.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder: Path | None = None
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            sweep(Path(folder))
            self.folder = Path(tempfile.mkdtemp(prefix="replay-", dir=folder))
            lock = _lock(self.folder / "new")
            if lock is not None:  # under this name only once it is locked: another process may be sweeping
                (self.folder / "new").rename(self.folder / LOCK)
            self._finalizer = weakref.finalize(self, _release, self.folder, lock)

    def zeros(self, name: str, shape: Shape, dtype: Any) -> np.ndarray:
        """A zeroed array; `name` is its file's."""
        if self.folder is None or 0 in shape:
            return np.zeros(shape, dtype)
        return np.asarray(np.memmap(self.folder / name, dtype, "w+", shape=shape))

    def grown(self, array: np.ndarray, name: str, count: int) -> np.ndarray:
        """The array with `count` rows instead of fewer; the new ones are zero."""
        shape = (count, *array.shape[1:])
        if self.folder is None or 0 in shape:
            larger = self.zeros(name, shape, array.dtype)
            larger[: len(array)] = array
            return larger
        with open(self.folder / name, "r+b") as file:
            file.truncate(int(np.prod(shape, dtype=np.int64)) * array.dtype.itemsize)
        return np.asarray(np.memmap(self.folder / name, array.dtype, "r+", shape=shape))


def sweep(folder: Path) -> None:
    """Remove the files of buffers whose process is gone: their locks went with it."""
    for left in folder.glob("replay-*"):
        lock = _lock(left / LOCK) if (left / LOCK).is_file() else None
        if lock is not None:
            _release(left, lock)


def _lock(path: Path) -> IO[bytes] | None:
    """A file, locked for as long as it stays open; None where another holds it, or the system has no such locks."""
    if os.name == "nt":
        return None
    import fcntl

    file = None
    try:
        file = path.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if file is not None:
            file.close()
        return None
    return file


def _release(folder: Path, lock: IO[bytes] | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        lock.close()


def gigabytes(count: float) -> str:
    """`0.71 GB`, `12 MB`, `3 kB`."""
    if count >= 1e8:
        return f"{count / 1e9:.2f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def available_ram() -> int:
    """Bytes that this process may still take: free memory, or what a container's limit leaves of it."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit.isdigit():
            free = min(free, max(0, int(limit) - psutil.Process().memory_info().rss))
    except OSError:  # no such limit on this system
        pass
    return free


def announce(
    rows: int, row_bytes: float, index_bytes: float, folder: str | Path | None, columns: int = 1
) -> None:
    """Log what `rows` transitions will take, and refuse what does not fit.

    Args:
        rows: transitions.
        row_bytes: of one transition; on disk where there is a `folder`.
        index_bytes: of the books kept about one, always in RAM.
        columns: how many at a time; one of these is beyond the capacity.

    Raises:
        ConfigError: RAM or disk is too small.
    """
    in_ram = rows * (index_bytes + (0 if folder else row_bytes))
    free = available_ram()
    stored = f"{rows:,} transitions of {row_bytes:,.0f} bytes"
    where = f"{gigabytes(rows * row_bytes)} in {folder} and " if folder else ""
    log.info(
        "replay memory: %s: %s%s of RAM (%s free), and one more observation for every episode that ends",
        stored,
        where,
        gigabytes(in_ram),
        gigabytes(free),
    )
    if in_ram > MOST * free:
        fits = max(0, int(MOST * free / max(1, in_ram) * rows) // columns - 1) * columns
        raise ConfigError(
            f"a replay buffer of {stored} needs {gigabytes(in_ram)} of RAM; {gigabytes(free)} are free",
            path="agent.buffer.capacity",
            hint=f"set agent.buffer.capacity to {fits:,} or less"
            + ("" if folder else ", or agent.buffer.memory_map to a folder on a fast disk")
            + "; images are smallest as uint8 and stacked by the frame_stack wrapper, whose frames are kept once",
        )
    if folder:
        _check_disk(rows * row_bytes, Path(folder), stored)


def _check_disk(need: float, folder: Path, stored: str) -> None:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if need > free:
        raise ConfigError(
            f"a replay buffer of {stored} needs {gigabytes(need)} in {folder}; {gigabytes(free)} are free there",
            path="agent.buffer.memory_map",
            hint="name a folder on a larger disk, or set a smaller agent.buffer.capacity",
        )
