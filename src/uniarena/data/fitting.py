"""Values of a file as our spaces have them: order of keys, shapes, dtypes, Discrete actions counted from 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from uniarena.batch import Tree, tree_map, tree_unflatten
from uniarena.data.columns import Column, DerivedColumn, exact
from uniarena.data.errors import DataError
from uniarena.data.source import as_float32, numeric
from uniarena.envs.spaces import describe, keep_order, leaf_spaces, map_space, storage_space

ENVIRONMENTS = "the environment has"
MOST_CLASSES = 2**20
"""Classes that whole numbers alone are taken for; larger ones are more likely ids, or damaged."""


def fit_obs(
    tree: Tree, space: Space[Any] | None, where: str, whose: str = ENVIRONMENTS
) -> tuple[Tree, Space[Any]]:
    """Observation columns in the dtypes that we store, and the space of what they hold.

    Args:
        tree: columns, as read.
        space: as the environment states it; None: it is concluded from dtypes and shapes.
        whose: who the space was had from, as errors put it.

    Raises:
        DataError: keys, shapes or dtypes that do not fit the space, and classes that it does not have.
    """
    if space is None:
        tree = tree_map(lambda column: _plain(column, where), tree)
        return tree, _space_of(tree)
    stored = storage_space(space)
    columns = _ordered(tree, stored, where, whose)
    fitted = [
        _fit(column, leaf, f"{where} {path}".rstrip(), whose)
        for column, (path, leaf) in zip(columns, leaf_spaces(stored), strict=True)
    ]
    for column, (path, leaf) in zip(fitted, leaf_spaces(stored), strict=True):
        if isinstance(leaf, (spaces.Discrete, spaces.MultiDiscrete)):
            _refuse_other_classes(column, leaf, np.asarray(leaf.start), f"{where} {path}".rstrip())
    return tree_unflatten(skeleton(stored), fitted), stored


def fit_action(
    tree: Tree, space: Space[Any] | None, counted_from_zero: bool, where: str, notes: list[str]
) -> tuple[Tree, Space[Any]]:
    """Action columns in the environment's units with Discrete from 0, and the environment's space.

    Args:
        tree, space, where: as for `fit_obs`.
        counted_from_zero: `start` was taken off already.
        notes: takes what was concluded.

    Raises:
        DataError: keys, shapes or dtypes that do not fit the space, and classes that it does not have.
    """
    if space is None:
        tree = tree_map(lambda column: _plain(column, where), tree)
        space = _action_space_of(tree, where, notes)
        counted_from_zero = True
    columns = _ordered(tree, space, where)
    fitted = []
    for column, (path, leaf) in zip(columns, leaf_spaces(space), strict=True):
        name = f"{where} {path}".rstrip()
        column = _fit(column, storage_space(leaf), name)
        if isinstance(leaf, (spaces.Discrete, spaces.MultiDiscrete)):
            column = _classes(column, leaf, counted_from_zero, name)
        elif isinstance(leaf, spaces.Box) and column.dtype != np.float32:
            column = DerivedColumn(column, lambda rows: rows.astype(np.float32), column.row_shape, np.float32)
        fitted.append(column)
    return tree_unflatten(skeleton(space), fitted), space


def bounded(space: Space[Any], bounds: tuple[float, float], where: str) -> Space[Any]:
    """A space of actions whose bounds nobody knew, with these.

    Raises:
        DataError: they are no numbers, or are known.
    """
    if not isinstance(space, spaces.Box):
        raise DataError(
            f"action_bounds={list(bounds)} is of numbers, and actions are {describe(space)}",
            where,
            "leave action_bounds out",
        )
    given = spaces.Box(*bounds, space.shape, np.float32)
    known = np.isfinite(space.low).any() or np.isfinite(space.high).any()
    if known and not (np.array_equal(space.low, given.low) and np.array_equal(space.high, given.high)):
        raise DataError(
            f"action_bounds={list(bounds)} is given, and actions are known to be {describe(space)}",
            where,
            "leave action_bounds out",
        )
    return given


def _ordered(tree: Tree, space: Space[Any], where: str, whose: str = ENVIRONMENTS) -> list[Column]:
    """The columns in the order of the space's leaves."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        items = (
            list(space.spaces.items()) if isinstance(space, spaces.Dict) else list(enumerate(space.spaces))
        )
        if isinstance(tree, tuple):
            tree = dict(enumerate(tree))
        names = [str(name) for name, _ in items]
        given = {str(name): child for name, child in tree.items()} if isinstance(tree, dict) else None
        if given is None or set(given) != set(names):
            has = "one array" if given is None else f"the parts {', '.join(sorted(given))}"
            raise DataError(
                f"has {has}; {whose} {describe(space)}",
                where,
                _together(whose),
            )
        return [
            leaf
            for (_, child), name in zip(items, names, strict=True)
            for leaf in _ordered(given[name], child, where, whose)
        ]
    if isinstance(tree, (dict, tuple)):
        parts = ", ".join(map(str, tree)) if isinstance(tree, dict) else str(len(tree))
        raise DataError(
            f"has the parts {parts}; {whose} {describe(space)}",
            where,
            _together(whose),
        )
    return [tree]


