"""`parse`: a map of a config becomes an instance of a config class; values are coerced by declared type."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeVar, Union

from uniarena.config.aliases import LEARNER_KEYS, home_of, meant
from uniarena.config.errors import ConfigError, Faults, Location, closest, listed, squash
from uniarena.config.fields import Between, WithDefaults, as_mapping, config_class, field_types
from uniarena.config.section import REDACTED, Items, Section, join, plain
from uniarena.config.wording import either, expected, given

T = TypeVar("T")


def parse(cls: type[T] | WithDefaults, mapping: Mapping[str, Any] | T | None, path: str = "") -> T:
    """Build a config.

    Args:
        cls: a `@config` class (or any dataclass).
        mapping: its keys; a `Section` also says where each was written. An instance of `cls` passes as it is.
        path: dotted config path of the map, for messages.

    Returns:
        The instance. Strings that spell a number become one where a number is declared, an integral float
        becomes an int where an int is, lists become tuples, maps become nested configs.

    Raises:
        ConfigError: unknown or missing keys, values of the wrong type or out of bounds; all of them at once.
    """
    known = config_class(cls)
    if isinstance(mapping, known):
        return mapping
    if mapping is None:
        mapping = {}
    if not isinstance(mapping, Mapping):
        raise _wrong(mapping, f"a map ({listed(field_types(cls))})", path, None, _map_hint(known, mapping))
    types_ = field_types(cls)
    faults = Faults()
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        here = mapping.where(key) if isinstance(mapping, Section) else None
        if value is None and path == "learner" and key not in types_ and key in LEARNER_KEYS:
            continue  # another learner's key, taken away
        if key not in types_:
            faults.found.extend(unknown_key(known, key, path, here).faults)
            continue
        with faults.gather():
            values[key] = coerce(types_[key], _completed(cls, key, value), join(path, key), here)
    base = mapping.location if isinstance(mapping, Section) else None
    for field in dataclasses.fields(known):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.init and required and field.name not in mapping:
            wanted = expected(types_[field.name])
            faults.add(
                f"required and missing; expected {wanted}",
                join(path, field.name),
                base,
                f"add {field.name}: …",
            )
    faults.check()
    try:
        return cls(**values)
    except ConfigError as error:
        raise error.beneath(path, lambda at: _place(mapping, path, at)) from None
    except ValueError as error:
        raise ConfigError(str(error), path, base) from error


def _completed(cls: Any, key: str, value: Any) -> Any:
    """A map for a nested config, completed by what a preset sets there; another type has defaults of its own."""
    default = cls.defaults.get(key) if isinstance(cls, WithDefaults) else None
    if not dataclasses.is_dataclass(default) or not isinstance(value, Mapping):
        return value
    preset = as_mapping(default)
    if value.get("type", preset.get("type")) != preset.get("type"):
        return value
    whole = Section(value)
    for name, entry in preset.items():
        if name not in whole:
            whole.put(name, entry, None)
    return whole


def split(cls: type[Any], mapping: Mapping[str, Any]) -> tuple[Section, Section]:
    """A map's keys that are fields of `cls`, and the rest, which a user's module takes as its arguments."""
    section, fields = Section(mapping), field_types(cls)
    known = section.without(*(key for key in section if key not in fields))
    return known, section.without(*known)


def unknown_key(cls: type[Any], key: Any, path: str, where: Location | None) -> ConfigError:
    """The error for a key that `cls` does not have, with the likely fix."""
    names = list(field_types(cls))
    message = (
        f"unknown key {key!r}; known here: {listed(names, 24)}"
        if names
        else f"unknown key {key!r}; no keys are known here"
    )
    if not isinstance(key, str):
        return ConfigError(
            f"{message} (a key must be text, this one is {given(key)})",
            join(path, key),
            where,
            "quote the key",
        )
    home, near = home_of(path, key), meant(key, names) or closest(key, names)
    if path == "learner" and key in LEARNER_KEYS:
        hint = "it is a setting of other learners: remove it"
    elif near and not (home and squash(near) != squash(key)):
        hint = f"write {near}"
    elif home:
        hint = f"this belongs elsewhere: {home}"
    elif path == "environment":
        hint = "arguments of the environment itself go under environment.kwargs"
    else:
        hint = "remove it"
    return ConfigError(message, join(path, key), where, hint)


def coerce(kind: Any, value: Any, path: str, where: Location | None = None) -> Any:
    """A value as the declared type wants it.

    Raises:
        ConfigError: it is something else; the message says what was given and what was expected.
    """
    origin = typing.get_origin(kind)
    if kind is Any or kind is object:
        return plain(value)
    if isinstance(value, str) and value == REDACTED:
        raise ConfigError(
            "this secret was left out when the config was saved", path, where, f"give it again: {path}=…"
        )
    if origin is Annotated:
        return _bounded(kind, value, path, where)
    if origin in (Union, types.UnionType):
        return _one_of(typing.get_args(kind), value, path, where)
    if origin is Literal:
        return _choice(typing.get_args(kind), value, path, where)
    if kind is Section or origin is dict or kind is dict or origin is Mapping:
        return _mapping(kind, value, path, where)
    if origin in (tuple, list) or kind in (tuple, list):
        return _sequence(kind, value, path, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _nested(kind, value, path, where)
    if kind in _SCALARS:
        return _SCALARS[kind](value, path, where)
    if kind is types.NoneType:
        if value is None:
            return None
        raise _wrong(value, "null", path, where)
    return _other(kind, value, path, where)


# -- scalars -------------------------------------------------------------------------------------------------
def _int(value: Any, path: str, where: Location | None) -> int:
    number = _number(value)
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if not isinstance(number, int):
        hint = f"write {round(number)}" if isinstance(number, float) and math.isfinite(number) else ""
        raise _wrong(value, "a whole number", path, where, hint)
    return number


def _float(value: Any, path: str, where: Location | None) -> float:
    number = _number(value)
    if number is None or math.isnan(number):
        raise _wrong(value, "a number", path, where)
    return float(number)


def _bool(value: Any, path: str, where: Location | None) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    hint = f"write {'true' if value else 'false'}" if isinstance(value, int) else ""
    raise _wrong(value, "true or false", path, where, hint)


def _str(value: Any, path: str, where: Location | None) -> str:
    if isinstance(value, str):
        return str(value)
    scalar = isinstance(value, bool | int | float)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    raise _wrong(value, "text", path, where, f"quote it: '{text}'" if scalar else "")


def _number(value: Any) -> int | float | None:
    """The number a value is or spells, else None. A switch is not a number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        for reader in (int, float):
            try:
                return reader(value)
            except ValueError:
                continue
    return None


