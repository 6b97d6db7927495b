"""Where the recipes are: whole runs with measured results, named `algorithm/task`."""

from __future__ import annotations

from pathlib import Path

_SUFFIXES = (".yaml", ".yml", ".json")


def recipes_folder() -> Path | None:
    """The folder of recipes: in the installed package, or at the top of a checkout; else None."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "recipes", package.parent.parent / "recipes"):
        if folder.is_dir():
            return folder
    return None


def recipes() -> dict[str, Path]:
    """Recipe name (`ppo/cartpole`) → file."""
    folder = recipes_folder()
    if folder is None:
        return {}
    files = sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES)
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in files}


def recipe_path(name: str) -> Path | None:
    """The file of `ppo/cartpole`, also as `ppo/cartpole.yaml` or `recipes/ppo/cartpole.yaml`; else None."""
    key = name.replace("\\", "/").removeprefix("./").removeprefix("recipes/")
    for suffix in _SUFFIXES:
        key = key.removesuffix(suffix)
    return recipes().get(key.lower()) or recipes().get(key)
