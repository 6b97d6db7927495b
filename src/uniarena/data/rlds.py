"""RLDS episodes as TFDS stores them, in TFRecord or ArrayRecord files, without TensorFlow.

A record is an episode of N steps; `steps/reward` and its like hold the steps one after the other. The last step has an
observation and no valid action: N steps are N − 1 transitions, and its `is_terminal` says what the last of them is.
Ramos et al. 2021 (arXiv:2111.02767), section 2.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space

from uniarena.batch import tree_paths
from uniarena.config.errors import counted, listed
from uniarena.data import records
from uniarena.data.columns import Keeping, Store, exact
from uniarena.data.errors import DataError
from uniarena.data.features import FEATURES, Feature, described, read_features
from uniarena.data.shards import SHARD, check_counts
from uniarena.data.source import Source, absent, json_object, nested, space_of, without_transition
from uniarena.data.step_flags import FLAGS, StepFlags
from uniarena.envs.spaces import space_from_json, space_to_json

INFO = "dataset_info.json"
OWN = "uniarena.json"
"""File beside those of TFDS in which we keep what it has no place for: spaces and origin."""
STEPS = "steps/"


def files_of(path: Path) -> list[Path]:
    """The record files of a dataset's folder, or the file itself, in order.

    Raises:
        DataError: none, or some of a set are missing.
    """
    if path.is_file():
        return [path]
    found = sorted(each for each in path.iterdir() if _kind(each) is not None) if path.is_dir() else []
    if not found:
        raise DataError("holds no .tfrecord or .array_record files", path, "name the folder that holds them")
    splits: dict[str, set[int]] = {}
    for each in found:
        if shard := SHARD.search(each.name):
            splits.setdefault(f"{each.name[: shard.start()]}/{shard[2]}", set()).add(int(shard[1]))
    for name, numbers in splits.items():
        count = int(name.rpartition("/")[2])
        if absent := sorted(set(range(count)) - numbers):
            raise DataError(
                f"{len(absent)} of {count} files of {name.rpartition('/')[0]} are missing: {listed(map(str, absent))}",
                path,
                "fetch or copy them too",
            )
    return found


def is_records(path: Path) -> bool:
    """Whether a file is named like one of records."""
    return _kind(path) is not None


def _kind(path: Path) -> str | None:
    match = re.search(r"\.?(tfrecord|array_record|arrayrecord)s?(\W|$)", path.name)
    return None if match is None else "tfrecord" if match[1] == "tfrecord" else "array_record"


def read(path: Path, keeping: Keeping) -> Source:
    """A folder of RLDS episodes, or one file of them.

    Raises:
        DataError: damaged files, missing parts or records, or episodes whose flags contradict each other.
    """
    files = files_of(path)
    folder = path if path.is_dir() else path.parent
    own, info = (json_object(each) if each.is_file() else {} for each in (folder / OWN, folder / INFO))
    features = read_features(folder / FEATURES)
    reader = _Episodes(features, keeping, folder / FEATURES)
    there: dict[Path, int] = {}
    for file in files:
        kind = _kind(file) or ("tfrecord" if path.is_file() else None)
        found = records.tf_records(file) if kind == "tfrecord" else records.array_records(file)
        there[file] = 0
        for number, data in enumerate(found):
            where = f"{file}, record {number}"
            reader.add(records.decode(data, where), where)
            there[file] += 1
    notes = check_counts(info, folder / INFO, there, path.is_dir())
    source = reader.source(path, files)
    source.notes += notes
    if not features:
        source.notes.append(
            f"There is no {FEATURES} that describes the steps, so shapes are concluded from how many numbers a step "
            "has: observations and actions are flat."
        )
    source.origin = {k: info[k] for k in ("name", "version", "description") if info.get(k)}
    _take_own(source, own, folder / OWN)
    return source


def _take_own(source: Source, own: dict[str, Any], where: Path) -> None:
    """What our own file adds."""
    for name in ("origin", "env"):
        if not isinstance(own.get(name, {}), dict):
            raise DataError(f"its {name} is {own[name]!r:.60}; expected a JSON object", where, "leave it out")
    source.origin |= own.get("origin", {})
    source.env = own.get("env", {})
    if "observation_space" in own or "action_space" in own:
        observed, acted = "observation_space", "action_space"
        source.observation_space = space_of(lambda: space_from_json(own[observed]), observed, where)
        source.action_space = space_of(lambda: space_from_json(own[acted]), acted, where)


class _Episodes:
    """Takes decoded records and gathers their steps."""

    def __init__(self, features: dict[str, Feature], keeping: Keeping, where: Path) -> None:
        self._features, self._keeping, self._where = features, keeping, where
        self._stores: dict[str, Store] = {}
        self._reward: list[np.ndarray] = []
        self._terminated: list[np.ndarray] = []
        self._truncated: list[np.ndarray] = []
        self._lengths: list[int] = []
        self._flags, self._empty = StepFlags(), 0

    def add(self, record: dict[str, Any], where: str) -> None:
        """One episode."""
        steps = {
            name.removeprefix(STEPS): values for name, values in record.items() if name.startswith(STEPS)
        }
        if not steps:
            raise DataError(
                f"a record has no parts that begin with {STEPS}; it has {listed(record)}",
                where,
                "a record must be an episode, as TFDS writes RLDS",
            )
        flags = self._flags.read(steps, where)
        count = len(flags[0])
        if count == 0:
            self._empty += 1
            return
        reward = self._reward_of(steps, count, where)
        names = {field: _names(steps, field, where) for field in ("observation", "action")}
        every = {name for found in names.values() for name in found}
        if self._stores and every != set(self._stores):
            raise DataError(
                f"has the parts {listed(every)}; the records before have {listed(self._stores)}",
                where,
                "write the data again, with the same parts in every step",
            )
        for field, found in names.items():
            for name in found:
                rows = self._rows(steps[name], name, count, count - (field == "action"), where)
                store = self._stores.get(name)
                if store is None:
                    store = self._stores[name] = Store(self._keeping, rows.shape[1:], rows.dtype)
                store.append(rows, f"{where} {name}")
        last = np.arange(count - 1) == count - 2
        self._lengths.append(count - 1)
        self._reward.append(reward)
        self._terminated.append(last & flags[2][-1])
        self._truncated.append(last & flags[1][-1] & ~flags[2][-1])

    def _reward_of(self, steps: dict[str, Any], count: int, where: str) -> np.ndarray:
        """Rewards of all steps but the last `[count − 1]` float64."""
        if "reward" not in steps:
            raise absent("reward", list(steps), where, "every step of RLDS")
        if len(steps["reward"]) != count:
            raise DataError(
                f"the steps are misaligned: {len(steps['reward'])} rewards and {count} steps",
                where,
                "write the data again, with one reward a step",
            )
        rows = self._rows(steps["reward"], "reward", count, count - 1, where)
        if rows.shape[1:] not in ((), (1,)):
            raise DataError(
                f"expected one number a step, got rows of shape {rows.shape[1:]}",
                f"{where} reward",
                "write one reward a step; of several choose one, or their sum",
            )
        return rows.reshape(count - 1).astype(np.float64)

    def _rows(self, values: Any, name: str, count: int, used: int, where: str) -> np.ndarray:
        """Values of the first steps `[used, *shape]` of `count`."""
        feature, place = self._features.get(name), f"{where} {name}"
        if feature is not None and feature.odd:
            raise DataError(feature.odd, f"{self._where} {name}", "write the data again, with it as float32")
        if isinstance(values, list):
            return _bytes(values, feature, count, place)[:used]
        if feature is None:
            size, rest = divmod(len(values), count)
            shape: tuple[int, ...] = () if size == 1 else (size,)
        elif feature.dtype.kind == "O" or -1 in feature.shape:
            what = "pictures" if feature.picture else "strings"
            raise DataError(f"holds numbers, and {FEATURES} says {what}", place, f"correct {FEATURES}")
        else:
            shape, rest = feature.shape, len(values) - count * feature.size
        if rest and feature is None:
            raise DataError(
                f"the steps are misaligned: {name} has {len(values)} numbers, which {count} steps cannot share evenly",
                where,
                "write the data again, with as many numbers at every step, the last one included",
            )
        if rest:
            raise DataError(
                f"the steps are misaligned: {name} has {len(values)} numbers, which {count} steps of "
                f"{shape or 'one number'} do not make",
                where,
                "write the data again, with rows of one shape",
            )
        rows = np.asarray(values).reshape(count, *shape)[:used]
        if feature is None:
            return rows
        # a record has no smaller floats than float32, and nothing is gained by making them smaller
        small = feature.dtype.kind == "f" and feature.dtype.itemsize < 4
        return exact(rows, np.dtype(np.float32) if small else feature.dtype, place)

    def source(self, path: Path, files: list[Path]) -> Source:
        """Everything that was added."""
        if not self._lengths:
            raise DataError("holds no episodes with steps", path, "write at least one; or name another file")
        single = without_transition(
            self._lengths,
            ("has a single step", "have a single step"),
            path,
            "what an episode ended in is a step of its own: write episodes of T transitions as T + 1 steps",
        )
        columns = nested({name: store.finish() for name, store in self._stores.items()}, "/", path)
        notes = single + self._flags.notes()
        if self._empty:
            notes.append(
                f"{counted(self._empty, 'episode without any step was', 'episodes without any step were')} left out."
            )
        return Source(
            "rlds",
            path,
            files,
            columns["observation"],
            columns["action"],
            np.concatenate(self._reward),
            np.concatenate(self._terminated),
            np.concatenate(self._truncated),
            lengths=np.array(self._lengths),
            extra=1,
            flags={"terminated": "is_terminal of the last step", "truncated": "is_last without is_terminal"},
            notes=notes,
            names={"obs": "observation"},
        )


def _names(steps: dict[str, Any], field: str, where: str) -> list[str]:
    """The parts of a field: itself, or `field/part`."""
    names = [name for name in steps if name == field or name.startswith(f"{field}/")]
    if not names:
        raise absent(field, list(steps), where, "every step of RLDS")
    return names


def _bytes(values: list[bytes], feature: Feature | None, count: int, where: str) -> np.ndarray:
    if len(values) != count:
        raise DataError(
            f"the steps are misaligned: {len(values)} values and {count} steps", where, "write the data again"
        )
    if feature is not None and not feature.picture and feature.dtype.kind in "biuf":
        size = feature.size * feature.dtype.itemsize
        if all(len(each) == size for each in values):
            return np.stack([np.frombuffer(each, feature.dtype).reshape(feature.shape) for each in values])
    if not all(each[:4] == b"\x89PNG" or each[:3] == b"\xff\xd8\xff" for each in values):
        raise DataError(
            "holds strings where numbers or pictures belong",
            where,
            "write the data without it: it cannot be learned from",
        )
    from PIL import Image  # only where there are pictures

    try:
        pictures = [np.array(Image.open(io.BytesIO(each))) for each in values]
        shape = feature.shape if feature is not None and -1 not in feature.shape else pictures[0].shape
        return np.stack([each.reshape(shape) for each in pictures])
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"a picture is damaged, or of another size than the others: {error}",
            where,
            "write the data again, or leave that episode out",
        ) from error


def write(
    path: Path,
    name: str,
    episodes: Iterable[Any],
    observed: Space[Any],
    acted: Space[Any],
    own: dict[str, Any],
) -> None:
    """Write a dataset's folder: one TFRecord file, and the JSON files that TFDS reads it by.

    Args:
        path: the folder, made anew.
        name: of the dataset, in lower case with underscores.
        episodes: `dataset.Episode`s in the environment's own actions.
        observed, acted: spaces of observations and of the environment's actions.
        own: further entries of our own file.
    """
    path.mkdir(parents=True, exist_ok=False)
    counts = [0, 0]

    def examples() -> Iterator[bytes]:
        for episode in episodes:
            data = records.encode(_record(episode))
            counts[0], counts[1] = counts[0] + 1, counts[1] + len(data)
            yield data

    records.write_tf_records(path / f"{name}-train.tfrecord-00000-of-00001", examples())
    split = {
        "name": "train",
        "shardLengths": [str(counts[0])],
        "numBytes": str(counts[1]),
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
    }
    info = {"name": name, "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    spaces = {"observation_space": space_to_json(observed), "action_space": space_to_json(acted)}
    for file, content in (
        (FEATURES, described(observed, acted, FLAGS)),
        (INFO, info),
        (OWN, {**spaces, **own}),
    ):
        (path / file).write_text(json.dumps(content, indent=2), encoding="utf-8")


def _record(episode: Any) -> dict[str, np.ndarray | list[bytes]]:
    """One episode of T transitions as T + 1 steps; the last one's action and reward are zeros that mean nothing."""
    steps = len(episode.reward) + 1
    terminal = bool(episode.terminated[-1])
    found: dict[str, np.ndarray | list[bytes]] = {}
    for path, leaf in tree_paths(episode.obs, ""):
        found[_key("observation", path)] = np.asarray(leaf)
    for path, leaf in tree_paths(episode.action, ""):
        found[_key("action", path)] = np.concatenate([leaf, np.zeros_like(leaf[:1])])
    found[f"{STEPS}reward"] = np.append(episode.reward, 0.0)
    found[f"{STEPS}discount"] = np.where((np.arange(steps) == steps - 1) & terminal, 0.0, 1.0)
    last = np.arange(steps) == steps - 1
    for name, flag in zip(FLAGS, (np.arange(steps) == 0, last, last & terminal), strict=True):
        found[f"{STEPS}{name}"] = flag
    return found


def _key(field: str, path: str) -> str:
    return f"{STEPS}{field}/{path.replace('.', '/')}" if path else f"{STEPS}{field}"