_SCALARS = {int: _int, float: _float, bool: _bool, str: _str}


# -- composed types ------------------------------------------------------------------------------------------
def _bounded(kind: Any, value: Any, path: str, where: Location | None) -> Any:
    inner, *marks = typing.get_args(kind)
    own = [mark for mark in marks if isinstance(mark, Between)]
    if len(own) != len(marks):
        return _other(kind, value, path, where)
    result = coerce(inner, value, path, where)
    for bounds in own:
        for at, number in _bounded_numbers(result, path):
            if not bounds.admits(number):
                wanted = expected(inner) if at == path else "a number"
                raise ConfigError(f"expected {wanted}, {bounds}; got {given(number)}", at, where)
    return result


def _bounded_numbers(value: Any, path: str) -> list[tuple[str, float]]:
    """The numbers that bounds are for, with their paths: the value itself, or both ends of a schedule."""
    if isinstance(value, int | float):
        return [(path, value)]
    ends = (
        [name for name in ("start", "end") if hasattr(value, name)] if dataclasses.is_dataclass(value) else []
    )
    return [(join(path, name), getattr(value, name)) for name in ends]


def _one_of(members: tuple[Any, ...], value: Any, path: str, where: Location | None) -> Any:
    if value is None and types.NoneType in members:
        return None
    exact = [member for member in members if _fits(member, value)]
    if exact and isinstance(value, Mapping | list | tuple):
        return coerce(exact[0], value, path, where)  # its own, deeper message is the right one
    hints: list[str] = []
    for member in (*exact, *(member for member in members if member not in exact)):
        try:
            return coerce(member, value, path, where)
        except ConfigError as error:
            hints += [error.hint] if error.hint and not dataclasses.is_dataclass(member) else []
    literals = [choice for m in members if typing.get_origin(m) is Literal for choice in typing.get_args(m)]
    near = closest(value, [str(choice) for choice in literals]) if isinstance(value, str) else None
    hint = f"did you mean {near}?" if near else hints[0] if len(hints) == 1 else ""
    raise _wrong(value, either(members), path, where, hint)


def _fits(member: Any, value: Any) -> bool:
    """Whether a value is of a type as it stands, so that no other member of a union should read it."""
    origin = typing.get_origin(member)
    if origin is Annotated:
        return _fits(typing.get_args(member)[0], value)
    if origin in (Union, types.UnionType):
        return any(_fits(inner, value) for inner in typing.get_args(member))
    if origin is Literal:
        return any(type(choice) is type(value) and choice == value for choice in typing.get_args(member))
    if isinstance(value, Mapping):
        return origin is dict or member in (dict, Section) or dataclasses.is_dataclass(member)
    if isinstance(value, list | tuple):
        return origin in (tuple, list) or member in (tuple, list)
    return type(value) is member


