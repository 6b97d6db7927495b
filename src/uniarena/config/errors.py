"""ConfigError: what is wrong, where it is written, what was expected and the likely fix, on one screen."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

MOST_SHOWN = 5  # faults listed in full; more do not fit one screen and often follow from the first
WIDTH = 110  # characters of a line; longer ones are wrapped
MOST_LINES = 8  # of one message


class Location(NamedTuple):
    """A place in a source: a file and its line (from 1), or the command line (line 0)."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong."""

    message: str
    path: str = ""
    location: Location | None = None
    hint: str = ""

    def __str__(self) -> str:
        head = ": ".join(str(part) for part in (self.location, self.path) if part)
        indent = "  " if head else ""
        body = [part for line in self.message.splitlines() for part in _wrapped(indent + line, indent)]
        if len(body) > MOST_LINES:
            body = [*body[:MOST_LINES], f"{indent}…"]
        fix = _wrapped(f"{indent}fix: {self.hint}", f"{indent}     ") if self.hint else []
        return "\n".join([*([head] if head else []), *body, *fix])


class ConfigError(ValueError):
    """A config that cannot be used. `str(error)` is the whole answer to the user.

    Args:
        message: what was given and what was expected.
        path: dotted config path, such as `learner.gamma`.
        line: where it is written: a `Location`, or a line number where the file is not known.
        hint: what to do.

    Attributes:
        faults: everything found wrong at once, in the order of the file.
    """

    def __init__(
        self, message: str, path: str = "", line: Location | int | None = None, hint: str = ""
    ) -> None:
        location = Location("line", line) if isinstance(line, int) else line
        self.faults: tuple[Fault, ...] = (Fault(message, path, location, hint),)
        super().__init__(message)

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> ConfigError:
        """One error that reports several faults."""
        error = cls.__new__(cls)
        error.args = (faults[0].message,)
        error.faults = tuple(dict.fromkeys(faults))
        return error

    @property
    def path(self) -> str:
        """Config path of the first fault."""
        return self.faults[0].path

    @property
    def location(self) -> Location | None:
        """Place of the first fault."""
        return self.faults[0].location

    @property
    def hint(self) -> str:
        """Fix of the first fault."""
        return self.faults[0].hint

    def located(self, where: Callable[[str], Location | None]) -> ConfigError:
        """The same error with missing places filled in; `where` maps a config path to its place."""
        return type(self).of([f if f.location else replace(f, location=where(f.path)) for f in self.faults])

    def beneath(self, path: str, where: Callable[[str], Location | None]) -> ConfigError:
        """The same error seen from further outside: paths are prefixed, missing places filled in."""
        faults = []
        for fault in self.faults:
            inside = not path or fault.path == path or fault.path.startswith(f"{path}.")
            full = fault.path if inside else f"{path}.{fault.path}".rstrip(".")
            faults.append(replace(fault, path=full, location=fault.location or where(fault.path)))
        return type(self).of(faults)

    def __str__(self) -> str:
        if len(self.faults) == 1:
            return str(self.faults[0])
        shown = "\n\n".join(str(fault) for fault in self.faults[:MOST_SHOWN])
        rest = len(self.faults) - MOST_SHOWN
        more = f"\n\nand {rest} more" if rest > 0 else ""
        return f"{len(self.faults)} things are wrong in this config:\n\n{shown}{more}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).of, (self.faults,))


class Faults:
    """Gathers faults so that the user sees all at once: `with faults.gather(): …`, then `faults.check()`."""

    def __init__(self) -> None:
        self.found: list[Fault] = []

    def gather(self) -> Faults:
        """The context in which a ConfigError is kept instead of raised."""
        return self

    def add(self, message: str, path: str = "", line: Location | None = None, hint: str = "") -> None:
        """Note one fault and go on."""
        self.found.append(Fault(message, path, line, hint))

    def check(self) -> None:
        """Raise what was found, if anything."""
        if self.found:
            sources = {fault.location.source if fault.location else None for fault in self.found}
            if len(sources) == 1 and None not in sources:  # one file: in the order of its lines
                self.found.sort(key=lambda fault: fault.location.line if fault.location else 0)
            raise ConfigError.of(self.found)

    def __enter__(self) -> Faults:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, ConfigError):
            self.found.extend(error.faults)
            return True
        return False


def text_of(error: BaseException) -> str:
    """The text of anybody's error; of one that cannot give it, why."""
    try:
        return str(error)
    except Exception as fault:
        return f"(its text cannot be had: __str__ raised {type(fault).__name__})"


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was most likely meant, or None."""
    plain = {squash(name): name for name in known}
    match = difflib.get_close_matches(squash(word), plain, n=1, cutoff=0.6)
    return plain[match[0]] if match else None


def _wrapped(line: str, indent: str) -> list[str]:
    if len(line) <= WIDTH:
        return [line]
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def squash(word: str) -> str:
    """Letters and digits in lower case: `Frame-Stack`, `frame_stack` and `FrameStack` read the same."""
    return "".join(letter for letter in word.lower() if letter.isalnum())


def counted(count: int, one: str, many: str) -> str:
    """`1 episode has`, `2,000 episodes have`: a count with the words that agree with it."""
    return f"{count:,} {one if count == 1 else many}"


def listed(names: Iterable[str], most: int = 12) -> str:
    """`a, b, c`, cut where the list would fill the screen."""
    ordered = sorted(names)
    return ", ".join(ordered[:most]) + (f", … ({len(ordered)} in all)" if len(ordered) > most else "")
