"""Columns: N values of one leaf, in memory or read from a file when they are asked for."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil

from uniarena.batch import Tree, tree_leaves, tree_map
from uniarena.data.errors import DataError

BLOCK = 2**24
"""Bytes read at a time where a whole column is walked through."""
GAP = 64
"""Rows between two that are wanted, up to which one read fetches both."""


class Column:
    """`[N, *row]` values.

    Args:
        shape: with N.
        dtype: as `read` gives it.

    Attributes:
        resident: a random row costs no more than memory, or a page of a mapped file.
        wide: the same rows in the file's own precision, where it has more than is read here; they may be too large.
    """

    resident = False
    wide: Column | None = None

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        self.shape: tuple[int, ...] = tuple(int(n) for n in shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return self.shape[1:]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start … stop − 1."""
        raise NotImplementedError

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Rows `[M]` in any order, as new memory."""
        out = np.empty((len(rows), *self.row_shape), self.dtype)
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        cuts = np.flatnonzero(np.diff(ordered) > GAP) + 1
        for part in np.split(np.arange(len(rows)), cuts):
            if len(part):
                low = int(ordered[part[0]])
                out[order[part]] = self.read(low, int(ordered[part[-1]]) + 1)[ordered[part] - low]
        return out

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, rows) of the whole column, a few megabytes at a time."""
        size = max(1, BLOCK // max(1, self.nbytes // max(1, len(self))))
        for start in range(0, len(self), size):
            yield start, self.read(start, min(len(self), start + size))

    def all(self) -> np.ndarray:
        """The whole column."""
        return self.read(0, len(self))


class ArrayColumn(Column):
    """An array, or a file that the system maps into memory."""

    resident = True

    def __init__(self, array: np.ndarray) -> None:
        super().__init__(array.shape, array.dtype)
        self.array = array

    def read(self, start: int, stop: int) -> np.ndarray:
        return np.asarray(self.array[start:stop])

    def take(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self.array.take(rows, axis=0))


class SourceColumn(Column):
    """What a function reads: `read(start, stop)` gives the rows between."""

    def __init__(self, shape: Sequence[int], dtype: Any, read: Callable[[int, int], np.ndarray]) -> None:
        super().__init__(shape, dtype)
        self._read = read

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._read(start, stop)


class OddColumn(Column):
    """What has no rows to read, of a file that may not need it.

    Args:
        shape, dtype: as the file claims.
        odd: why, for the error of whoever reads it.
        where: the file and the key.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, odd: str, where: str) -> None:
        super().__init__(shape, dtype)
        self.odd, self.where = odd, where

    def read(self, start: int, stop: int) -> np.ndarray:
        raise DataError(self.odd, self.where, "write it again, one row a step")


class PartsColumn(Column):
    """Columns one after the other; all have the same shape of a row."""

    def __init__(self, parts: Sequence[Column]) -> None:
        self._parts = list(parts)
        self._starts = np.cumsum([0, *map(len, self._parts)])
        dtype = np.result_type(*(part.dtype for part in self._parts))
        super().__init__((int(self._starts[-1]), *self._parts[0].row_shape), dtype)

    def read(self, start: int, stop: int) -> np.ndarray:
        out = np.empty((stop - start, *self.row_shape), self.dtype)
        k = int(np.searchsorted(self._starts, start, "right")) - 1
        while start < stop:
            first, last = int(self._starts[k]), min(stop, int(self._starts[k + 1]))
            if last > start:
                out[len(out) - (stop - start) : len(out) - (stop - last)] = self._parts[k].read(
                    start - first, last - first
                )
                start = last
            k += 1
        return out


class DerivedColumn(Column):
    """A column whose values are changed when they are read: cast, counted from another start, decoded.

    Args:
        column: what is read.
        change: rows `[M, …]` → rows `[M, *row_shape]` of `dtype`.
        row_shape, dtype: of what comes out.
    """

    def __init__(
        self, column: Column, change: Callable[[np.ndarray], np.ndarray], row_shape: Sequence[int], dtype: Any
    ) -> None:
        super().__init__((len(column), *row_shape), dtype)
        self._column, self._change, self.resident = column, change, column.resident
        self.wide = column.wide

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._change(self._column.read(start, stop))

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self._change(self._column.take(rows))


class Keeping:
    """Where data that is read goes: memory up to a limit, files beyond it, which go when this object does.

    Args:
        limit: bytes in memory, all columns together; None: a quarter of what is free.
        folder: where the files go; None: the system's folder for temporary files.
    """

    def __init__(self, limit: int | None = None, folder: str | Path | None = None) -> None:
        self.limit = int(psutil.virtual_memory().available) // 4 if limit is None else limit
        self.used = 0
        self._parent, self._count = folder, 0
        self._folder: Path | None = None

    def fits(self, nbytes: int) -> bool:
        """Whether so much more may be kept in memory; if so it counts as kept."""
        if self.used + nbytes > self.limit:
            return False
        self.used += nbytes
        return True

    def file(self) -> Path:
        """A new name for a file."""
        folder = self._folder
        if folder is None:
            if self._parent is not None:
                Path(self._parent).mkdir(parents=True, exist_ok=True)
            folder = self._folder = Path(tempfile.mkdtemp(prefix="uniarena-data-", dir=self._parent))
            self._finalizer = weakref.finalize(self, shutil.rmtree, folder, True)
        self._count += 1
        return folder / f"column-{self._count}"

    def keep(self, column: Column) -> ArrayColumn:
        """A column in memory, or in a mapped file where it is too large; one that is mapped already may stay there."""
        if isinstance(column, ArrayColumn):
            if not isinstance(column.array, np.memmap) or not self.fits(column.nbytes):
                return column
            return ArrayColumn(np.array(column.array))
        store = Store(self, column.row_shape, column.dtype, column.nbytes)
        for _, rows in column.blocks():
            store.append(rows)
        return store.finish()

    def keep_tree(self, tree: Tree) -> Tree:
        """Every column of a tree, kept."""
        return tree_map(self.keep, tree)


class Store:
    """A column that grows: rows are appended, in memory as long as they fit, else in a file.

    Args:
        keeping: says what fits.
        row_shape, dtype: of a row.
        expected: bytes that are coming, where that is known.
    """

    def __init__(self, keeping: Keeping, row_shape: Sequence[int], dtype: Any, expected: int = 0) -> None:
        self._keeping, self._row_shape, self._dtype = keeping, tuple(row_shape), np.dtype(dtype)
        self._chunks: list[np.ndarray] = []
        self._rows = 0
        self._file: IO[bytes] | None = None
        self._reserved = expected
        if expected and not keeping.fits(expected):
            self._spill()

    def append(self, rows: np.ndarray, where: str = "") -> None:
        """Add rows `[M, *row_shape]`; `where` they are from, for the error.

        Raises:
            DataError: rows of another shape, or with values that the dtype does not have.
        """
        if rows.shape[1:] != self._row_shape:
            raise DataError(
                f"has rows of shape {rows.shape[1:]}, and those before are of {self._row_shape}",
                where,
                "write the data again, with rows of one shape",
            )
        rows = np.ascontiguousarray(exact(rows, self._dtype, where))
        self._rows += len(rows)
        if self._file is None and not self._reserved and not self._keeping.fits(rows.nbytes):
            self._spill()
        if self._file is None:
            self._chunks.append(rows.copy() if rows.base is not None else rows)
        else:
            self._file.write(rows.data)

    def _spill(self) -> None:
        self._file = self._keeping.file().open("wb")
        for chunk in self._chunks:
            self._file.write(chunk.data)
        self._chunks = []

    def finish(self) -> ArrayColumn:
        """The column."""
        shape = (self._rows, *self._row_shape)
        if self._file is None:
            empty = [np.empty((0, *self._row_shape), self._dtype)]
            return _kept(ArrayColumn(np.concatenate(self._chunks or empty)), self._keeping)
        self._file.close()
        if 0 in shape:
            return ArrayColumn(np.empty(shape, self._dtype))
        return _kept(ArrayColumn(np.memmap(self._file.name, self._dtype, "r", shape=shape)), self._keeping)


def _kept(column: ArrayColumn, keeping: Keeping) -> ArrayColumn:
    column.keeping = keeping  # type: ignore[attr-defined]  # its files live as long as what reads them
    return column


def exact(values: np.ndarray, wanted: np.dtype[Any], where: str) -> np.ndarray:
    """Values in another dtype; only floats may lose something, to smaller floats.

    Raises:
        DataError: a value that the dtype does not have.
    """
    if values.dtype == wanted or (values.dtype.kind == wanted.kind == "f"):
        return values.astype(wanted, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):  # what does not fit differs when it is cast back
        cast = values.astype(wanted)
        odd = cast.astype(values.dtype) != values
    if wanted.kind in "iu" and values.dtype.kind in "iu":  # wrapped around, a value would come back the same
        odd |= (values < np.iinfo(wanted).min) | (values > np.iinfo(wanted).max)
    if odd.any():
        raise DataError(
            f"holds {values[odd].flat[0]}, which is no {wanted}", where, "check the dtype of the data"
        )
    return cast


def joined(trees: Sequence[Tree], places: Sequence[str]) -> Tree:
    """Trees of columns as one, each leaf the columns one after the other.

    Args:
        trees: of the same parts.
        places: where each is from, for the error.

    Raises:
        DataError: one has other parts than the first, or rows of another shape.
    """
    first = trees[0]
    for tree, place in zip(trees, places, strict=True):
        if _parts(tree) != _parts(first):
            raise DataError(
                f"has {_parts(tree)}; {places[0]} has {_parts(first)}",
                place,
                "write the data again, with the same parts in every episode",
            )
    if isinstance(first, dict):
        return {
            key: joined([tree[key] for tree in trees], [f"{place}/{key}" for place in places])
            for key in first
        }
    if isinstance(first, tuple):
        return tuple(
            joined([tree[k] for tree in trees], [f"{place}/_index_{k}" for place in places])
            for k in range(len(first))
        )
    for column, place in zip(trees, places, strict=True):
        if column.row_shape != first.row_shape:
            raise DataError(
                f"has rows of shape {column.row_shape}; those of {places[0]} are of {first.row_shape}",
                place,
                "write the data again, with rows of one shape in every episode",
            )
    return PartsColumn(trees)


def _parts(tree: Tree) -> str:
    if isinstance(tree, dict):
        return f"the parts {', '.join(sorted(map(str, tree)))}"
    return f"{len(tree)} parts" if isinstance(tree, tuple) else "one array"


def nbytes(tree: Tree) -> int:
    """Bytes of all columns of a tree."""
    return sum(column.nbytes for column in tree_leaves(tree))
