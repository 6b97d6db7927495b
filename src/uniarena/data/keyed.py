"""Steps under the keys that D4RL made common, in HDF5 or NumPy archives: observations, actions, rewards, terminals,
and perhaps timeouts and next_observations. Fu et al. 2020 (arXiv:2004.07219).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space

from uniarena.batch import Tree
from uniarena.config.errors import listed
from uniarena.data import hdf5, npz
from uniarena.data.columns import Column, Keeping
from uniarena.data.errors import DataError, missing
from uniarena.data.headers import mapping, parsed, spaces_of
from uniarena.data.source import Source, booleans, nested, readable, rewards
from uniarena.data.unread import Unread, refuse_unread, unread_notes
from uniarena.envs.spaces import space_to_json

NAMES: dict[str, tuple[str, ...]] = {
    "obs": ("observations", "obs", "observation", "states", "state"),
    "action": ("actions", "action", "acts"),
    "reward": ("rewards", "reward"),
    "terminated": ("terminals", "terminated", "terminal", "terminations"),
    "truncated": ("timeouts", "truncated", "timeout", "truncations"),
    "next_obs": ("next_observations", "next_obs", "next_observation", "next_states", "next_state"),
}
"""Field → keys that are known to hold it, the most usual first."""
FLAGS = ("terminated", "truncated")
NONE = "none"
_NEEDLESS = {
    "terminated": "nothing terminates",
    "truncated": "no step is marked as cut off",
    "next_obs": "the successor is the row after it",
}
"""What data can do without, and what that says."""
"""In place of a key: nothing in the data terminates (or is truncated)."""
HEADER = "uniarena"
"""Attribute of an HDF5 file that we wrote: spaces, environment and origin as JSON."""
_DONES = ("dones", "done")


def read_hdf5(path: Path, keys: Mapping[str, str]) -> Source:
    """An HDF5 file of steps.

    Args:
        path: the file.
        keys: field → key, where they are not the usual ones.

    Raises:
        DataError: damaged, or without what is needed.
    """
    file = hdf5.opened(path)
    source = from_tree(hdf5.tree(file, path), path, "d4rl", keys)
    return _with_header(source, hdf5.attribute(file, HEADER, path))


def read_npz(path: Path, keys: Mapping[str, str], keeping: Keeping) -> Source:
    """A NumPy archive of steps; `observations/pos` is the part `pos` of a dict."""
    return from_tree(nested(npz.columns(path, keeping), "/", path), path, "npz", keys)


def from_tree(tree: dict[str, Any], path: Path, kind: str, keys: Mapping[str, str]) -> Source:
    """The steps of a tree of columns."""
    _check_keys(keys, path)
    found = {field: _find(tree, field, keys, path) for field in NAMES}
    ambiguous = _ambiguous_ends(tree, found, keys, path)
    for field in ("obs", "action", "reward", "terminated"):
        if found[field] is None and not (field == "terminated" and keys.get(field) == NONE):
            error = missing(field, list(tree), NAMES[field], path, _meaning(field))
            raise error if (hint := _in_groups(tree, keys)) is None else DataError(error.message, path, hint)
    columns = {field: None if name is None else _part(tree, name) for field, name in found.items()}
    notes = [*ambiguous, *_second_names(tree, found, keys), *unread_notes(tree, columns.values())]
    for field, part in columns.items():
        _readable(part, field)
        if field in FLAGS and isinstance(part, Unread) and part.rest is not None:
            notes.append(
                f"{found[field]} {part.error.message}. The others are read as what the file fills up with, which is "
                "false where nothing else was said."
            )
            columns[field] = part.rest
        else:
            refuse_unread(part)
    reward = rewards(_one(columns["reward"], f"{path} {found['reward']}"), f"{path} {found['reward']}")
    flags, values = {}, {}
    for field in FLAGS:
        name = found[field]
        flags[field] = f"the key {name}" if name else "absent"
        values[field] = (
            None if name is None else booleans(_one(columns[field], f"{path} {name}"), f"{path} {name}")
        )
    terminated = values["terminated"]
    if terminated is None:
        flags["terminated"], terminated = "none, as was said", np.zeros(len(reward), bool)
    if not len(reward):
        raise DataError(
            "holds no steps", path, f"write at least one row under {found['reward']}, or name another file"
        )
    return Source(
        kind,
        path,
        [path],
        columns["obs"],
        columns["action"],
        reward,
        terminated,
        values["truncated"],
        columns["next_obs"],
        flags=flags,
        notes=notes,
        names={field: name for field, name in found.items() if name is not None},
    )


def _readable(part: Tree | None, field: str) -> None:
    """As `readable`; of a field that data can do without, with the way to do so.

    Raises:
        DataError: it has no rows.
    """
    try:
        readable(part)
    except DataError as error:
        if field in _NEEDLESS:
            said = f"{error.hint}; or say that {_NEEDLESS[field]}: keys: {{{field}: {NONE}}}"
            raise DataError(error.message, error.where, said) from None
        raise


def header(observed: Space[Any], acted: Space[Any], env: Any, origin: Any) -> str:
    """What we keep as an attribute of the file, where its keys have no place for it."""
    spaces = {"observation_space": space_to_json(observed), "action_space": space_to_json(acted)}
    return json.dumps({**spaces, "env": env, "origin": origin}, sort_keys=True)


def _with_header(source: Source, text: Any) -> Source:
    if not isinstance(text, str):
        return source
    where = f"{source.path} attribute {HEADER}"
    found = parsed(text.encode(errors="surrogatepass"), where)
    source.observation_space, source.action_space = spaces_of(found, where)
    source.env, source.origin = mapping(found, "env", where), mapping(found, "origin", where)
    return source


def _check_keys(keys: Mapping[str, str], path: Path) -> None:
    if odd := set(keys) - set(NAMES):
        raise DataError(
            f"keys names {listed(odd)}, which are no fields of a step",
            path,
            f"the fields are {', '.join(NAMES)}",
        )


def _find(tree: Mapping[str, Any], field: str, keys: Mapping[str, str], path: Path) -> str | None:
    """The key that holds a field; None: no key does."""
    if field in keys:
        name = keys[field]
        if name == NONE and field in _NEEDLESS:
            return None
        if _part(tree, name) is None:
            raise missing(field, list(tree), (name,), path, _meaning(field))
        return name
    return next((name for name in NAMES[field] if name in tree), None)


def _ambiguous_ends(
    tree: Mapping[str, Any], found: Mapping[str, str | None], keys: Mapping[str, str], path: Path
) -> list[str]:
    """A sentence on a key that tells ends without telling which, where it was said that nothing terminates.

    Raises:
        DataError: nothing was said.
    """
    done = next((name for name in _DONES if name in tree and name not in found.values()), None)
    if done is None or found["terminated"] is not None:
        return []
    if keys.get("terminated") == NONE:
        return [
            f"There is {done}, and it is not read. If it tells where episodes end: keys: {{truncated: {done}}}."
        ]
    raise DataError(
        f"{done} says that an episode ended, but not whether its future was worth nothing (terminated) or it was "
        "only cut off (truncated)",
        path,
        f"say which it is: keys: {{terminated: {done}}} or keys: {{truncated: {done}, terminated: none}}",
    )


def _second_names(
    tree: Mapping[str, Any], found: Mapping[str, str | None], keys: Mapping[str, str]
) -> list[str]:
    """A sentence for each field that several keys could hold, where nobody said which does."""
    notes, taken = [], set(found.values())
    for field, name in found.items():
        others = [other for other in NAMES[field] if other in tree and other not in taken]
        if name is not None and others and field not in keys:
            notes.append(
                f"There is {name} and also {listed(others)}: {name} is read as the {field} of each step. To have "
                f"another read, name it: keys: {{{field}: {others[0]}}}."
            )
    return notes


def _in_groups(tree: Mapping[str, Any], keys: Mapping[str, str]) -> str | None:
    """What to do where the usual keys lie within groups; None: they do not."""
    groups = [
        (name, fields)
        for name, group in _groups(tree)
        if len(
            fields := {
                f: n for f, names in NAMES.items() if (n := next((n for n in names if n in group), None))
            }
        )
        >= 3
    ]
    if keys or not groups:
        return None
    if len(groups) > 1:
        return (
            f"{len(groups)} groups have such keys ({listed(name for name, _ in groups)}), and one array of each is "
            "read: write them one after the other, with timeouts where each ends"
        )
    (name, fields) = groups[0]
    said = ", ".join(f"{field}: {name}/{key}" for field, key in fields.items())
    return f"they lie in the group {name}: keys: {{{said}}}"


def _groups(tree: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every group of a tree with its path, from the outermost to the innermost."""
    for name, part in tree.items():
        if isinstance(part, Mapping):
            yield within + name, part
            yield from _groups(part, f"{within}{name}/")


def _meaning(field: str) -> set[str]:
    """Keys that mean another field, and so never this one."""
    return {name for other, names in NAMES.items() if other != field for name in names} | set(_DONES)


def _part(tree: Any, name: str) -> Tree | None:
    """The part of a tree under `a/b`."""
    for step in name.split("/"):
        if not isinstance(tree, dict) or step not in tree:
            return None
        tree = tree[step]
    return tree


def _one(part: Tree, where: str) -> Column:
    if not isinstance(part, Column):
        raise DataError(
            f"has parts ({listed(map(str, part))}); expected one number a step",
            where,
            "write it as one array, or name one of its parts",
        )
    return part
