"""Minari's local datasets, read and written without Minari: `<name>/data/metadata.json` and `main_data.hdf5`.

A group `episode_<n>` an episode, with T + 1 observations, T actions, rewards, terminations and truncations. Layout of
Minari 0.5 (Farama Foundation); images may lie there as JPEG.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from uniarena.batch import Tree
from uniarena.data import hdf5
from uniarena.data.columns import Column, SourceColumn, joined
from uniarena.data.errors import DataError
from uniarena.data.minari_spaces import space_from, space_to
from uniarena.data.source import (
    Source,
    absent,
    booleans,
    count,
    json_object,
    numeric,
    parsed,
    readable,
    rewards,
    space_of,
    without_transition,
)

METADATA, MAIN = "metadata.json", "main_data.hdf5"
PLACE = "MINARI_DATASETS_PATH"
VERSION = "0.5.4"
"""Of Minari, whose layout is written."""
_PARTS = ("observations", "actions", "rewards", "terminations", "truncations")
_SMALLEST_IMAGE = 32
"""Rows and columns from which Minari takes a uint8 Box for a picture."""


def folder_of(path: Path) -> Path:
    """The folder that holds `metadata.json`: of a dataset's folder, of its `data` folder, or of its main file."""
    for folder in (path, path / "data", path.parent):
        if (folder / METADATA).is_file():
            return folder
    raise DataError(
        f"no {METADATA} is there, which every Minari dataset has", path, "name the dataset's folder"
    )


def is_name(text: str) -> bool:
    """Whether a text looks like a dataset's name, such as `mujoco/hopper/expert-v0`."""
    return re.fullmatch(r"([\w-]+/)*[\w-]+-v\d+", text) is not None


def local(name: str) -> Path:
    """Where Minari keeps a dataset of that name."""
    root = os.environ.get(PLACE)
    return (Path(root) if root else Path.home() / ".minari" / "datasets") / name


def read(path: Path) -> Source:
    """A dataset of Minari.

    Raises:
        DataError: damaged, not HDF5 inside, or with episodes whose parts do not fit together.
    """
    folder = folder_of(path)
    metadata = json_object(folder / METADATA)
    main = folder / MAIN
    if (kind := metadata.get("data_format", "hdf5")) != "hdf5":
        raise DataError(
            f"is stored as {kind}; only Minari's HDF5 datasets can be read",
            folder,
            'write it again with Minari: create_dataset(…, data_format="hdf5")',
        )
    if not main.is_file():
        raise DataError(f"the file {MAIN} is missing", folder, "fetch or copy the dataset again")
    notes: list[str] = []
    observed, acted = (_space(metadata, name, folder) for name in ("observation_space", "action_space"))
    coded = bool(metadata.get("jpeg_encoding", True))
    groups = _episodes(hdf5.tree(hdf5.opened(main), main), main)
    if not groups:
        raise DataError("holds no episodes", main, "write at least one; or name another dataset")
    obs, action, found = [], [], []
    for name, group in groups:
        where = f"{main} {name}"
        _check_parts(group, where)
        found.append([rewards(_one(group, "rewards", where), f"{where}/rewards")])
        found[-1] += [booleans(_one(group, part, where), f"{where}/{part}") for part in _PARTS[3:]]
        obs.append(_opened(group["observations"], observed, coded, notes, f"{where}/observations"))
        action.append(_opened(group["actions"], acted, coded, notes, f"{where}/actions"))
        _check_lengths(obs[-1], action[-1], found[-1], where)
    lengths = np.array([len(each[0]) for each in found])
    reward, terminated, truncated = (np.concatenate([each[k] for each in found]) for k in range(3))
    _check_counts(metadata, folder, lengths, notes)
    places = [f"{main} {name}" for name, _ in groups]
    return Source(
        "minari",
        path,
        [folder / METADATA, main],
        joined(obs, [f"{place}/observations" for place in places]),
        joined(action, [f"{place}/actions" for place in places]),
        reward,
        terminated,
        truncated,
        lengths=lengths,
        extra=1,
        observation_space=observed,
        action_space=acted,
        env=_env(metadata),
        origin={
            name: metadata[name]
            for name in ("dataset_id", "algorithm_name", "author", "description")
            if metadata.get(name)
        },
        flags={"terminated": "terminations", "truncated": "truncations"},
        notes=list(dict.fromkeys(notes)),
        names={"obs": "observations", "action": "actions", "reward": "rewards"},
    )


