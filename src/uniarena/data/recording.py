"""Our own recordings: a NumPy archive with a JSON header, in which every observation stands once.

Arrays: `header` (UTF-8 JSON as uint8), `obs` or `obs.<path>` `[Σ(T + 1), …]`, `action…` `[ΣT, …]` (Discrete from 0, Box
in the environment's units), `reward` `[ΣT]` float64, `terminated`, `truncated` `[ΣT]` bool, `length` `[E]` int64,
`final_known` `[E]` bool. Uncompressed, so that a large one is mapped rather than read.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space

from uniarena.batch import Tree, tree_leaves, tree_unflatten
from uniarena.data.columns import ArrayColumn, Column, Keeping, Store
from uniarena.data.dataset import Episode
from uniarena.data.errors import DataError
from uniarena.data.fitting import policy_space, skeleton
from uniarena.data.headers import mapping, parsed, spaces_of
from uniarena.data.npz import DAMAGE, Writer, columns
from uniarena.data.source import Source, booleans, numeric, rewards, without_transition
from uniarena.data.unread import refuse_unread
from uniarena.data.writing import beside
from uniarena.envs.spaces import leaf_spaces, space_to_json, storage_space

FORMAT, VERSION = "uniarena-recording", 1
HEADER = "header"


class Recorder:
    """Takes episodes and writes a recording.

    Args:
        observation_space, action_space: the environment's.
        env: `{"id": …, "kwargs": …}`.
        origin: where the episodes come from, as plain data.
        keeping: where they wait; None: in memory up to a quarter of what is free, then in files.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        env: Mapping[str, Any] | None = None,
        origin: Mapping[str, Any] | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        keeping = keeping or Keeping()
        self._header = {
            "format": FORMAT,
            "version": VERSION,
            "observation_space": space_to_json(observation_space),
            "action_space": space_to_json(action_space),
            "env": dict(env or {}),
            "origin": dict(origin or {}),
        }
        self._leaves = {
            "obs": leaf_spaces(storage_space(observation_space)),
            "action": leaf_spaces(policy_space(action_space)),
        }
        self._like = {"obs": skeleton(observation_space), "action": skeleton(action_space)}
        self._stores = {
            name: [Store(keeping, leaf.shape or (), leaf.dtype) for _, leaf in leaves]
            for name, leaves in self._leaves.items()
        }
        self._flags: dict[str, list[np.ndarray]] = {"reward": [], "terminated": [], "truncated": []}
        self._lengths: list[int] = []
        self._known: list[bool] = []

    @property
    def episodes(self) -> int:
        """How many were taken."""
        return len(self._lengths)

    @property
    def steps(self) -> int:
        """How many all of them have."""
        return sum(self._lengths)

    def add(self, episode: Episode) -> None:
        """One episode; actions as a policy gives them: classes from 0, Box in the environment's units.

        Raises:
            DataError: its parts have unequal lengths.
        """
        steps = len(episode.reward)
        for name, tree, expected in (("obs", episode.obs, steps + 1), ("action", episode.action, steps)):
            leaves = flat(self._like[name], tree)
            for (path, _), store, rows in zip(self._leaves[name], self._stores[name], leaves, strict=True):
                if len(rows) != expected:
                    raise DataError(
                        f"{name}{path and f'.{path}'} has {len(rows)} rows; {expected} were expected for {steps} steps"
                    )
                store.append(np.asarray(rows))
        for name, kept in self._flags.items():
            kept.append(np.array(getattr(episode, name), np.float64 if name == "reward" else bool))
        self._lengths.append(steps)
        self._known.append(bool(episode.final_known))

    def save(self, path: str | Path) -> Path:
        """Write everything that was taken. The same episodes give the same bytes.

        Raises:
            DataError: no episode was taken, or the file cannot be written.
        """
        path = Path(path)
        if not self._lengths:
            raise DataError("no episode was recorded", path, "add at least one episode first")
        text = json.dumps(self._header, sort_keys=True).encode()
        with beside(path) as part, Writer(part) as writer:
            writer.put(HEADER, ArrayColumn(np.frombuffer(text, np.uint8)))
            for name, leaves in self._leaves.items():
                for (leaf, _), store in zip(leaves, self._stores[name], strict=True):
                    writer.put(f"{name}.{leaf}" if leaf else name, store.finish())
            for name, parts in self._flags.items():
                writer.put(name, ArrayColumn(np.concatenate(parts)))
            writer.put("length", ArrayColumn(np.array(self._lengths, np.int64)))
            writer.put("final_known", ArrayColumn(np.array(self._known)))
        return path


