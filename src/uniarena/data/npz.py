"""NumPy archives as columns. Nothing is unpickled: arrays of objects are left unread."""

from __future__ import annotations

import lzma
import math
import re
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from uniarena.data.columns import BLOCK, ArrayColumn, Column, Keeping, Store
from uniarena.data.errors import DataError
from uniarena.data.unread import Unread

_LOCAL_HEADER = 30
"""Bytes of a zip entry's own header before its name (APPNOTE 4.3.7)."""
AGAIN = "write or copy it again"
DAMAGE = (
    zipfile.BadZipFile,
    EOFError,
    RuntimeError,  # encrypted, or of a method that is not known
    struct.error,
    zlib.error,
    lzma.LZMAError,
    ValueError,
)
"""What zipfile raises of an archive that it cannot read."""


def columns(path: Path, keeping: Keeping) -> dict[str, Column]:
    """Name → column of every array of an archive.

    An array that fits is read and its checksum compared; a larger one is mapped where the archive stores it
    uncompressed, and unpacked into a file where not. Single values and arrays of objects are an error only where they
    are needed.

    Raises:
        DataError: no archive, one that is cut short or damaged, or with two arrays of one name.
    """
    found: dict[str, Column] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.filename.endswith(".npy"):
                    name = info.filename.removesuffix(".npy")
                    if name in found:
                        raise DataError(
                            f"holds two arrays that are both called {name}",
                            path,
                            "write it again with one of them",
                        )
                    found[name] = _column(archive, info, path, keeping)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"cannot be read: {error}", path, AGAIN) from error
    except DAMAGE as error:
        raise DataError(f"is no NumPy archive, or is damaged or cut short ({error})", path, AGAIN) from error
    if not found:
        raise DataError(
            "holds no arrays", path, "np.savez_compressed(path, observations=…, actions=…, …) writes some"
        )
    return found


def _column(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, keeping: Keeping) -> Column:
    where = f"{path} {info.filename}"
    with archive.open(info) as file:
        shape, fortran, dtype = _header(file, where)
        if min(shape, default=0) < 0:
            raise DataError(f"its header says the shape {shape}, which no array has", where, AGAIN)
        if (error := _odd(shape, dtype, where)) is not None:
            return Unread(shape or (0,), dtype, error)
        size = math.prod(shape) * dtype.itemsize
        if fortran or keeping.fits(size):
            data = file.read(size)
            if len(data) != size or file.read(1):
                raise DataError(
                    f"has {len(data):,} bytes of the {size:,} that its header promises", where, AGAIN
                )
            array = np.frombuffer(data, dtype)
            return ArrayColumn(array.reshape(shape[::-1]).T if fortran else array.reshape(shape))
        if info.compress_type == zipfile.ZIP_STORED and size:
            offset = _data_offset(path, info) + file.tell()
            if offset + size > path.stat().st_size:
                raise DataError(f"its header promises {size:,} bytes, more than the file has", where, AGAIN)
            return ArrayColumn(np.memmap(path, dtype, "r", offset, shape))
        return _unpacked(file, shape, dtype, keeping, where)


def _odd(shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> DataError | None:
    """Why an array cannot be rows of steps; None: it can, or whoever needs it sees."""
    if dtype.hasobject:
        return DataError(
            "is an array of objects, which could run code when it is read",
            where,
            "write it as numbers; sequences of unequal length as one array and their lengths",
        )
    if not shape:
        return DataError(
            "is a single value; expected one row a step", where, "write it again, one row a step"
        )
    if not dtype.itemsize:
        return DataError(f"holds values of no size ({dtype}); expected numbers", where, "write it as float32")
    return None


def _unpacked(
    file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any], keeping: Keeping, where: str
) -> Column:
    row = math.prod(shape[1:]) * dtype.itemsize
    store, left = Store(keeping, shape[1:], dtype), shape[0] if row else 0
    while left:
        count = min(left, max(1, BLOCK // row))
        data = file.read(count * row)
        if len(data) != count * row:
            raise DataError(f"ends {left * row - len(data):,} bytes before its header says", where, AGAIN)
        store.append(np.frombuffer(data, dtype).reshape(count, *shape[1:]))
        left -= count
    return store.finish()


def _header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError) as error:
        reason = re.sub(r"<\S+ object at 0x[0-9a-f]+>", "an expression where a value belongs", str(error))
        raise DataError(f"is no array: {reason or 'its header is damaged'}", where, AGAIN) from error
    return shape, fortran, dtype


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where an entry's bytes begin in the file."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        name, extra = struct.unpack("<HH", file.read(_LOCAL_HEADER)[26:30])
    return info.header_offset + _LOCAL_HEADER + int(name) + int(extra)


class Writer:
    """Writes an archive array by array, uncompressed so that it can be mapped, and the same bytes for the same data.

    Args:
        path: of the archive.
    """

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True)

    def put(self, name: str, column: Column) -> None:
        """Add a column under a name."""
        header = {
            "descr": np.lib.format.dtype_to_descr(column.dtype),
            "fortran_order": False,
            "shape": column.shape,
        }
        info = zipfile.ZipInfo(f"{name}.npy")  # with a date that is always the same
        with self._archive.open(info, "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(file, header)
            for _, rows in column.blocks():
                file.write(np.ascontiguousarray(rows).data)

    def close(self) -> None:
        """Finish the file."""
        self._archive.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
