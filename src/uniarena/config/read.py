"""Sources of a config: files and recipes, maps from Python, overrides from the command line."""

from __future__ import annotations

import numbers
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uniarena.config.errors import ConfigError, Location, closest, squash
from uniarena.config.recipes import recipe_path, recipes
from uniarena.config.section import Items, Patch, Section
from uniarena.config.text import from_text, value_of

_SUFFIXES = {".yaml", ".yml", ".json"}


def read(source: str | Path | Mapping[str, Any]) -> Section:
    """A source as a map with places.

    Args:
        source: a file (`.yaml`, `.yml`, `.json`), a recipe's name (`ppo/cartpole`), or a map.

    Raises:
        ConfigError: no such file, not a config, broken syntax, a key twice; with the line.
    """
    if isinstance(source, Section):
        return source
    if isinstance(source, Mapping):
        return _from_python(source)
    if not isinstance(source, str | Path):
        raise ConfigError(f"expected a file, a recipe or a map; got {type(source).__name__}")
    path = _resolve(str(source))
    return from_text(text_of(path, str(source)), shown(path), is_json=path.suffix == ".json")


def text_of(path: Path, name: str) -> str:
    """What stands in a config file.

    Raises:
        ConfigError: it cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name} is not UTF-8 text: {error.reason} at byte {error.start}", hint="save it as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from None


def read_override(text: str) -> Section:
    """`learner.clip_range=0.1` as the map it stands for; a number in the path is an index of a list.

    Raises:
        ConfigError: it does not read as `key.path=value`.
    """
    key, equals, value = text.partition("=")
    here = Location(f"command line: {text if len(text) <= 50 else text[:49] + '…'}")
    if key.startswith(("+", "~")):
        hint = f"write {key.lstrip('+~')}={value or 'null'}"
        raise ConfigError(
            "adding and removing keys as in Hydra comes with a later version", line=here, hint=hint
        )
    if not equals:
        words = text.split(None, 1)
        hint = f"write {words[0]}={words[1] if len(words) == 2 else '…'}" if words else ""
        if Path(text).suffix in _SUFFIXES or "/" in text:
            hint = "files and recipes come before overrides"
        raise ConfigError(f"expected key.path=value, got {text!r}", line=here, hint=hint)
    tokens = key.strip().lstrip("-").split(".")
    if tokens[0].isdigit() or not all(re.fullmatch(r"[\w-]+", token) for token in tokens):
        hint = "write names with dots between them: learner.gamma=0.98"
        raise ConfigError(f"{key!r} is not a key path", line=here, hint=hint)
    tree = value_of(value, here)
    for token in reversed(tokens):
        level = Patch(location=here) if token.isdigit() else Section(location=here)
        level.put(int(token) if token.isdigit() else token, tree, here)
        tree = level
    return Section(tree, here)


# -- files ---------------------------------------------------------------------------------------------------
def _resolve(source: str) -> Path:
    path = Path(source).expanduser()
    if path.is_file():
        if path.suffix not in _SUFFIXES:
            raise ConfigError(
                f"{source} is not a config: expected .yaml, .yml or .json, got {path.suffix or 'no ending'}"
            )
        return path
    if path.is_dir():
        names = ("config.yaml", "stages.yaml", "config.yml", "config.json")
        config = next((path / name for name in names if (path / name).is_file()), None)
        hint = (
            f"to repeat that run: {config}; to go on with it: uniarena resume {source}"
            if config
            else "name the file in it"
        )
        raise ConfigError(f"{source} is a folder, expected a config file or a recipe", hint=hint)
    recipe = recipe_path(source)
    if recipe is not None:
        return recipe
    here = (
        [str(entry) for entry in path.parent.glob("*") if entry.suffix in _SUFFIXES]
        if path.parent.is_dir()
        else []
    )
    found = recipes()
    beside, near = closest(path.name, [Path(name).name for name in here]), closest(source, found)
    task = [
        name
        for name in found
        if squash(path.stem) in (squash(name.rpartition("/")[2]), squash(name.partition("/")[0]))
    ]
    if beside:
        hint = f"did you mean {path.parent / beside}?"
    elif task:
        hint = f"recipes: {', '.join(task[:8])}"
    elif near:
        hint = f"did you mean {near}?"
    else:
        hint = (
            f"write a file's path, or one of the recipes: {', '.join(list(found)[:8])}"
            if found
            else "write a file's path"
        )
    raise ConfigError(f"there is no file or recipe {source!r}", hint=hint)


def shown(path: Path) -> str:
    """The path as the user would write it from here."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


# -- Python --------------------------------------------------------------------------------------------------
def _from_python(value: Any, seen: tuple[int, ...] = ()) -> Any:
    if id(value) in seen:
        raise ConfigError("a map or list contains itself")
    seen = (*seen, id(value))
    if isinstance(value, Mapping):
        return Section({key: _from_python(entry, seen) for key, entry in value.items()})
    if isinstance(value, list | tuple):
        return Items(_from_python(entry, seen) for entry in value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()  # NumPy's own bool, 0-d arrays
    return value
