"""ObsRows: preallocated memory for one row of B observations, written column by column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from uniarena.batch import Tree, tree_leaves
from uniarena.envs.spaces import describe, leaf_spaces, outside, storage_space

_Leaf = tuple[np.ndarray, tuple[int, ...]]  # memory of one leaf, and the shape of a row of it


class ObservationError(ValueError):
    """An observation that does not fit the stated observation space."""


class ObsRows:
    """Memory for B observations of a space, in storage dtypes.

    Args:
        space: of one observation, as the environment states it.
        num_envs: B.
        tree: memory to use, arrays `[B, …]`; None: new memory.

    Attributes:
        tree: arrays `[B, …]`; the same memory at every step.
    """

    def __init__(self, space: Space[Any], num_envs: int, tree: Tree | None = None) -> None:
        self.space = storage_space(space)
        self.tree: Tree = allocate(self.space, num_envs) if tree is None else tree
        self._leaves = _placed(self.tree)
        self._getters = _getters(space)
        self._leaf_spaces = leaf_spaces(self.space)
        self.flat = not isinstance(space, (spaces.Dict, spaces.Tuple))

    @property
    def only(self) -> tuple[np.ndarray | None, tuple[int, ...]]:
        """Memory and shape of a row where an observation is one array; else no memory."""
        return self._leaves[0] if self.flat else (None, ())

    def write(self, column: int, obs: Tree) -> None:
        """Copy one observation into a column.

        Raises:
            ObservationError: a part is missing, no number, or not of its shape.
        """
        self._put(self._leaves, column, obs)

    def fresh(self, obs: Tree) -> Tree:
        """One observation in new memory `[1, …]`; raises what `write` raises."""
        tree = allocate(self.space, 1)
        self._put(_placed(tree), 0, obs)
        return tree

    def _put(self, leaves: list[_Leaf], row: int, obs: Tree) -> None:
        value = obs
        try:
            for (leaf, shape), get in zip(leaves, self._getters, strict=True):
                if not self.flat:
                    value = get(obs)
                # numbers fit what has no shape; NumPy would repeat whatever else is too small
                if shape and getattr(value, "shape", None) != shape:
                    self.check(obs, "step() or reset()")
                leaf[row] = value
        except ObservationError:
            raise
        except (TypeError, ValueError, LookupError) as error:
            self.check(obs, "step() or reset()")
            raise ObservationError(
                f"step() or reset(): the observation is not made of numbers: {error}"
            ) from error

    def check_rows(self, obs: Tree, where: str) -> None:
        """Do the observations of all columns at once have the shapes `[B, …]`?

        Raises:
            ObservationError: naming the part.
        """
        if self.flat and obs.__class__ is np.ndarray and obs.shape == self._leaves[0][0].shape:
            return
        for (leaf, _), get, (path, space) in zip(self._leaves, self._getters, self._leaf_spaces, strict=True):
            try:
                shape = np.shape(get(obs))
            except (LookupError, TypeError, ValueError):
                shape = None
            if shape != leaf.shape:
                name = f"observation[{path!r}]" if path else "observation"
                raise ObservationError(
                    f"{where}: {name} {'is missing' if shape is None else f'has shape {shape}'}; expected "
                    f"{leaf.shape}, {leaf.shape[0]} of {describe(space)}: "
                    "change single_observation_space or what reset and step return"
                )

    def check(self, obs: Tree, where: str) -> None:
        """Once per environment: do structure, shapes and whole numbers fit the space?

        Raises:
            ObservationError: naming the part, what was expected and what came.
        """
        for (path, leaf), get in zip(self._leaf_spaces, self._getters, strict=True):
            name = f"observation[{path!r}]" if path else "observation"
            try:
                value = get(obs)
            except (KeyError, IndexError, TypeError) as error:
                raise ObservationError(
                    f"{where}: {name} is missing in a {type(obs).__name__}{_keys(obs)}; expected "
                    f"{describe(self.space)}: "
                    "return every part that observation_space declares"
                ) from error
            shape = np.shape(value)
            if shape != leaf.shape:
                raise ObservationError(
                    f"{where}: {name} has shape {shape}; expected {leaf.shape} from {describe(leaf)}: "
                    "change observation_space or what reset and step return"
                )
            _refuse_misfit(np.asarray(value), leaf, f"{where}: {name}")


def _refuse_misfit(value: np.ndarray, leaf: Space[Any], where: str) -> None:
    """Refuse numbers that would silently become others in whole numbers of the declared kind, or are no class."""
    odd = outside(leaf, value) if value.dtype.kind in "iuf" else None
    if odd is not None:
        raise ObservationError(
            f"{where} has {odd}, which {describe(leaf)} does not have: "
            "change observation_space, or what reset and step return"
        )
    kind = np.dtype(leaf.dtype)
    if kind.kind in "iub" and value.dtype != kind and value.dtype.kind in "iuf":
        changed = value[value.astype(kind) != value]
        if changed.size:
            raise ObservationError(
                f"{where} has {changed.flat[0]!s}, which {describe(leaf)} cannot hold: "
                "change the dtype of observation_space, or what reset and step return"
            )


def allocate(space: Space[Any], *lead: int) -> Tree:
    """Zeros `[*lead, …]` for a storage space."""
    if isinstance(space, spaces.Dict):
        return {key: allocate(child, *lead) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(allocate(child, *lead) for child in space.spaces)
    return np.zeros((*lead, *(space.shape or ())), space.dtype)


def _placed(tree: Tree) -> list[_Leaf]:
    return [(leaf, leaf.shape[1:]) for leaf in tree_leaves(tree)]


def _getters(space: Space[Any], get: Callable[[Any], Any] | None = None) -> list[Callable[[Any], Any]]:
    """For each leaf, the way to it from a whole observation."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return [get or (lambda obs: obs)]
    entries: list[tuple[Any, Space[Any]]]
    entries = list(space.spaces.items()) if isinstance(space, spaces.Dict) else list(enumerate(space.spaces))
    return [g for key, child in entries for g in _getters(child, _descend(get, key))]


def _descend(get: Callable[[Any], Any] | None, key: Any) -> Callable[[Any], Any]:
    return (lambda obs: obs[key]) if get is None else (lambda obs: get(obs)[key])


def _keys(obs: Any) -> str:
    return f" with {list(obs)}" if isinstance(obs, dict) else ""