def _together(whose: str) -> str:
    """What to do about two parts that do not fit."""
    if whose == ENVIRONMENTS:
        return "check that data and environment belong together, wrappers included"
    return "write the file again, with rows of the same shape in both"


def _fit(column: Column, leaf: Space[Any], where: str, whose: str = ENVIRONMENTS) -> Column:
    """One column in the shape and dtype of a leaf."""
    column = as_float32(numeric(column, where))
    shape, dtype = tuple(leaf.shape or ()), np.dtype(leaf.dtype)
    if column.row_shape != shape:
        if int(np.prod(column.row_shape, dtype=np.int64)) != int(np.prod(shape, dtype=np.int64)) or (
            len(shape) > 1 and len(column.row_shape) > 1
        ):
            raise DataError(
                f"has rows of shape {column.row_shape}; {whose} {describe(leaf)}",
                where,
                _together(whose),
            )
        column = DerivedColumn(column, lambda rows: rows.reshape(len(rows), *shape), shape, column.dtype)
    if column.dtype == dtype:
        return column
    if dtype.kind == "f":  # whole numbers may lose digits, as floats did
        return DerivedColumn(column, lambda rows: rows.astype(dtype), shape, dtype)
    return DerivedColumn(column, lambda rows: exact(rows, dtype, where), shape, dtype)


def _classes(column: Column, leaf: Any, counted_from_zero: bool, where: str) -> Column:
    """Classes counted from 0, after a look at all of them."""
    start = np.asarray(0 if counted_from_zero else leaf.start)
    _refuse_other_classes(column, leaf, start, where)
    return DerivedColumn(column, lambda rows: (rows - start).astype(np.int64), column.row_shape, np.int64)


def _refuse_other_classes(column: Column, leaf: Any, start: np.ndarray, where: str) -> None:
    """Look at all rows for classes that the space does not have, counted from `start`."""
    count = np.asarray(leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec)
    for first, rows in column.blocks():
        odd = (rows < start) | (rows >= start + count)
        if odd.any():
            at = int(np.argwhere(odd)[0][0])
            raise DataError(
                f"row {first + at:,} holds {rows[odd].flat[0]}; {describe(leaf)} has {start.min()} to "
                f"{(start + count - 1).max()}",
                where,
                "check that data and environment belong together, and what the classes count from",
            )


def _plain(column: Column, where: str) -> Column:
    """A column of numbers in a dtype that we store: float32, or integers as they are."""
    column = as_float32(numeric(column, where))
    if column.dtype == bool:
        return DerivedColumn(column, lambda rows: rows.astype(np.int8), column.row_shape, np.int8)
    if not column.dtype.isnative:
        native = column.dtype.newbyteorder("=")
        return DerivedColumn(column, lambda rows: rows.astype(native), column.row_shape, native)
    return column


