"""What a file of ours says of itself in JSON: spaces, environment, origin. What is none of these is a DataError."""

from __future__ import annotations

from functools import partial
from typing import Any

from gymnasium import Space

from uniarena.data import source
from uniarena.data.errors import DataError
from uniarena.envs.spaces import space_from_json

AGAIN = "write or copy it again"


def parsed(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object in UTF-8.

    Raises:
        DataError: no JSON, no object, or one nested too deep.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"cannot be read as JSON: {error}", where, AGAIN) from error
    found = source.parsed(text, where)
    if not isinstance(found, dict):
        raise DataError(f"is no JSON object; it holds {found!r:.60}", where, AGAIN)
    return found


def spaces_of(header: dict[str, Any], where: str) -> tuple[Space[Any], Space[Any]]:
    """The spaces of observations and actions.

    Raises:
        DataError: they are missing, or are none.
    """
    observed, acted = (
        source.space_of(partial(_space, header, name), name, where)
        for name in ("observation_space", "action_space")
    )
    return observed, acted


def _space(header: dict[str, Any], name: str) -> Space[Any]:
    return space_from_json(header[name])


def mapping(header: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    """An entry that is an object; empty where there is none.

    Raises:
        DataError: it is something else.
    """
    found = header.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise DataError(
            f"its {name} is {type(found).__name__} {found!r:.60}; expected names and values", where, AGAIN
        )
    return found
