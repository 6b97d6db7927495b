"""Writing whole or not at all: beside the place, and renamed when all of it is there."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from uniarena.data.errors import DataError

ELSEWHERE = "make room, or give a place that can be written to"


def refuse_taken(path: Path) -> None:
    """Refuse a place where something is already.

    Raises:
        DataError: something is.
    """
    if path.exists() or path.is_symlink():
        raise DataError("there is something already, and nothing is overwritten", path, "give another name")


def refuse_unwritable(path: Path) -> None:
    """Try whether a file can be written, before what it will hold is made. Its folders are made and stay.

    Raises:
        DataError: it cannot.
    """
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _part(path)
        _remove(part)
        part.touch()
        part.unlink()


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Where to write what is to lie at `path`: a name beside it, which takes its place when all is written. Whatever
    fails, nothing of it is left.

    Raises:
        DataError: it cannot be written.
    """
    part = _part(path)
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(part)  # of a process that was killed
        try:
            yield part
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                _remove(part)
            raise


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Errors of the system, and those of h5py, as a `DataError` that names the place.

    Raises:
        DataError: in place of an `OSError` or a `RuntimeError`.
    """
    try:
        yield
    except DataError:
        raise
    except (OSError, RuntimeError) as error:
        text = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
        raise DataError(f"cannot be written: {text or type(error).__name__}", path, ELSEWHERE) from error


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _remove(part: Path) -> None:
    if part.is_dir() and not part.is_symlink():
        shutil.rmtree(part)
    else:
        part.unlink(missing_ok=True)