def _space_of(tree: Tree) -> Space[Any]:
    if isinstance(tree, dict):
        return keep_order({str(key): _space_of(child) for key, child in tree.items()})
    if isinstance(tree, tuple):
        return spaces.Tuple([_space_of(child) for child in tree])
    if tree.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, tree.row_shape, np.float32)
    bounds = np.iinfo(tree.dtype)
    return spaces.Box(bounds.min, bounds.max, tree.row_shape, tree.dtype.type)


def _action_space_of(tree: Tree, where: str, notes: list[str]) -> Space[Any]:
    """What the actions seem to be: whole numbers are classes, others a Box without bounds."""
    if isinstance(tree, dict):
        return keep_order({str(key): _action_space_of(child, where, notes) for key, child in tree.items()})
    if isinstance(tree, tuple):
        return spaces.Tuple([_action_space_of(child, where, notes) for child in tree])
    if tree.dtype.kind == "f":
        notes.append(
            "The file does not say what bounds actions have; name the environment (--env ID) to have them checked."
        )
        return spaces.Box(-np.inf, np.inf, tree.row_shape, np.float32)
    size = int(np.prod(tree.row_shape, dtype=np.int64))
    low, high = _extremes(tree, size, where)
    seen = "largest class seen is" if size == 1 else "largest of the classes seen is"
    notes.append(
        f"The file does not say what actions there are; the {seen} {high.max()}, so there are taken to be "
        f"{(high + 1).tolist() if size > 1 else high[0] + 1}."
    )
    if len(tree) and low.min() > 0:
        notes.append(
            "No action is 0. If the environment counts its actions from another number, name it (--env ID): they "
            "are taken as they are."
        )
    if size == 1:
        return spaces.Discrete(max(1, int(high[0]) + 1))
    return spaces.MultiDiscrete(np.maximum(1, high + 1))


def _extremes(column: Column, size: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest class of each of `size` entries.

    Raises:
        DataError: one below 0, or one so large that nobody would count up to it.
    """
    low, high = np.full(size, np.iinfo(np.int64).max), np.full(size, -1)
    for first, rows in column.blocks():
        flat = rows.reshape(len(rows), size)
        if (flat < 0).any():
            raise DataError(
                f"holds the action {flat.min()}, and classes count from 0 where nothing else is known",
                where,
                "name the environment, whose action space says what they count from",
            )
        if (flat >= MOST_CLASSES).any():
            raise DataError(
                f"row {first + int(flat.max(axis=1).argmax()):,} holds the class {flat.max()}, and without its "
                f"environment a file is taken to have at most {MOST_CLASSES:,} classes",
                where,
                "name the environment (--env ID), whose action space says what they are; or write the actions as "
                "float32, if they are not classes",
            )
        flat = flat.astype(np.int64)
        low, high = np.minimum(low, flat.min(axis=0)), np.maximum(high, flat.max(axis=0))
    return low, high


def skeleton(space: Space[Any]) -> Tree:
    """A tree of the space's structure."""
    if isinstance(space, spaces.Dict):
        return {key: skeleton(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(skeleton(child) for child in space.spaces)
    return space


def policy_space(space: Space[Any]) -> Space[Any]:
    """The space that stored actions lie in: classes from 0, Box in float32 with the environment's bounds."""

    def leaf_of(leaf: Space[Any]) -> Space[Any]:
        if isinstance(leaf, spaces.Discrete):
            return spaces.Discrete(int(leaf.n))
        if isinstance(leaf, spaces.MultiDiscrete):
            return spaces.MultiDiscrete(leaf.nvec)
        if isinstance(leaf, spaces.Box) and leaf.dtype != np.float32:
            return spaces.Box(
                leaf.low.astype(np.float32), leaf.high.astype(np.float32), leaf.shape, np.float32
            )
        return leaf

    return map_space(leaf_of, space)


def in_env_units(space: Space[Any], action: Tree) -> Tree:
    """Stored actions `[N, …]` as the environment counts them and in its dtypes, not clipped."""
    if isinstance(space, spaces.Dict):
        return {key: in_env_units(child, action[key]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(in_env_units(child, part) for child, part in zip(space.spaces, action, strict=True))
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return (action + space.start).astype(space.dtype)
    return action.astype(space.dtype)
