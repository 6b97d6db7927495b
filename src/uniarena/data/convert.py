"""Write a dataset in another format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium import Space

from uniarena.batch import Tree, tree_map, tree_paths
from uniarena.data import hdf5, keyed, minari, recording, rlds
from uniarena.data.columns import BLOCK, nbytes
from uniarena.data.dataset import Dataset, Episode
from uniarena.data.errors import DataError
from uniarena.data.fitting import in_env_units

Format = Literal["npz", "d4rl", "minari", "rlds"]
FORMATS = ("npz", "d4rl", "minari", "rlds")


def format_of(path: Path) -> str:
    """The format that a name stands for.

    Raises:
        DataError: it stands for none.
    """
    if path.suffix == ".npz":
        return "npz"
    if path.suffix in (".hdf5", ".h5"):
        return "d4rl"
    raise DataError("its name says no format", path, f"name it: {', '.join(FORMATS)}")


def convert(dataset: Dataset, target: Path, kind: str) -> list[str]:
    """Write the transitions of a dataset.

    Args:
        dataset: what to write; the steps that were left out stay out.
        target: a file, or for `minari` and `rlds` a folder; nothing is overwritten.
        kind: `npz` (a recording of our own), `d4rl`, `minari` or `rlds`.

    Returns:
        what the other format cannot say, in words.

    Raises:
        DataError: something is there already, or the format cannot hold such data.
    """
    if target.exists():
        raise DataError("there is something already, and nothing is overwritten", target, "give another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    origin = {**dataset.source.origin, "converted_from": dataset.source.path.name}
    env = dataset.source.env
    match kind:
        case "npz":
            spaces = (dataset.observation_space, dataset.action_space)
            recording.write(target, dataset, recording.Recorder(*spaces, env, origin))
            return []
        case "d4rl":
            _write_d4rl(dataset, target, keyed.header(*_spaces(dataset), env, origin))
            return []
        case "minari":
            about = {"dataset_id": target.name, "description": f"Converted from {dataset.source.path.name}"}
            about |= minari.env_spec(env)
            minari.write(target, _in_env_units(dataset), *_spaces(dataset), about)
        case "rlds":
            name = re.sub(r"\W+", "_", target.name.lower()) or "data"
            more = {"env": env, "origin": origin}
            rlds.write(target, name, _in_env_units(dataset), *_spaces(dataset), more)
        case _:
            raise DataError(f"there is no format {kind!r}", hint=f"one of {', '.join(FORMATS)}")
    unknown = dataset.unknown_finals
    return (
        [f"that the last observation of {unknown:,} terminated episodes is not known (it is a copy)"]
        if unknown
        else []
    )


def _spaces(dataset: Dataset) -> tuple[Space[Any], Space[Any]]:
    return dataset.observation_space, dataset.action_space


def _in_env_units(dataset: Dataset) -> Iterator[Episode]:
    """Episodes whose classes count from where the environment's do."""
    space = dataset.action_space
    return (episode._replace(action=in_env_units(space, episode.action)) for episode in dataset)


def _write_d4rl(dataset: Dataset, target: Path, header: str) -> None:
    """Rows with explicit next observations, so that nothing has to be concluded when they are read."""
    per_row = nbytes(dataset.source.obs) // max(1, len(dataset))
    size = max(1, min(len(dataset), BLOCK // max(1, per_row)))
    with hdf5.create(target) as file:
        file.attrs[keyed.HEADER] = header
        for start in range(0, len(dataset), size):
            index = np.arange(start, min(len(dataset), start + size))
            found: dict[str, Tree] = {
                "observations": dataset.obs(index),
                "next_observations": dataset.next_obs(index),
                "actions": in_env_units(dataset.action_space, dataset.action(index)),
                "rewards": dataset.reward[index],
                "terminals": dataset.terminated[index],
                "timeouts": dataset.truncated[index],
            }
            for name, tree in found.items():
                for path, leaf in tree_paths(tree_map(np.asarray, tree), name):
                    key = path.replace(".", "/")
                    if key not in file:
                        file.create_dataset(key, (len(dataset), *leaf.shape[1:]), leaf.dtype)
                    file[key][start : index[-1] + 1] = leaf