def _episodes(tree: dict[str, Any], main: Path) -> list[tuple[str, dict[str, Any]]]:
    """Groups of episodes in the order of their numbers."""
    found = []
    for name, group in tree.items():
        match = re.fullmatch(r"episode_(\d+)", name)
        if match and isinstance(group, dict):
            found.append((int(match[1]), name, group))
    if tree and not found:
        raise absent("episode_0", list(tree), main, "a dataset of Minari")
    return [(name, group) for _, name, group in sorted(found, key=lambda each: each[0])]


def _check_parts(group: dict[str, Any], where: str) -> None:
    for part in _PARTS:
        if part not in group:
            raise absent(part, list(group), where, "every episode of Minari", _PARTS)
        readable(group[part])


def _one(group: dict[str, Any], part: str, where: str) -> Column:
    if not isinstance(group[part], Column):
        raise DataError(
            "is a group of parts; expected one number a step",
            f"{where}/{part}",
            "write it as one array",
        )
    return group[part]


def _check_counts(metadata: dict[str, Any], folder: Path, lengths: np.ndarray, notes: list[str]) -> None:
    """Compare what is there with what the metadata say: episodes that are missing are an error."""
    where = folder / METADATA
    for name, what, there in (
        ("total_episodes", "episodes", len(lengths)),
        ("total_steps", "steps", int(lengths.sum())),
    ):
        if metadata.get(name) is None:
            continue
        said = count(metadata[name], name, where)
        if what == "episodes" and there < said:
            raise DataError(
                f"{METADATA} says {said:,} episodes, and {MAIN} holds {there:,}: {said - there:,} are missing",
                folder,
                f"fetch or copy the dataset again; if these are all, write {name}: {there} in {METADATA}",
            )
        if said != there:
            notes.append(f"{METADATA} says {said:,} {what}; the file holds {there:,}.")
    notes += without_transition(
        lengths,
        ("has one observation and no action", "have one observation and no action"),
        folder / MAIN,
        "an episode of T transitions has T + 1 observations: write such ones, or name another dataset",
    )


def _check_lengths(obs: Tree, action: Tree, found: list[np.ndarray], where: str) -> None:
    steps = len(found[0])
    columns = [("observations", obs, steps + 1), ("actions", action, steps)]
    columns += [(name, array, steps) for name, array in zip(_PARTS[3:], found[1:], strict=True)]
    for name, tree, expected in columns:
        leaves = list(_leaves(tree))
        if not leaves:
            raise DataError("is a group without parts", f"{where}/{name}", "write the data again")
        for leaf in leaves:
            if len(leaf) != expected:
                raise DataError(
                    f"the steps are misaligned: {name} has {len(leaf)} rows and rewards {steps}, so {expected} were "
                    "expected",
                    where,
                    "an episode of T steps has T + 1 observations; write it again",
                )


def _leaves(tree: Tree) -> Iterable[Any]:
    if isinstance(tree, dict | tuple):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(part)
    else:
        yield tree


def _opened(part: Any, space: Space[Any] | None, coded: bool, notes: list[str], where: str) -> Tree:
    """Columns of one episode: tuples put back, pictures decoded."""
    if isinstance(part, dict):
        if part and all(re.fullmatch(r"_index_\d+", name) for name in part):
            inner = dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else {}
            names = [f"_index_{k}" for k in range(len(part))]
            if set(names) != set(part):
                raise DataError(
                    f"has the parts {', '.join(sorted(part))}; expected {', '.join(names)}",
                    where,
                    "write the data again",
                )
            return tuple(
                _opened(part[name], inner.get(k), coded, notes, f"{where}/{name}")
                for k, name in enumerate(names)
            )
        known = space.spaces if isinstance(space, spaces.Dict) else {}
        return {
            name: _opened(child, known.get(name), coded, notes, f"{where}/{name}")
            for name, child in part.items()
        }
    if coded and _is_image(space):
        notes.append("Pictures are stored as JPEG, which does not keep every value.")
        return _pictures(part, tuple(space.shape or ()) if space is not None else ())
    return numeric(part, where)


