"""Source: what a reader found in a file, before anything is concluded from it. And what all readers check."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space

from uniarena.batch import Tree, tree_paths
from uniarena.config.errors import closest, counted, listed
from uniarena.data.columns import Column, DerivedColumn, OddColumn
from uniarena.data.errors import DataError, refuse_void
from uniarena.envs.spaces import LARGEST, leaf_spaces

DEEPEST = 64
"""Lists and objects within each other in a JSON text; no space or feature that an episode has lies deeper."""


@dataclass
class Source:
    """Steps as a file has them.

    Attributes:
        format: `d4rl`, `minari`, `rlds`, `npz`, or `recording`.
        path: what was opened; `files`: everything that was read.
        obs: tree of columns. Steps one after the other; with `extra` 1 every episode has one observation more.
        action, reward: a tree of columns and numbers `[N]` float64, one a step.
        terminated: `[N]` bool.
        truncated: `[N]` bool; None where the file does not say.
        next_obs: tree of columns, one a step; None where the file has none.
        lengths: steps of each episode; None where only flags tell them apart.
        extra: observations of an episode beyond its steps, 0 or 1.
        final_known: `[E]` bool, whether an episode's last observation was ever known; None: it was.
        observation_space, action_space: as the environment stated them; None where the file does not say.
        counted_from_zero: Discrete actions count from 0 already, whatever the space starts with.
        env: id and arguments of the environment, where the file says.
        origin: what else the file says of where it came from.
        flags: what each flag was read from.
        notes: what the user should know, one sentence each.
        names: field → the key of the file that holds it, where it is another word.
    """

    format: str
    path: Path
    files: list[Path]
    obs: Tree
    action: Tree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray | None = None
    next_obs: Tree | None = None
    lengths: np.ndarray | None = None
    extra: int = 0
    final_known: np.ndarray | None = None
    observation_space: Space[Any] | None = None
    action_space: Space[Any] | None = None
    counted_from_zero: bool = False
    env: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def called(self, name: str) -> str:
        """A field as the file calls it."""
        return self.names.get(name, name)

    def __post_init__(self) -> None:
        steps = len(self.reward)
        episodes = 0 if self.lengths is None else len(self.lengths)
        counts = {"obs": steps + self.extra * episodes, "action": steps}
        if self.next_obs is not None:
            counts["next_obs"] = steps
        for name, count in counts.items():
            for path, column in tree_paths(getattr(self, name), self.called(name)):
                if len(column) != count:
                    more = (
                        "; one observation more than steps is how a single episode is often kept: write it with "
                        "timeouts, or as next_observations"
                        if name == "obs" and len(column) == count + 1
                        else ""
                    )
                    raise DataError(
                        f"the steps are misaligned: {path} has {len(column):,} rows, and rewards make {steps:,} steps, "
                        f"so {count:,} were expected{more}",
                        self.path,
                        "write the file again with every key as long as the rewards",
                    )
        for name in ("terminated", "truncated"):
            flags = getattr(self, name)
            if flags is not None and len(flags) != steps:
                raise DataError(
                    f"the steps are misaligned: {self.flags.get(name, name)} has {len(flags):,} rows, and there are "
                    f"{steps:,} rewards",
                    self.path,
                    "write the file again with one flag a step",
                )
        if self.lengths is not None and int(self.lengths.sum()) != steps:
            raise DataError(
                f"the episodes are said to have {int(self.lengths.sum()):,} steps, and there are {steps:,} rewards",
                self.path,
                "write or copy it again",
            )


def parsed(text: str, where: str | Path) -> Any:
    """What a JSON text says.

    Raises:
        DataError: it is none, or nested so deep that walking through it could exhaust the stack.
    """
    deep = f"is JSON with more than {DEEPEST} lists and objects within each other"
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise DataError(deep, where, "write it again") from error
    except ValueError as error:
        raise DataError(f"cannot be read as JSON: {error}", where, "fetch or copy it again") from error
    level = [found]
    for _ in range(DEEPEST + 1):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise DataError(deep, where, "write it again")
    return found


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file.

    Raises:
        DataError: it cannot be read, or holds no object.
    """
    refuse_void(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read as JSON: {error}", path, "fetch or copy it again") from error
    found = parsed(text, path)
    if not isinstance(found, dict):
        raise DataError(
            f"is no JSON object; it holds {json.dumps(found)[:60]}", path, "fetch or copy it again"
        )
    return found


def count(value: Any, name: str, where: str | Path) -> int:
    """A count that a file states, as a number or in digits.

    Raises:
        DataError: it is none.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if (
        whole
        or (isinstance(value, float) and value.is_integer())
        or (isinstance(value, str) and _digits(value))
    ):
        return int(value)
    raise DataError(
        f"{name} is {value!r}, and a count belongs there", where, f"correct {name}, or leave it out"
    )


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def space_of(build: Callable[[], Space[Any]], name: str, where: str | Path) -> Space[Any]:
    """A space that a file describes.

    Args:
        build: makes it; whatever it raises becomes a `DataError`.
        name: of the entry.

    Raises:
        DataError: there is no such space, or one whose values are larger than any.
    """
    try:
        space = build()
        for path, leaf in leaf_spaces(space):
            if math.prod(leaf.shape or ()) > LARGEST:
                raise ValueError(f"{path or 'it'} has more than {LARGEST:,} numbers")
        return space
    except DataError:
        raise
    except KeyError as error:
        raise DataError(f"its {name} cannot be read: {error} is missing", where, "write it again") from error
    except (
        *(ArithmeticError, AssertionError, AttributeError, IndexError, MemoryError),
        *(RecursionError, TypeError, ValueError),
    ) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"its {name} cannot be read: {text}", where, "write it again") from error


def absent(
    name: str, found: Collection[str], where: str | Path, whole: str, taken: Collection[str] = ()
) -> DataError:
    """The error of a part that a format with names of its own always has.

    Args:
        name: of the part.
        found: what is there; `taken`: those of it that are another part.
        whole: what has such a part, as in `every episode of Minari`.
    """
    near = closest(name, [each for each in found if each not in taken])
    guess = f"; {near!r} seems to be it" if near else ""
    return DataError(
        f"nothing here is called {name}, which {whole} has; there is {listed(found) or 'nothing'}",
        where,
        f"write the data again, under that name{guess}",
    )


def readable(tree: Tree) -> None:
    """Refuse columns without rows before their lengths are compared.

    Raises:
        DataError: a single value, an empty one, or one that was never written.
    """
    if isinstance(tree, dict | tuple):
        for part in tree.values() if isinstance(tree, dict) else tree:
            readable(part)
    elif isinstance(tree, OddColumn):
        tree.read(0, 0)


def without_transition(
    lengths: Sequence[int] | np.ndarray, why: tuple[str, str], path: Path, hint: str
) -> list[str]:
    """A sentence on the episodes that have no transition, where there are any.

    Args:
        lengths: transitions of each episode.
        why: what such an episode is, and what several are: `("has a single step", "have a single step")`.
        hint: what to do where it is all of them.

    Raises:
        DataError: no episode has a transition.
    """
    none = sum(1 for length in lengths if not length)
    said = counted(none, f"episode {why[0]}", f"episodes {why[1]}")
    if len(lengths) and none == len(lengths):
        raise DataError(f"holds no transition: {said}, which makes none", path, hint)
    return [f"{said}, which makes no transition: left out."] if none else []


def numeric(column: Column, where: str) -> Column:
    """The column, after a check that it holds numbers.

    Raises:
        DataError: strings, objects, complex numbers or records.
    """
    kind = column.dtype.kind
    if kind in "biuf":
        return column
    what = {"O": "objects", "S": "strings", "U": "strings", "c": "complex numbers"}.get(
        kind, str(column.dtype)
    )
    raise DataError(f"holds {what} where numbers belong", where, "write it as float32, or as integers")


def rewards(column: Column, where: str) -> np.ndarray:
    """Rewards `[N]` float64 from a column `[N]` or `[N, 1]`."""
    numeric(column, where)
    if column.row_shape not in ((), (1,)):
        raise DataError(
            f"expected one number a step, got rows of shape {column.row_shape}",
            where,
            "write one reward a step; of several choose one, or their sum",
        )
    return column.all().reshape(-1).astype(np.float64)


def booleans(column: Column, where: str) -> np.ndarray:
    """Flags `[N]` bool from a column of booleans, or of numbers that are 0 or 1."""
    numeric(column, where)
    if column.row_shape not in ((), (1,)):
        raise DataError(
            f"expected one flag a step, got rows of shape {column.row_shape}", where, "write one flag a step"
        )
    values = column.all().reshape(-1)
    odd = np.zeros(0, np.int64) if values.dtype == bool else np.flatnonzero(~np.isin(values, (0, 1)))
    if len(odd):
        raise DataError(
            f"expected true or false (or 0 and 1), got {values[odd[0]]}, the first of {len(odd):,} at row {odd[0]:,}",
            where,
            "write 1 where it is so, and 0 elsewhere",
        )
    return values.astype(bool)


def as_float32(column: Column) -> Column:
    """Floats of another size become float32, which is how observations and actions are stored."""
    if column.dtype.kind != "f" or column.dtype == np.float32:
        return column

    def cast(rows: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # infinite here; `wide` tells that the file's value is not
            return rows.astype(np.float32)

    narrow = DerivedColumn(column, cast, column.row_shape, np.float32)
    narrow.wide = column
    return narrow


def fit_float32(values: np.ndarray) -> np.ndarray:
    """`[…]` bool: values that are finite, and still are as float32."""
    with np.errstate(over="ignore"):
        return np.isfinite(values.astype(np.float32))


def largest(values: np.ndarray) -> float:
    """The finite value farthest from 0; 0 where there is none."""
    values = values[np.isfinite(values)]
    return float(values.flat[np.abs(values).argmax()]) if values.size else 0.0


def nested(flat: Mapping[str, Any], separator: str, where: str | Path = "") -> dict[str, Any]:
    """`{"pos/x": …}` as `{"pos": {"x": …}}`.

    Raises:
        DataError: a name is both a value and a group of values.
    """
    groups = {name[:at] for name in flat for at, letter in enumerate(name) if letter == separator}
    if both := sorted(groups & set(flat)):
        part = next(name for name in flat if name.startswith(both[0] + separator))
        raise DataError(
            f"there is {both[0]} and also {part}, which is a part of it",
            where,
            f"write {both[0]} whole, or in parts, not both",
        )
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(separator)
        at = tree
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return tree
