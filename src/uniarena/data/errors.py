"""DataError: data that cannot be read as transitions, said so that its owner can mend it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from uniarena.config.errors import closest, listed

EXTRA = 'pip install "uniarena[offline]"'
"""What brings the packages that some formats need."""


class DataError(ValueError):
    """A dataset that is damaged, incomplete, or says two things at once.

    Args:
        message: what was found and what was expected.
        where: the file, and inside of it the key.
        hint: what to do.
    """

    def __init__(self, message: str, where: str | Path = "", hint: str = "") -> None:
        super().__init__(message)
        self.message, self.where, self.hint = message, str(where), hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  fix: {self.hint}" if self.hint else head


def refuse_void(path: Path) -> None:
    """Refuse a file of no bytes, whatever it should be.

    Raises:
        DataError: it is one.
    """
    if path.is_file() and not path.stat().st_size:
        raise DataError("is empty (0 bytes)", path, "write, fetch or copy it again")


def missing(
    what: str, found: list[str], expected: tuple[str, ...], where: str | Path, taken: Collection[str] = ()
) -> DataError:
    """The error of a key that is not there, with the one most likely meant; never one that is `taken`."""
    free = [name for name in found if name not in taken]
    near = next((hit for name in expected if (hit := closest(name, free))), None)
    hint = f"name the key that holds it: keys: {{{what}: {near or 'KEY'}}}" + (
        f" (did you mean {near!r}?)" if near else ""
    )
    return DataError(
        f"nothing here is called {' or '.join(expected[:3])}, which would be the {what} of each step; "
        f"there is {listed(found) or 'nothing'}",
        where,
        hint,
    )
