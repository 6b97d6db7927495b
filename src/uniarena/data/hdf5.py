"""HDF5 files as trees of columns. The only file that imports h5py."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from uniarena.data.columns import ArrayColumn, Column, OddColumn, SourceColumn
from uniarena.data.errors import EXTRA, DataError

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

    One that has no rows to read says why in `odd`, which is an error only where it is needed.
    """
    shape, dtype = dataset.shape, dataset.dtype
    where = f"{path} {dataset.name}"
    stored = dataset.is_virtual or dataset.external or dataset.id.get_storage_size()
    if not shape or not (stored or 0 in shape):
        claimed = "" if not shape else f"claims {shape[0]:,} rows, and none of them was ever written"
        odd = claimed or f"is {'a single value' if shape == () else 'empty'}; expected one row a step"
        return OddColumn(shape or (0,), dtype, odd, where)
    if dtype.kind in "biuf":
        offset = dataset.id.get_offset()
        whole = offset is not None and dataset.chunks is None and not dataset.is_virtual
        if whole and 0 not in shape and dataset.file.userblock_size == 0:
            return ArrayColumn(np.memmap(path, dtype, "r", offset, shape))
    row = math.prod(shape[1:]) * dtype.itemsize

    def read(start: int, stop: int) -> np.ndarray:
        with reading(f"rows {start:,} to {stop:,}", where):
            if (size := row * (stop - start)) > psutil.virtual_memory().available:
                raise DataError(f"claims {size:,} bytes at once, more than memory holds", where, AGAIN)
            return np.asarray(dataset[start:stop])

    return SourceColumn(shape, dtype, read)


def create(path: Path) -> Any:
    """A new file, open for writing."""
    return package().File(path, "w")
