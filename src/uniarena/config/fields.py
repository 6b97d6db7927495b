"""`@config`: frozen dataclasses whose comments are their help."""

from __future__ import annotations

import dataclasses
import inspect
import io
import tokenize
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Make a class a config: a frozen, keyword-only dataclass. The comment on a field's line is its help.

    A `__post_init__` may refuse values: `raise ConfigError("…", path="field")` with a path relative to this
    class, or `raise ValueError("…")`. Whoever parses the section adds the full path and the line of the file.
    """
    return dataclass(frozen=True, kw_only=True)(cls)


class WithDefaults:
    """A config class under another name, with some defaults of its own: for presets, without a subclass each.

    It is called, parsed into and described like the class itself; instances are instances of that class.

    Args:
        cls: the `@config` class.
        name: its name with these defaults.
        unless: default → other fields, each of which takes its place where it is given.
        defaults: field → default. Of a nested config, what the user's map does not name stays as it is here, as
            long as the map names no other `type`.
    """

    def __init__(
        self, cls: type[Any], name: str, unless: dict[str, tuple[str, ...]] | None = None, **defaults: Any
    ) -> None:
        unknown = set(defaults) - set(field_types(cls))
        if unknown:
            raise TypeError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
        self.cls, self.__name__, self.unless, self.defaults = cls, name, unless or {}, defaults

    def __call__(self, **values: Any) -> Any:
        replaced = {key for key, others in self.unless.items() if any(other in values for other in others)}
        kept = {key: default for key, default in self.defaults.items() if key not in replaced}
        return self.cls(**{**kept, **values})


def config_class(cls: Any) -> type[Any]:
    """The dataclass behind a config class, with or without defaults of its own."""
    return cls.cls if isinstance(cls, WithDefaults) else cls


@dataclass(frozen=True)
class Between:
    """Bounds of a number, for `Annotated[int, Between(1)]`; both inclusive unless `above` is set.

    Attributes:
        low, high: bounds; None is unbounded.
        above: the lower bound itself is excluded.
    """

    low: float | None = None
    high: float | None = None
    above: bool = False

    def admits(self, value: float) -> bool:
        """Whether a number lies within."""
        low = self.low is None or (value > self.low if self.above else value >= self.low)
        return low and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        low = "" if self.low is None else f"{'above' if self.above else 'at least'} {_short(self.low)}"
        high = "" if self.high is None else f"at most {_short(self.high)}"
        return " and ".join(part for part in (low, high) if part)


def _short(number: float) -> str:
    """`0.0` as `0`: typing keeps one of equal annotations, whichever was written first."""
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e15 else f"{number:g}"


class Field(NamedTuple):
    """One key of a config, for help and listings. `default` is `MISSING` where the key is required."""

    name: str
    type: str
    default: Any
    help: str


MISSING = dataclasses.MISSING


def describe(cls: Any) -> list[Field]:
    """The keys of a config class in the order of their declaration, with the help from their comments."""
    own = cls.defaults if isinstance(cls, WithDefaults) else {}
    cls = config_class(cls)
    comments = _comments(cls)
    found = []
    for field in dataclasses.fields(cls):
        factory = field.default_factory
        default = own.get(field.name, field.default if factory is MISSING else factory())
        kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        found.append(Field(field.name, str(kind), default, comments.get(field.name, "")))
    return found


def field_types(cls: Any) -> dict[str, Any]:
    """Field name → its resolved type, bounds included."""
    known: Any = config_class(cls)
    return _field_types(known)


@cache
def _field_types(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def as_mapping(instance: Any) -> dict[str, Any]:
    """A config instance as plain data, nested ones too: `parse(type(x), as_mapping(x))` gives `x` again."""
    return {
        field.name: _as_plain(getattr(instance, field.name))
        for field in dataclasses.fields(instance)
        if field.init
    }


def _as_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_mapping(value)
    if isinstance(value, list | tuple):
        return [_as_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _as_plain(entry) for key, entry in value.items()}
    return value


@cache
def _comments(cls: Any) -> dict[str, str]:
    """Field name → the comment on its line, or the comment lines right above it; a subclass's come first."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        if dataclasses.is_dataclass(base):
            found |= _own_comments(base)
    return found


def _own_comments(cls: Any) -> dict[str, str]:
    try:
        source = inspect.cleandoc("\n" + inspect.getsource(cls))  # a nested class is indented
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return {}  # written at a prompt, or frozen into a binary: help is empty, nothing else is lost
    names = {field.name for field in dataclasses.fields(cls)}
    found: dict[str, str] = {}
    above: list[str] = []
    current, depth = "", 0
    for index, token in enumerate(tokens):
        depth += (token.type == tokenize.INDENT) - (token.type == tokenize.DEDENT)
        starts = token.type == tokenize.NAME and depth == 1 and tokens[index + 1].string == ":"
        if starts and token.string in names and tokens[index - 1].type in _LINE_BREAKS:
            current = token.string
            if above:
                found[current] = " ".join(above)
        elif token.type == tokenize.COMMENT:
            text = token.string.lstrip("#: ").strip()
            if current:
                found[current] = text
            else:
                above.append(text)
        elif token.type == tokenize.NEWLINE:
            current, above = "", []
    return found


_LINE_BREAKS = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT}