def _choice(choices: tuple[Any, ...], value: Any, path: str, where: Location | None) -> Any:
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    if isinstance(value, str):
        alike = [choice for choice in choices if squash(str(choice)) == squash(value)]
        if len(alike) == 1:
            return alike[0]
    near = closest(value, [str(choice) for choice in choices]) if isinstance(value, str) else None
    hint = f"did you mean {near}?" if near else ""
    if isinstance(value, bool) and not hint:
        hint = "a word such as no or off needs quotes: YAML reads it as true or false"
    raise _wrong(value, expected(Literal[choices]), path, where, hint)


def _mapping(kind: Any, value: Any, path: str, where: Location | None) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(value, "a map", path, where, _map_hint(dict, value))
    if kind is Section:
        return value if isinstance(value, Section) else Section(value, where)
    args = typing.get_args(kind)
    inner = args[1] if len(args) == 2 else Any
    at = value.where if isinstance(value, Section) else lambda key: where
    return {key: coerce(inner, entry, join(path, key), at(key)) for key, entry in value.items()}


def _list_hint(value: Any, count: int) -> str:
    """What to write in place of a single value where a list of `count` belongs."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    if count == 1:
        return f"write [{value}]"
    if count == 2 and not isinstance(value, str):
        low, high = sorted((0, value)) if value else (0, 1)
        return f"write two values, such as [{low}, {high}]"
    return f"write {count} values: [{', '.join('…' * count)}]"


def _sequence(kind: Any, value: Any, path: str, where: Location | None) -> Any:
    args = typing.get_args(kind)
    build: type[Any] = list if kind is list or typing.get_origin(kind) is list else tuple
    fixed = build is tuple and args and args[-1] is not Ellipsis
    if not isinstance(value, list | tuple):
        raise _wrong(value, expected(kind), path, where, _list_hint(value, len(args) if fixed else 1))
    if fixed and len(args) != len(value):
        raise ConfigError(f"expected {len(args)} entries, got {len(value)}: {given(value)}", path, where)
    kinds = args if fixed else (args[:1] or (Any,)) * len(value)
    lines = value.lines if isinstance(value, Items) else [where] * len(value)
    return build(
        coerce(k, v, join(path, i), lines[i] or where)
        for i, (k, v) in enumerate(zip(kinds, value, strict=True))
    )


def _nested(cls: type[Any], value: Any, path: str, where: Location | None) -> Any:
    required = {
        f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING
    }
    short = getattr(cls, "short", "type")  # the key that a text alone stands for
    if isinstance(value, str) and short in field_types(cls) and required <= {short}:
        value = Section({short: value}, where)
    if value is None or isinstance(value, cls | Mapping):
        return parse(cls, value if isinstance(value, cls | Section) else Section(value or {}, where), path)
    raise _wrong(value, expected(cls), path, where, _map_hint(cls, value))


def _other(kind: Any, value: Any, path: str, where: Location | None) -> Any:
    """Types without a rule of their own here: paths, enums, foreign bounds; an object from Python passes."""
    if isinstance(kind, TypeVar):
        return value
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return kind(_str(value, path, where))
    from pydantic import (  # 0.1 s: only for rare types
        PydanticSchemaGenerationError,
        PydanticUserError,
        ValidationError,
    )

    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        reasons = "; ".join(dict.fromkeys(entry["msg"] for entry in error.errors()))
        raise ConfigError(f"{reasons}; got {given(value)}", path, where) from None
    except (PydanticSchemaGenerationError, PydanticUserError):
        if not isinstance(kind, type):
            return value  # a callable, a protocol: whoever uses it must check it
        raise _wrong(value, f"an object of {kind.__name__}", path, where) from None


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


# -- errors --------------------------------------------------------------------------------------------------
def _wrong(value: Any, wanted: str, path: str, where: Location | None, hint: str = "") -> ConfigError:
    return ConfigError(f"expected {wanted}, got {given(value)}", path, where, hint)


def _map_hint(cls: type[Any], value: Any) -> str:
    if isinstance(value, list | tuple):
        merged = all(isinstance(entry, Mapping) for entry in value) and value
        return (
            "remove the dashes: the keys stand one below the other" if merged else "write `key: value` lines"
        )
    names = list(field_types(cls)) if dataclasses.is_dataclass(cls) else []
    return f"write `{names[0]}: …` below it" if names else "write `key: value` lines below it"


def _place(mapping: Mapping[str, Any], path: str, at: str) -> Location | None:
    """Where a key is written that a `__post_init__` refused, by its path in full or relative to the map."""
    if not isinstance(mapping, Section):
        return None
    inner = at.removeprefix(f"{path}.") if path else at
    return mapping.where(inner.split(".")[0])