def _is_image(space: Space[Any] | None) -> bool:
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) in (2, 3)
        and min(space.shape[:2]) >= _SMALLEST_IMAGE
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


def _pictures(column: Column, shape: tuple[int, ...]) -> Column:
    def read(start: int, stop: int) -> np.ndarray:
        from PIL import Image  # only where there are pictures

        try:
            images = [np.array(Image.open(io.BytesIO(bytes(row)))) for row in column.read(start, stop)]
            return (
                np.stack(images).reshape(len(images), *shape) if images else np.empty((0, *shape), np.uint8)
            )
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(
                f"a picture is damaged, or of another size than the space says: {error}"
            ) from error

    return SourceColumn((len(column), *shape), np.uint8, read)


def _env(metadata: dict[str, Any]) -> dict[str, Any]:
    """Id and arguments of the environment; nothing else of its spec is looked at, since it may name code to run."""
    try:
        spec = parsed(metadata.get("env_spec") or "{}", METADATA)
    except (DataError, TypeError):
        return {}
    if not isinstance(spec, dict) or "id" not in spec:
        return {}
    kwargs = spec.get("kwargs")
    return {"id": str(spec["id"]), "kwargs": kwargs if isinstance(kwargs, dict) else {}}


def _space(metadata: dict[str, Any], name: str, folder: Path) -> Space[Any] | None:
    if not metadata.get(name):
        return None
    where = f"{folder / METADATA} {name}"
    data = metadata[name]
    given = parsed(data, where) if isinstance(data, str) else data
    return space_of(lambda: space_from(given), name, folder / METADATA)


def write(
    path: Path, episodes: Iterable[Any], observed: Space[Any], acted: Space[Any], more: dict[str, Any]
) -> None:
    """Write a dataset's folder.

    Args:
        path: the folder, made anew.
        episodes: `dataset.Episode`s in the environment's own actions.
        observed, acted: spaces of observations and of the environment's actions.
        more: entries of `metadata.json`.
    """
    folder = path / "data"
    folder.mkdir(parents=True, exist_ok=False)
    count = steps = 0
    with hdf5.create(folder / MAIN) as file:
        for count, episode in enumerate(episodes, 1):
            group = file.create_group(f"episode_{count - 1}")
            group.attrs["id"], group.attrs["total_steps"] = count - 1, len(episode.reward)
            _put(group, "observations", episode.obs, observed)
            _put(group, "actions", episode.action, acted)
            for name, array in zip(
                _PARTS[2:], (episode.reward, episode.terminated, episode.truncated), strict=True
            ):
                group.create_dataset(name, data=array)
            steps += len(episode.reward)
    metadata = {
        "total_episodes": count,
        "total_steps": steps,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps(space_to(observed)),
        "action_space": json.dumps(space_to(acted)),
        "minari_version": VERSION,
        **more,
    }
    (folder / METADATA).write_text(json.dumps(metadata), encoding="utf-8")


def env_spec(env: dict[str, Any]) -> dict[str, str]:
    """The entry by which Minari makes the environment again; nothing for one that Gymnasium does not know."""
    import gymnasium

    try:
        spec = gymnasium.spec(env["id"])
        spec.kwargs = {**spec.kwargs, **env.get("kwargs", {})}
        return {"env_spec": spec.to_json()}
    except (gymnasium.error.Error, KeyError, TypeError, ValueError):
        return {}


def _put(group: Any, name: str, tree: Tree, space: Space[Any]) -> None:
    if isinstance(space, spaces.Dict):
        inner = group.create_group(name)
        for key, child in space.spaces.items():
            _put(inner, key, tree[key], child)
    elif isinstance(space, spaces.Tuple):
        inner = group.create_group(name)
        for k, child in enumerate(space.spaces):
            _put(inner, f"_index_{k}", tree[k], child)
    else:
        group.create_dataset(name, data=tree)