def flat(like: Tree, tree: Tree) -> list[Any]:
    """Leaves of a tree in the order of another of the same structure."""
    if isinstance(like, dict):
        return [leaf for key, child in like.items() for leaf in flat(child, tree[key])]
    if isinstance(like, tuple):
        return [leaf for child, part in zip(like, tree, strict=True) for leaf in flat(child, part)]
    return [tree]


def write(path: Path, episodes: Iterable[Episode], recorder: Recorder) -> Path:
    """Write episodes through a recorder."""
    for episode in episodes:
        recorder.add(episode)
    return recorder.save(path)


def is_recording(path: Path) -> bool:
    """Whether a NumPy archive has what only recordings have, or had before a part was lost."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            return sum(f"{name}.npy" in names for name in (HEADER, "length", "final_known")) >= 2
    except (*DAMAGE, OSError):
        return False


def read(path: Path, keeping: Keeping) -> Source:
    """A recording.

    Raises:
        DataError: damaged, of a newer version, or with parts missing.
    """
    found = columns(path, keeping)
    header = _header(found, path)
    where = f"{path} {HEADER}"
    observed, acted = spaces_of(header, where)
    trees = {name: _tree(found, name, space, path) for name, space in (("obs", observed), ("action", acted))}
    reward = rewards(_of(found, "reward", path), f"{path} reward")
    flags = [
        booleans(_of(found, name, path), f"{path} {name}")
        for name in ("terminated", "truncated", "final_known")
    ]
    lengths = _lengths(_of(found, "length", path), f"{path} length")
    if len(flags[2]) != len(lengths):
        raise DataError("its lengths of episodes are damaged", f"{path} length", "write or copy it again")
    hint = "record episodes of at least one step, or name another file"
    notes = without_transition(lengths, ("has no step", "have no step"), path, hint)
    return Source(
        "recording",
        path,
        [path],
        trees["obs"],
        trees["action"],
        reward,
        flags[0],
        flags[1],
        lengths=lengths,
        extra=1,
        final_known=flags[2],
        observation_space=observed,
        action_space=acted,
        counted_from_zero=True,
        env=mapping(header, "env", where),
        origin=mapping(header, "origin", where),
        flags={"terminated": "recorded", "truncated": "recorded"},
        notes=notes,
    )


def _lengths(column: Column, where: str) -> np.ndarray:
    """Steps of each episode `[E]`."""
    values = numeric(column, where).all()
    odd = ~np.isfinite(values) | (values < 0) | (values != np.floor(values))
    if odd.any():
        raise DataError(
            f"its lengths of episodes are damaged: row {int(odd.reshape(-1).argmax()):,} holds {values[odd][0]}, which "
            "is no number of steps",
            where,
            "write or copy it again",
        )
    return np.asarray(values.astype(np.int64).reshape(-1))


def _header(found: Mapping[str, Column], path: Path) -> dict[str, Any]:
    if HEADER not in found:
        raise DataError(
            f"has length and final_known, as our recordings do, and the array {HEADER} of a recording is missing: it "
            "says what the spaces are",
            path,
            "write or copy it again; if it is no recording, name these two arrays otherwise",
        )
    column = numeric(_of(found, HEADER, path), f"{path} {HEADER}")
    with np.errstate(invalid="ignore"):
        header = parsed(column.all().astype(np.uint8).tobytes(), f"{path} {HEADER}")
    if header.get("format") != FORMAT:
        raise DataError("its header is not one of ours", path, "write or copy it again")
    if header.get("version") != VERSION:
        raise DataError(
            f"is a recording of version {header.get('version')}; this program reads version {VERSION}",
            path,
            "update uniarena",
        )
    return header


def _of(found: Mapping[str, Column], name: str, path: Path) -> Column:
    if name not in found:
        raise DataError(f"the array {name} is missing", path, "write or copy it again")
    refuse_unread(found[name])
    return found[name]


def _tree(found: Mapping[str, Column], name: str, space: Space[Any], path: Path) -> Tree:
    like = skeleton(space)
    leaves = [_of(found, f"{name}.{leaf}" if leaf else name, path) for leaf, _ in leaf_spaces(space)]
    assert len(leaves) == len(tree_leaves(like))
    return tree_unflatten(like, leaves)
