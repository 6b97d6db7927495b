"""Values and types in the words of error messages."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union

from uniarena.config.errors import listed
from uniarena.config.fields import Between, field_types
from uniarena.config.section import Section, plain


def given(value: Any) -> str:
    """A value as a message shows it."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return f"a map with the keys {listed(map(str, value), 6)}" if value else "an empty map"
    if isinstance(value, list | tuple):
        text = repr(plain(value))
        return text if len(text) <= 60 else f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def expected(kind: Any) -> str:
    """A type in plain words."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        bounds = "".join(f" ({mark})" for mark in args[1:] if isinstance(mark, Between))
        return expected(args[0]) + bounds
    if origin in (Union, types.UnionType):
        return either(args)
    if origin is Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(
            repr(c) if isinstance(c, str) else given(c) for c in args
        )
    if origin in (tuple, list):
        many = args and (args[-1] is Ellipsis or origin is list)
        return f"a list (of {expected(args[0])} each)" if many else f"a list of {len(args)} values"
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return f"a map ({listed(field_types(kind), 8)})"
    if origin is dict or kind in (dict, Section) or origin is Mapping:
        return "a map"
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def either(members: tuple[Any, ...]) -> str:
    """Several types in plain words."""
    return " or ".join(dict.fromkeys(expected(member) for member in members))


_WORDS: dict[Any, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null",
    list: "a list", tuple: "a list",
}  # fmt: skip
