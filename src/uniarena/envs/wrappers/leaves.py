"""Choosing and changing single leaves of nested spaces and trees, for wrappers that work key by key.

Leaves are named by dotted path (`sensors.cam`, `0.pos`); a space that is not nested has the one path `""`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gymnasium import Space, spaces

from uniarena.batch import Tree
from uniarena.config import ConfigError
from uniarena.envs.spaces import MASK, leaf_spaces


def choose_leaves(
    space: Space[Any],
    keys: Iterable[str] | None,
    accepts: Callable[[Space[Any]], bool],
    where: str,
    wanted: str,
) -> dict[str, Space[Any]]:
    """The leaves that a wrapper works on: those named, or all that it accepts.

    Args:
        keys: dotted paths; None: every leaf that `accepts`, the action mask excepted.
        where: config path for the message.
        wanted: what is accepted, in words.

    Raises:
        ConfigError: a named leaf is missing or of the wrong kind, or no leaf is left.
    """
    leaves = {path: leaf for path, leaf in leaf_spaces(space) if path.rpartition(".")[2] != MASK}
    present = ", ".join(repr(path) for path in leaves)
    if keys is None:
        chosen = {path: leaf for path, leaf in leaves.items() if accepts(leaf)}
        if not chosen:
            raise ConfigError(f"no leaf of the observation space {space} is {wanted}", path=where)
        return chosen
    chosen = {}
    for key in keys:
        if key not in leaves:
            raise ConfigError(
                f"{key!r} is no leaf of the observation space; its leaves are {present}", path=f"{where}.keys"
            )
        if not accepts(leaves[key]):
            raise ConfigError(f"{key!r} is {leaves[key]}; expected {wanted}", path=f"{where}.keys")
        chosen[key] = leaves[key]
    return chosen


def replace_leaves(space: Space[Any], leaves: Mapping[str, Space[Any]], prefix: str = "") -> Space[Any]:
    """The space with the leaves at these paths exchanged."""
    if prefix in leaves and not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return leaves[prefix]
    if isinstance(space, spaces.Dict):
        pairs = [
            (key, replace_leaves(child, leaves, _join(prefix, key))) for key, child in space.spaces.items()
        ]
        return spaces.Dict(pairs)  # pairs keep their order, a dict would be sorted
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(
            tuple(replace_leaves(child, leaves, _join(prefix, i)) for i, child in enumerate(space.spaces))
        )
    return space


def get_leaf(tree: Tree, path: str) -> Any:
    """The leaf of a tree at a dotted path."""
    for key in path.split(".") if path else ():
        tree = tree[int(key)] if isinstance(tree, tuple) else tree[key]
    return tree


def set_leaves(tree: Tree, leaves: Mapping[str, Any]) -> Tree:
    """A tree with other leaves at these paths; containers on the way are new, all other leaves are shared."""
    if "" in leaves:
        return leaves[""]
    groups: dict[str, dict[str, Any]] = {}
    for path, leaf in leaves.items():
        head, _, rest = path.partition(".")
        groups.setdefault(head, {})[rest] = leaf
    if isinstance(tree, tuple):
        return tuple(
            set_leaves(child, groups[str(i)]) if str(i) in groups else child for i, child in enumerate(tree)
        )
    return {key: set_leaves(child, groups[key]) if key in groups else child for key, child in tree.items()}


def _join(prefix: str, key: object) -> str:
    return f"{prefix}.{key}" if prefix else str(key)
