"""HDF5 files as trees of columns. The only file that imports h5py."""

from __future__ import annotations

import contextlib
import io
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from uniarena.config.errors import listed
from uniarena.data.columns import ArrayColumn, Column, OddColumn, SourceColumn
from uniarena.data.errors import EXTRA, DataError, refuse_void
from uniarena.data.unread import Unread

SIGNATURE = b"\x89HDF\r\n\x1a\n"
DEEPEST = 12
"""Groups within groups; a file that links in circles has no end."""
AGAIN = "the file is damaged, or was not written to its end: fetch or copy it again"


def package() -> Any:
    """The module h5py.

    Raises:
        DataError: it is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise DataError("HDF5 files need the package h5py, which is not installed", hint=EXTRA) from error
    return h5py


@contextlib.contextmanager
def reading(what: str, where: str | Path) -> Iterator[None]:
    """Whatever h5py raises about a damaged file, as a `DataError`; it has no exceptions of its own.

    Args:
        what: is read, as a sentence begins: `rows 1 to 9`.
        where: the file, and inside of it the key.
    """
    try:
        yield
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{what} claims more than memory holds", where, AGAIN) from error
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, OverflowError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{what} cannot be read: {text}", where, AGAIN) from error


def opened(path: Path) -> Any:
    """An open file.

    Raises:
        DataError: it is damaged, cut short, or no HDF5.
    """
    h5py = package()
    refuse_void(path)
    try:
        return h5py.File(path, "r")
    except OSError as error:
        text = str(error)
        if "truncated" in text:
            raise DataError(
                f"the file is cut short ({text[text.find('truncated') :].rstrip(')')})",
                path,
                "fetch or copy it again",
            ) from error
        if "signature" in text:
            raise DataError("is no HDF5 file", path, "name the format: d4rl, minari, rlds or npz") from error
        raise DataError(f"cannot be opened as HDF5: {text}", path, "fetch or copy it again") from error


def tree(group: Any, path: Path, depth: int = 0) -> dict[str, Any]:
    """Every dataset of a group as a column, groups as dicts.

    Raises:
        DataError: links into other files, or in circles; damage.
    """
    if depth > DEEPEST:
        raise DataError(f"{group.name} lies more than {DEEPEST} groups deep", path, "does it link to itself?")
    h5py = package()
    found: dict[str, Any] = {}
    with reading(f"the list of what {group.name} holds", path):
        names = list(group)
    for name in names:
        where = f"{group.name.rstrip('/')}/{name}"
        with reading(where, path):
            link, item = group.get(name, getlink=True), None
            if not isinstance(link, h5py.ExternalLink):
                item = group.get(name)
        if isinstance(link, h5py.ExternalLink):
            raise DataError(
                f"{where} is a link into another file ({link.filename})",
                path,
                "copy the data into one file",
            )
        if isinstance(item, h5py.Group):
            found[name] = tree(item, path, depth + 1)
        elif isinstance(item, h5py.Dataset):
            with reading(where, path):
                found[name] = column(item, path)
    return found


def attribute(file: Any, name: str, path: Path) -> Any:
    """An attribute of a file; None where it has none of that name."""
    with reading(f"the attribute {name}", path):
        return file.attrs.get(name)


def column(dataset: Any, path: Path) -> Column:
    """A dataset as a column: mapped into memory where the file has it in one piece, else read when asked for.

    One that has no rows to read, or not all of those that it claims, says why, which is an error only where it is
    needed.

    Raises:
        DataError: its values lie in other files.
    """
    shape, dtype = dataset.shape, dataset.dtype
    where = f"{path} {dataset.name}"
    if dataset.is_virtual or dataset.external:
        kind = "a virtual dataset" if dataset.is_virtual else "stored externally"
        files = _files(dataset)
        raise DataError(
            f"{dataset.name} is {kind}: its values lie in other files ({files})",
            path,
            "copy the data into one file",
        )
    if not shape or not (dataset.id.get_storage_size() or 0 in shape):
        claimed = "" if not shape else f"claims {shape[0]:,} rows, and none of them was ever written"
        odd = claimed or f"is {'a single value' if shape == () else 'empty'}; expected one row a step"
        return OddColumn(shape or (0,), dtype, odd, where)
    if dtype.kind in "biuf":
        offset = dataset.id.get_offset()
        whole = offset is not None and dataset.chunks is None
        if whole and 0 not in shape and dataset.file.userblock_size == 0:
            return ArrayColumn(np.memmap(path, dtype, "r", offset, shape))
    row = math.prod(shape[1:]) * dtype.itemsize

    def read(start: int, stop: int) -> np.ndarray:
        with reading(f"rows {start:,} to {stop:,}", where):
            if (size := row * (stop - start)) > psutil.virtual_memory().available:
                raise DataError(f"claims {size:,} bytes at once, more than memory holds", where, AGAIN)
            return np.asarray(dataset[start:stop])

    found = SourceColumn(shape, dtype, read)
    if dataset.chunks is None or 0 in shape or (written := _written(dataset)) == shape[0]:
        return found
    error = DataError(f"claims {shape[0]:,} rows, and {written:,} of them were written", where, AGAIN)
    return Unread(shape, dtype, error, found)


def _written(dataset: Any) -> int:
    """Rows of which the file has every chunk. What was never written would be read as zeros."""
    across = [-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)]
    if dataset.id.get_num_chunks() == math.prod(across):
        return int(dataset.shape[0])
    seen: Counter[int] = Counter()

    def count(chunk: Any) -> None:
        seen[int(chunk.chunk_offset[0])] += 1

    dataset.id.chunk_iter(count)
    whole = [start for start, chunks in seen.items() if chunks == math.prod(across[1:])]
    return sum(min(dataset.chunks[0], dataset.shape[0] - start) for start in whole)


def _files(dataset: Any) -> str:
    """The other files that a dataset's values lie in."""
    with reading("the list of its files", dataset.name):
        found = (
            [source.file_name for source in dataset.virtual_sources()]
            if dataset.is_virtual
            else [name for name, *_ in dataset.external]
        )
    return listed({name.decode() if isinstance(name, bytes) else str(name) for name in found})


