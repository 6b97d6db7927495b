"""One loader: whatever the format, transitions with true successors."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from gymnasium import Space, spaces

from uniarena.data import hdf5, keyed, minari, recording, rlds
from uniarena.data.columns import Keeping
from uniarena.data.config import DataConfig
from uniarena.data.dataset import Dataset, filtered
from uniarena.data.errors import DataError, refuse_void
from uniarena.data.fitting import ENVIRONMENTS, bounded, fit_action, fit_obs
from uniarena.data.rows import make_rows
from uniarena.data.source import Source

GIGABYTE = 10**9


def load(
    cfg: DataConfig | str | Path,
    observation_space: Space[Any] | None = None,
    action_space: Space[Any] | None = None,
    *,
    lazy: bool = False,
) -> Dataset:
    """Read a dataset.

    Args:
        cfg: which, and how; a path alone stands for all defaults.
        observation_space, action_space: the environment's, where it is known; None: what the file says, else what its
            values show.
        lazy: leave columns where they are, for one walk through them, and accept NaN; else they are brought into
            memory or mapped files, where any row can be had at once, and NaN is refused or dropped as `cfg` says.

    Raises:
        DataError: damaged, incomplete or contradictory data, in words.
    """
    if not isinstance(cfg, DataConfig):
        cfg = DataConfig(path=str(cfg))
    limit = None if cfg.memory_gb is None else int(cfg.memory_gb * GIGABYTE)
    keeping = Keeping(limit, cfg.memory_map)
    source = read(cfg, keeping)
    known = observation_space is not None or source.observation_space is not None
    dataset = _fitted(source, cfg, observation_space, action_space, known)
    dataset = filtered(dataset, cfg.episodes, cfg.min_return, cfg.top_fraction, cfg.fraction, cfg.seed)
    if lazy:
        return dataset
    kept = dataset.kept(keeping)
    if cfg.nonfinite == "refuse":
        kept.refuse_nonfinite(dataset)
    return kept


def _fitted(
    source: Source,
    cfg: DataConfig,
    observation_space: Space[Any] | None,
    action_space: Space[Any] | None,
    known: bool,
) -> Dataset:
    path, notes = source.path, source.notes
    observed = observation_space if observation_space is not None else source.observation_space
    acted = action_space if action_space is not None else source.action_space
    named = {name: source.called(name) for name in ("obs", "action", "next_obs")}
    obs, observed = fit_obs(source.obs, observed, f"{path} {named['obs']}")
    _refuse_empty(observed, named["obs"], path)
    next_obs = None
    if source.next_obs is not None:
        whose = ENVIRONMENTS if known else "the observations before them are"
        next_obs, _ = fit_obs(source.next_obs, observed, f"{path} {named['next_obs']}", whose)
    action, acted = fit_action(
        source.action, acted, source.counted_from_zero, f"{path} {named['action']}", notes
    )
    _refuse_empty(acted, named["action"], path)
    if cfg.action_bounds is not None:
        acted = bounded(acted, cfg.action_bounds, f"{path} {named['action']}")
    source = replace(source, obs=obs, next_obs=next_obs, action=action)
    return Dataset(source, make_rows(source, cfg), observed, acted, known)


def _refuse_empty(space: Space[Any], name: str, path: Path) -> None:
    """Refuse what holds no number: nothing can be learned from it, or be done with it.

    Raises:
        DataError: a group without parts, or rows without entries.
    """
    inner = (
        list(space.spaces.items())
        if isinstance(space, spaces.Dict)
        else list(enumerate(space.spaces))
        if isinstance(space, spaces.Tuple)
        else None
    )
    if inner == [] or (inner is None and 0 in (space.shape or ())):
        what = "is a group without any part" if inner == [] else f"has rows of shape {space.shape}"
        raise DataError(
            f"{name} {what}; expected at least one number a step", path, "write it again, or leave it out"
        )
    for key, child in inner or ():
        _refuse_empty(child, f"{name}/{key}", path)


def read(cfg: DataConfig, keeping: Keeping) -> Source:
    """Open a dataset in its format.

    Raises:
        DataError: nothing is there, or no format fits.
    """
    path = Path(cfg.path).expanduser()
    if not path.exists() and minari.local(cfg.path).exists() and cfg.format in ("auto", "minari"):
        path = minari.local(cfg.path)
    if not path.exists():
        raise _nowhere(cfg, path)
    refuse_void(path)
    kind = sniffed(path) if cfg.format == "auto" else cfg.format
    if cfg.keys and kind not in ("d4rl", "npz"):
        raise DataError(f"keys are given, and the format {kind} has its own", path, "leave keys out")
    if path.is_dir() and kind in ("d4rl", "npz"):
        raise DataError(f"is a folder; the format {kind} is a file", path, "name the file")
    match kind:
        case "minari":
            return minari.read(path)
        case "rlds":
            return rlds.read(path, keeping)
        case "d4rl":
            return keyed.read_hdf5(path, cfg.keys)
        case _:
            if recording.is_recording(path):
                return recording.read(path, keeping)
            return keyed.read_npz(path, cfg.keys, keeping)


def _nowhere(cfg: DataConfig, path: Path) -> DataError:
    """The error of a path at which nothing is; of what could be a name of Minari's, with where it keeps its own."""
    hint = "give the path of a dataset"
    if cfg.format == "minari" or (cfg.format == "auto" and minari.is_name(cfg.path)):
        return DataError(
            f"there is no such file or folder, and no dataset of that name among Minari's in {minari.local('')}",
            path,
            f"{hint}, or fetch it with Minari; the folder of its datasets can be named by {minari.PLACE}",
        )
    return DataError("there is no such file or folder", path, hint)


def sniffed(path: Path) -> str:
    """The format of what lies at a path.

    Raises:
        DataError: none is known.
    """
    if path.is_dir():
        if any((folder / minari.METADATA).is_file() for folder in (path, path / "data")):
            return "minari"
        if (path / rlds.FEATURES).is_file() or any(rlds.is_records(each) for each in path.iterdir()):
            return "rlds"
        raise DataError(
            "is a folder without metadata.json (Minari) and without .tfrecord or .array_record files (RLDS)",
            path,
            "name the folder or the file that holds the data",
        )
    if hdf5.signed(path):
        return "minari" if path.name == minari.MAIN and (path.parent / minari.METADATA).is_file() else "d4rl"
    with path.open("rb") as file:
        head = file.read(2)
    if zipfile.is_zipfile(path) or head == b"PK":
        return "npz"
    if rlds.is_records(path):
        return "rlds"
    raise DataError(
        "is neither HDF5, nor a NumPy archive, nor named .tfrecord or .array_record",
        path,
        "name its format: d4rl, minari, rlds or npz; or fetch it again, if it should be one of them",
    )
