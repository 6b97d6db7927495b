"""HDF5 files as trees of columns. The only file that imports h5py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from uniarena.data.columns import ArrayColumn, Column, SourceColumn
from uniarena.data.errors import EXTRA, DataError

DEEPEST = 12
"""Groups within groups; a file that links in circles has no end."""


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
        DataError: links into other files, or in circles.
    """
    if depth > DEEPEST:
        raise DataError(f"{group.name} lies more than {DEEPEST} groups deep", path, "does it link to itself?")
    h5py = package()
    found: dict[str, Any] = {}
    for name in group:
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise DataError(
                f"{group.name}/{name} is a link into another file ({link.filename})",
                path,
                "copy the data into one file",
            )
        item = group.get(name)
        if isinstance(item, h5py.Group):
            found[name] = tree(item, path, depth + 1)
        elif isinstance(item, h5py.Dataset):
            found[name] = column(item, path)
    return found


def column(dataset: Any, path: Path) -> Column:
    """A dataset as a column: mapped into memory where the file has it in one piece, else read when asked for."""
    shape, dtype = dataset.shape or (), dataset.dtype
    if shape and dtype.kind in "biuf":
        offset = dataset.id.get_offset()
        whole = offset is not None and dataset.chunks is None and not dataset.is_virtual
        if whole and 0 not in shape and dataset.file.userblock_size == 0:
            return ArrayColumn(np.memmap(path, dtype, "r", offset, shape))

    def read(start: int, stop: int) -> np.ndarray:
        try:
            return np.asarray(dataset[start:stop])
        except OSError as error:
            raise DataError(
                f"rows {start:,} to {stop:,} cannot be read: {error}",
                f"{path} {dataset.name}",
                "fetch or copy it again",
            ) from error

    return SourceColumn(shape or (0,), dtype, read)


def create(path: Path) -> Any:
    """A new file, open for writing."""
    return package().File(path, "w")
