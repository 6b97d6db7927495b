"""What a file of ours says of itself in JSON: spaces, environment, origin. What is none of these is a DataError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gymnasium import Space

from uniarena.data.errors import DataError
from uniarena.envs.spaces import space_from_json

AGAIN = "write or copy it again"
SPACES = ("observation_space", "action_space")


def parsed(text: str | bytes, what: str, path: Path) -> dict[str, Any]:
    """A JSON object.

    Args:
        what: holds it, as errors put it: `its header`.

    Raises:
        DataError: no JSON, or no object.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what} is damaged: {_said(error)}", path, AGAIN) from error
    if not isinstance(found, dict):
        raise DataError(f"{what} is damaged: it is no JSON object", path, AGAIN)
    return found


def spaces_of(header: dict[str, Any], what: str, path: Path) -> tuple[Space[Any], Space[Any]]:
    """The spaces of observations and actions.

    Raises:
        DataError: they are missing, or are none.
    """
    found = []
    for name in SPACES:
        if name not in header:
            raise DataError(f"{what} is damaged: {name} is missing", path, AGAIN)
        try:
            found.append(space_from_json(header[name]))
        except (
            ArithmeticError,
            AssertionError,  # gymnasium's, of a space without values
            AttributeError,
            LookupError,
            MemoryError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise DataError(
                f"{what} names no {name} that can be read: {_said(error)}", path, AGAIN
            ) from error
    return found[0], found[1]


def mapping(header: dict[str, Any], name: str, what: str, path: Path) -> dict[str, Any]:
    """An entry that is an object; empty where there is none.

    Raises:
        DataError: it is something else.
    """
    found = header.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise DataError(
            f"{what} is damaged: {name} is {type(found).__name__} {found!r:.60}; expected names and values",
            path,
            AGAIN,
        )
    return found


def _said(error: BaseException) -> str:
    return (
        "it is nested too deeply" if isinstance(error, RecursionError) else str(error) or type(error).__name__
    )