def signed(path: Path) -> bool:
    """Whether a file has HDF5's signature: at its beginning, or behind a block of its writer's own, at 512, 1024,
    2048, … bytes (HDF5 File Format Specification 3.0, II.A).
    """
    size, at = path.stat().st_size, 0
    with path.open("rb") as file:
        while at + len(SIGNATURE) <= size:
            file.seek(at)
            if file.read(len(SIGNATURE)) == SIGNATURE:
                return True
            at = max(512, 2 * at)
    return False


class Target:
    """A file that is being written.

    Args:
        file: of h5py.
        disk: what it is written to.
    """

    def __init__(self, file: Any, disk: _Disk) -> None:
        self._file, self._disk = file, disk

    def root(self) -> Any:
        """The group that holds everything.

        Raises:
            OSError: something could not be written.
        """
        self._disk.check()
        return self._file["/"]

    def create_group(self, name: str) -> Any:
        """A new group.

        Raises:
            OSError: something could not be written.
        """
        return self.root().create_group(name)


class _Disk:
    """A file as HDF5 writes to it, which never learns that it could not.

    The library crashes when it closes a file that it failed to write. So the first error is kept for `check`, and what
    would have been written from then on stays in memory, which is little if `check` is asked now and then.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file, self._at, self._end = file, 0, 0
        self._error: OSError | None = None
        self._kept: list[tuple[int, bytes]] = []

    def check(self) -> None:
        """Raise what went wrong."""
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size, start = len(rest), self._at
        while rest and self._error is None:
            try:
                self._file.seek(self._at + size - len(rest))
                rest = rest[self._file.write(rest) :]
            except OSError as error:
                self._error = error
        if rest:
            self._kept.append((start + size - len(rest), bytes(rest)))
        self._at += size
        self._end = max(self._end, self._at)
        return size

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        self._file.seek(self._at)
        count = self._file.readinto(view) or 0
        view[count:] = bytes(len(view) - count)
        for at, data in self._kept:
            low, high = max(at, self._at), min(at + len(data), self._at + len(view))
            if low < high:
                view[low - self._at : high - self._at] = data[low - at : high - at]
        self._at += len(view)
        return len(view)

    def read(self, size: int) -> bytes:
        buffer = bytearray(size)
        self.readinto(buffer)
        return bytes(buffer)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._end)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def truncate(self, size: int) -> int:
        try:
            self._file.truncate(size)
        except OSError as error:
            self._error = self._error or error
        self._end = size
        return size

    def flush(self) -> None:
        pass  # nothing waits here


@contextlib.contextmanager
def create(path: Path) -> Iterator[Target]:
    """A new file, open for writing.

    Raises:
        OSError: it cannot be written.
    """
    h5py = package()
    with io.FileIO(path, "w+") as raw:
        disk = _Disk(raw)
        with h5py.File(disk, "w") as file:
            yield Target(file, disk)
        disk.check()
