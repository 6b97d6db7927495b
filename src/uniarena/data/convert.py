"""Write a dataset in another format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from uniarena.batch import Tree, tree_leaves, tree_map, tree_paths
from uniarena.config.errors import counted, listed
from uniarena.data import hdf5, keyed, minari, recording, rlds
from uniarena.data.columns import BLOCK, nbytes
from uniarena.data.concerns import REFUSED
from uniarena.data.dataset import Dataset, Episode
from uniarena.data.errors import DataError
from uniarena.data.fitting import in_env_units
from uniarena.data.source import fit_float32
from uniarena.data.writing import beside, refuse_taken, refuse_unwritable, told
from uniarena.envs.spaces import leaf_spaces

Format = Literal["npz", "d4rl", "minari", "rlds"]
FORMATS = ("npz", "d4rl", "minari", "rlds")


class Converted(NamedTuple):
    """What to know of data that was written: what the format cannot say, and what to beware of, in words."""

    not_said: list[str]
    warnings: list[str]


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


def convert(dataset: Dataset, target: Path, kind: str) -> Converted:
    """Write the transitions of a dataset.

    Args:
        dataset: what to write; the steps that were left out stay out.
        target: a file, or for `minari` and `rlds` a folder; nothing is overwritten.
        kind: `npz` (a recording of our own), `d4rl`, `minari` or `rlds`.

    Returns:
        what the other format cannot say, and which of the values that were written cannot be learned from.

    Raises:
        DataError: something is there already, the format cannot hold such data, or it cannot be written. Nothing is
            left at the target then.
    """
    if kind not in FORMATS:
        raise DataError(f"there is no format {kind!r}", hint=f"one of {', '.join(FORMATS)}")
    refuse_taken(target)
    for name, space in zip(("observations", "actions"), _spaces(dataset), strict=True):
        _refuse_names(space, kind, name, target)
    origin = {**dataset.source.origin, "converted_from": dataset.source.path.name}
    env = dataset.source.env
    odd: dict[str, int] = {}
    if kind == "npz":
        refuse_unwritable(target)
        with told(target):  # also of what waits in files
            recorder = recording.Recorder(*_spaces(dataset), env, origin)
            recording.write(target, _watched(dataset, odd), recorder)
        return Converted(_lost(dataset, kind), _warnings(dataset, odd))
    with beside(target) as part:
        match kind:
            case "d4rl":
                _write_d4rl(dataset, part, keyed.header(*_spaces(dataset), env, origin), odd)
            case "minari":
                about = {
                    "dataset_id": target.name,
                    "description": f"Converted from {dataset.source.path.name}",
                }
                about |= minari.env_spec(env)
                minari.write(part, _in_env_units(dataset, odd), *_spaces(dataset), about)
            case "rlds":
                name = re.sub(r"\W+", "_", target.name.lower()) or "data"
                more = {"env": env, "origin": origin}
                rlds.write(part, name, _in_env_units(dataset, odd), *_spaces(dataset), more)
    return Converted(_lost(dataset, kind), _warnings(dataset, odd))


def _lost(dataset: Dataset, kind: str) -> list[str]:
    """What a format cannot say of these transitions."""
    found = _parted(dataset, kind)
    if kind == "npz":
        return found
    if unknown := dataset.unknown_finals:
        episodes = counted(unknown, "terminated episode", "terminated episodes")
        found.append(f"that the last observation of {episodes} is not known (it is a copy)")
    if kind == "rlds":
        both = int((dataset.terminated & dataset.truncated).sum())
        if both:
            found.append(
                f"that {counted(both, 'terminated transition is', 'terminated transitions are')} truncated as well"
            )
        found += _rounded(dataset.reward[np.isfinite(dataset.reward)])
    return found


def _parted(dataset: Dataset, kind: str) -> list[str]:
    """What is lost where episodes lie in pieces, each of which is written as an episode."""
    last = dataset.rows.starts[1:] - 1
    without = int(
        (~dataset.terminated[last] & ~dataset.truncated[last]).sum()
    )  # none follows, and none was cut off
    episodes, pieces = len(np.unique(dataset.rows.found)), dataset.episodes
    whole = counted(episodes, "episode", "episodes")
    if without and kind != "d4rl":
        cut = counted(without, "transition that nothing cut off is", "transitions that nothing cut off are")
        return [
            f"that transitions without order belong together: {whole} of them become {pieces:,}, and {cut} read as "
            "truncated"
        ]
    if pieces - without > episodes:
        return [
            f"that {pieces:,} pieces belong to {whole}, within which steps were left out: each piece is an episode "
            "there"
        ]
    return []


def _rounded(reward: np.ndarray) -> list[str]:
    """What is lost of finite rewards `[N]` as float32."""
    with np.errstate(over="ignore"):
        off = np.abs(reward.astype(np.float32).astype(np.float64) - reward)
    rounded, lost = off[(off > 0) & np.isfinite(off)], int(np.isinf(off).sum())
    found = (
        [f"{counted(lost, 'reward at all: it is', 'rewards at all: they are')} too large for float32"]
        if lost
        else []
    )
    if len(rounded):
        found.append(
            f"the exact value of {counted(len(rounded), 'reward: float32 rounds it', 'rewards: float32 rounds them')}, "
            f"by {rounded.max():.3g} at most"
        )
    return found


def _refuse_names(space: Space[Any], kind: str, name: str, target: Path) -> None:
    """Refuse keys of a Dict that a format cannot keep apart from its own way of writing groups.

    Raises:
        DataError: such a key.
    """
    paths = [path for path, _ in leaf_spaces(space)]
    if twice := {path for path in paths if paths.count(path) > 1}:
        raise DataError(
            f"{name} have several parts that are called {listed(twice)} where dots stand between nested ones, so no "
            "format keeps them apart",
            target,
            "rename the keys, and record the data again",
        )
    if kind != "npz":
        _refuse_keys(space, kind, name, target)


def _refuse_keys(space: Space[Any], kind: str, name: str, target: Path) -> None:
    if isinstance(space, spaces.Tuple):
        for child in space.spaces:
            _refuse_keys(child, kind, name, target)
    elif isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            if (why := _why_not(str(key), kind)) is not None:
                raise DataError(
                    f"{name} have the key {key!r}, and {why}, so the format {kind} could not be read back",
                    target,
                    "write a recording, which keeps every key: --format npz; or rename the key",
                )
            _refuse_keys(child, kind, name, target)


def _why_not(key: str, kind: str) -> str | None:
    """Why a format cannot keep a key; None: it can."""
    letters = "/" if kind == "minari" else "/."
    if not key or key in (".", ".."):
        return "an empty name or one of dots alone names no group"
    if odd := next((letter for letter in letters if letter in key), None):
        return (
            f"{odd!r} separates a group from its parts there" if odd != "\0" else "no name holds the letter 0"
        )
    if kind == "minari" and re.fullmatch(r"_index_\d+", key):
        return "that is how the parts of a tuple are called there"
    return None


def _spaces(dataset: Dataset) -> tuple[Space[Any], Space[Any]]:
    return dataset.observation_space, dataset.action_space


def _watched(dataset: Dataset, odd: dict[str, int]) -> Iterator[Episode]:
    """Episodes; `odd` counts their rows with values that cannot be learned from, field by field."""
    for episode in dataset:
        _count(odd, "observations", episode.obs)
        _count(odd, "actions", episode.action)
        yield episode


def _count(odd: dict[str, int], name: str, tree: Tree) -> None:
    leaves = [leaf for leaf in map(np.asarray, tree_leaves(tree)) if leaf.dtype.kind == "f"]
    if leaves:
        fine = [np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in leaves]
        odd[name] = odd.get(name, 0) + int((~np.logical_and.reduce(fine)).sum())


def _warnings(dataset: Dataset, odd: dict[str, int]) -> list[str]:
    """A sentence for each field of which rows were written that training refuses."""
    every = {"rewards": int((~fit_float32(dataset.reward)).sum()), **odd}
    return [
        f"{name}: {counted(count, 'row has', 'rows have')} values that are NaN, infinite or too large for float32; "
        f"{REFUSED}."
        for name, count in every.items()
        if count
    ]


def _in_env_units(dataset: Dataset, odd: dict[str, int]) -> Iterator[Episode]:
    """Episodes whose classes count from where the environment's do."""
    space = dataset.action_space
    return (
        episode._replace(action=in_env_units(space, episode.action)) for episode in _watched(dataset, odd)
    )


def _write_d4rl(dataset: Dataset, target: Path, header: str, odd: dict[str, int]) -> None:
    """Rows with explicit next observations, so that nothing has to be concluded when they are read."""
    per_row = nbytes(dataset.source.obs) // max(1, len(dataset))
    size = max(1, min(len(dataset), BLOCK // max(1, per_row)))
    with hdf5.create(target) as file:
        file.root().attrs[keyed.HEADER] = header
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
            for name in ("observations", "next_observations", "actions"):
                _count(odd, name, found[name])
            root = file.root()
            for name, tree in found.items():
                for path, leaf in tree_paths(tree_map(np.asarray, tree), name):
                    key = path.replace(".", "/")
                    if key not in root:
                        root.create_dataset(key, (len(dataset), *leaf.shape[1:]), leaf.dtype)
                    root[key][start : index[-1] + 1] = leaf
