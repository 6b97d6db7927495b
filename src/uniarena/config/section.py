"""Maps and lists of a config that remember where each entry was written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from uniarena.config.errors import Location

REDACTED = "<redacted>"  # what `dump` writes in place of a secret; loading it back asks for the value


class Section(dict[Any, Any]):
    """A map with the place of every key. Read it like a dict; treat it as read-only once loaded.

    Attributes:
        location: where the map itself begins, if it comes from a file.
        lines: key → where it was written.
    """

    def __init__(
        self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (), location: Location | None = None
    ) -> None:
        super().__init__(items)
        self.location = location
        self.lines: dict[Any, Location | None] = dict(items.lines) if isinstance(items, Section) else {}
        if location is None and isinstance(items, Section):
            self.location = items.location

    def put(self, key: Any, value: Any, location: Location | None) -> None:
        """Set a key together with the place where it was written."""
        self[key] = value
        self.lines[key] = location

    def where(self, key: Any) -> Location | None:
        """The place of a key, or of the map where the key was not written."""
        return self.lines.get(key) or self.location

    def without(self, *keys: Any) -> Section:
        """A copy that lacks some keys."""
        kept = Section(self)
        for key in keys:
            kept.pop(key, None)
        return kept

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), dict(self), self.location, self.lines))


class Items(list[Any]):
    """A list with the place of every entry."""

    def __init__(self, items: Iterable[Any] = (), lines: Iterable[Location | None] = ()) -> None:
        super().__init__(items)
        self.lines: list[Location | None] = list(lines) or [None] * len(self)


class Patch(Section):
    """Index → new entry: what an override like `callbacks.0.patience=5` changes in a list that is there."""


@dataclass(frozen=True)
class Origin:
    """How the user wrote a key: the spelling (dotted) and the place."""

    spelling: str
    location: Location | None = None

    def under(self, section: Section, key: Any) -> Origin:
        """The origin of `key` in a section that stands at this origin."""
        return Origin(join(self.spelling, key), section.where(key) or self.location)

    def __str__(self) -> str:
        return self.spelling if self.location is None else f"{self.spelling} ({self.location})"


def _rebuild(
    cls: type[Section], items: dict[Any, Any], location: Location | None, lines: dict[Any, Any]
) -> Section:
    section = cls(items, location)
    section.lines = lines
    return section


def join(path: str, key: Any) -> str:
    """`learner` and `gamma` → `learner.gamma`."""
    return f"{path}.{key}" if path else str(key)


def plain(value: Any) -> Any:
    """The same tree in bare dicts and lists."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def find(tree: Any, path: str) -> tuple[Any, Location | None]:
    """The value at a dotted path and the nearest known place, `None` for what is not there."""
    location: Location | None = None
    for token in path.split(".") if path else []:
        if isinstance(tree, Mapping):
            location = (tree.lines.get(token) if isinstance(tree, Section) else None) or location
            tree = tree.get(token)
        elif isinstance(tree, list | tuple) and token.isdigit() and int(token) < len(tree):
            index = int(token)
            location = (tree.lines[index] if isinstance(tree, Items) else None) or location
            tree = tree[index]
        else:
            return None, location
    return tree, location


def left_out(tree: Any, path: str = "") -> str | None:
    """The path of a secret that was left out when a tree was written; None: there is none."""
    if isinstance(tree, Mapping | list | tuple):
        entries = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
        return next((found for key, entry in entries if (found := left_out(entry, join(path, key)))), None)
    return path if tree == REDACTED else None
