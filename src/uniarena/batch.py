"""Batch and Rollout: named tensors with common leading dimensions, the only things that flow between the parts.

A *tree* is a tensor, a NumPy array, or a dict or tuple of trees. `Batch` is strict: every leaf of every field starts
with `batch.shape`, missing fields raise and name themselves. Both classes are pytrees (`torch.func`, `torch.compile`,
`torch.utils._pytree.tree_map`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tree = Any
"""A tensor or array, or a dict (str keys) or tuple of trees."""


def tree_map(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply `fn` leaf by leaf; `rest` are trees of the same structure."""
    if isinstance(tree, dict):
        return {key: tree_map(fn, tree[key], *(other[key] for other in rest)) for key in tree}
    if isinstance(tree, tuple):
        return tuple(tree_map(fn, *leaves) for leaves in zip(tree, *rest, strict=True))
    return fn(tree, *rest)


def tree_leaves(tree: Tree) -> list[Any]:
    """The leaves of a tree in its own (insertion) order."""
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in tree_leaves(value)]
    if isinstance(tree, tuple):
        return [leaf for value in tree for leaf in tree_leaves(value)]
    return [tree]


def tree_paths(tree: Tree, prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted path, leaf) pairs: `sensors.cam`, `0.pos`; a bare leaf has the path given as prefix."""
    if not isinstance(tree, (dict, tuple)):
        return [(prefix, tree)]
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [
        pair
        for key, value in entries
        for pair in tree_paths(value, f"{prefix}.{key}" if prefix else str(key))
    ]


def tree_unflatten(like: Tree, leaves: Sequence[Any]) -> Tree:
    """A tree of the structure of `like` from leaves in the order of `tree_leaves(like)`."""
    source = iter(leaves)
    return tree_map(lambda _: next(source), like)


class Batch:
    """Named tensors (or trees of tensors) that share their leading dimensions.

    Args:
        shape: the leading dimensions, e.g. `(T, B)` or `(N,)`.
        fields: name → tree whose leaves start with `shape`; more fields as keywords.

    Raises:
        ValueError: a leaf does not start with `shape` (field and leaf are named).
    """

    __slots__ = ("_fields", "shape")

    def __init__(self, shape: Sequence[int], fields: Mapping[str, Tree] | None = None, **more: Tree) -> None:
        self.shape: tuple[int, ...] = tuple(shape)
        self._fields: dict[str, Tree] = {**(fields or {}), **more}
        self._check(self._fields)

    def _check(self, fields: Mapping[str, Tree]) -> None:
        shape, dims = self.shape, len(self.shape)
        for name, tree in fields.items():
            if isinstance(tree, Tensor) and tree.shape[:dims] == shape:
                continue
            for path, leaf in tree_paths(tree, name):
                if tuple(leaf.shape[:dims]) != shape:
                    raise ValueError(
                        f"Batch field {path!r} has shape {tuple(leaf.shape)}; "
                        f"its leading dimensions must be {shape}."
                    )

    @classmethod
    def _trusted(cls, shape: tuple[int, ...], fields: dict[str, Tree]) -> Batch:
        """Without the shape check: for results of operations on batches that were checked."""
        batch = cls.__new__(cls)
        batch.shape = shape
        batch._fields = fields
        return batch

    def __getattr__(self, name: str) -> Tree:
        if name == "_fields" or name == "shape":
            raise AttributeError(name)
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(name if name.startswith("_") else self._missing(name)) from None

    def __getitem__(self, key: Any) -> Any:
        """A field by name, or rows by an index into the leading dimensions."""
        if isinstance(key, str):
            try:
                return self._fields[key]
            except KeyError:
                raise KeyError(self._missing(key)) from None
        fields = {name: tree_map(lambda leaf: leaf[key], tree) for name, tree in self._fields.items()}
        before, after = tree_leaves(tuple(self._fields.values()))[0], tree_leaves(tuple(fields.values()))[0]
        trailing = before.ndim - len(self.shape)
        return Batch._trusted(tuple(after.shape[: after.ndim - trailing]), fields)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __repr__(self) -> str:
        leaves = ", ".join(
            f"{path}: {tuple(leaf.shape)} {leaf.dtype}"
            for name in self
            for path, leaf in tree_paths(self[name], name)
        )
        return f"Batch({self.shape}, {leaves})"

    def _missing(self, name: str) -> str:
        return f"Batch has no field {name!r}; it has {', '.join(self._fields) or 'none'}."

    @property
    def fields(self) -> dict[str, Tree]:
        """A shallow copy of name → tree."""
        return dict(self._fields)

    def get(self, name: str, default: Any = None) -> Any:
        return self._fields.get(name, default)

    def require(self, *names: str) -> Batch:
        """This batch, after checking that it holds `names`.

        Raises:
            KeyError: naming the first missing field and those present.
        """
        for name in names:
            if name not in self._fields:
                raise KeyError(self._missing(name))
        return self

    def replace(self, **fields: Tree) -> Batch:
        """A batch with these fields added or exchanged; the others are shared, not copied."""
        batch = Batch._trusted(self.shape, {**self._fields, **fields})
        batch._check(fields)
        return batch

    def select(self, *names: str) -> Batch:
        self.require(*names)
        return Batch._trusted(self.shape, {name: self._fields[name] for name in names})

    def without(self, *names: str) -> Batch:
        return Batch._trusted(self.shape, {name: t for name, t in self._fields.items() if name not in names})

    def _map(self, fn: Callable[[Any], Any]) -> Batch:
        """`fn` on every leaf; it must keep the leading dimensions."""
        return Batch._trusted(self.shape, {name: tree_map(fn, tree) for name, tree in self._fields.items()})

    def to(self, device: torch.device | str) -> Batch:
        return self._map(lambda leaf: leaf.to(device))

    def flatten(self) -> Batch:
        """[T, B, …] → [T·B, …], without a copy where memory allows."""
        dims = len(self.shape)
        size = int(np.prod(self.shape))
        fields = {
            k: tree_map(lambda x: x.reshape(size, *x.shape[dims:]), tree) for k, tree in self._fields.items()
        }
        return Batch._trusted((size,), fields)

    def select_valid(self) -> Batch:
        """The rows whose `valid` is true, flattened to [N]; all rows where there is no `valid` field."""
        flat = self.flatten()
        if "valid" not in flat or bool(flat.valid.all()):
            return flat
        rows = flat.valid.nonzero().squeeze(1)
        return flat._rows(lambda leaf: leaf.index_select(0, rows), len(rows))

    def _rows(self, fn: Callable[[Any], Any], size: int) -> Batch:
        """`fn` on every leaf of an [N] batch where it changes N to `size`."""
        return Batch._trusted(
            (size, *self.shape[1:]), {k: tree_map(fn, tree) for k, tree in self._fields.items()}
        )

    def minibatches(self, size: int, epochs: int, generator: torch.Generator) -> Iterator[Batch]:
        """Shuffled parts of an [N] batch, `epochs` times: ⌈N / size⌉ parts an epoch whose sizes differ by at most one.

        One gather an epoch; the parts are views of it.
        """
        count = self.shape[0]
        parts = max(1, -(-count // size))
        bounds = [count * k // parts for k in range(parts + 1)]
        sizes = [stop - start for start, stop in itertools.pairwise(bounds)]
        device = tree_leaves(next(iter(self._fields.values())))[0].device
        for _ in range(epochs):
            order = torch.randperm(count, generator=generator, device=generator.device).to(device)
            rows = self._rows(lambda leaf, order=order: leaf.index_select(0, order), count)  # type: ignore[misc]
            pieces = zip(*(leaf.split(sizes) for leaf in tree_leaves(rows._fields)), strict=True)
            for own, size in zip(pieces, sizes, strict=True):
                if size:
                    yield Batch._trusted((size, *self.shape[1:]), tree_unflatten(rows._fields, own))

    def sequences(self, length: int) -> Batch:
        """[T, B] → [length, N] time-major pieces, N = B · ⌈T / length⌉; a short last one is padded with `valid=False`.

        The `state` before a piece is `pieces.state[0]`. Padding rows repeat the last row.
        """
        steps, columns = self.shape[:2]
        pieces = -(-steps // length)
        pad = pieces * length - steps
        valid = self.get("valid")
        if valid is None:
            valid = torch.ones(self.shape[:2], dtype=torch.bool)

        def cut(leaf: Tensor) -> Tensor:
            if pad:
                leaf = torch.cat([leaf, leaf[-1:].expand(pad, *leaf.shape[1:])])
            split = leaf.reshape(pieces, length, columns, *leaf.shape[2:]).transpose(0, 1)
            return split.reshape(length, pieces * columns, *leaf.shape[2:])

        fields = {name: tree_map(cut, tree) for name, tree in self._fields.items()}
        if pad:
            valid = torch.cat([valid, torch.zeros(pad, columns, dtype=torch.bool, device=valid.device)])
        fields["valid"] = (
            valid.reshape(pieces, length, columns).transpose(0, 1).reshape(length, pieces * columns)
        )
        return Batch._trusted((length, pieces * columns), fields)

    @staticmethod
    def stack(batches: Sequence[Batch], dim: int = 0) -> Batch:
        """Join batches of equal shape and fields along a new leading dimension."""
        return _join(batches, lambda *leaves: torch.stack(leaves, dim))

    @staticmethod
    def cat(batches: Sequence[Batch], dim: int = 0) -> Batch:
        """Join batches of equal fields along an existing leading dimension."""
        return _join(batches, lambda *leaves: torch.cat(leaves, dim))


def _join(batches: Sequence[Batch], join: Callable[..., Tensor]) -> Batch:
    if not batches:
        raise ValueError("no batches to join; give at least one.")
    first = batches[0]
    for index, other in enumerate(batches):
        if set(other) != set(first):
            odd = sorted(set(other) ^ set(first))
            raise ValueError(
                f"batches 0 and {index} differ in fields: {', '.join(odd)}; batches must have the same fields."
            )
    fields = {name: tree_map(join, *(batch[name] for batch in batches)) for name in first}
    probe = join(*(torch.empty(batch.shape, dtype=torch.bool) for batch in batches))
    return Batch(probe.shape, fields)


@dataclass(frozen=True)
class Rollout:
    """Consecutive steps of B columns, with what is needed to know every row's true successor.

    Attributes:
        rows: `[T, B]`: obs, action, reward, terminated, truncated, is_first, valid, and what was recorded.
        start: `[B]`: is_first and recurrent state before row 0.
        last: `[B]`: obs, is_first (and state) of the row after the last.
        ended: `[K]`: t, b, obs (the true final observation; and state before the reset) of rows that ended; None
            where none ended or `rows.next_obs` gives every successor densely.
        has_final_obs: False for simulators that lose final observations: a truncated row's successor is unknown.
        lost: `[L]`: t, b of rows in which an episode broke off with its simulator. Its return means nothing, and a row
            among them that is not valid has no successor. None where nothing did.
    """

    rows: Batch
    start: Batch
    last: Batch
    ended: Batch | None = None
    has_final_obs: bool = True
    lost: Batch | None = None

    @property
    def T(self) -> int:
        return self.rows.shape[0]

    @property
    def B(self) -> int:
        return self.rows.shape[1]

    def to(self, device: torch.device | str) -> Rollout:
        return self._each(lambda batch: batch.to(device))

    def clone(self) -> Rollout:
        """A copy that stays valid after the sampler's next `collect`."""
        return self._each(lambda batch: batch._map(lambda leaf: leaf.clone()))

    def _each(self, fn: Callable[[Batch], Batch]) -> Rollout:
        ended, lost = (None if part is None else fn(part) for part in (self.ended, self.lost))
        rows, start, last = fn(self.rows), fn(self.start), fn(self.last)
        return replace(self, rows=rows, start=start, last=last, ended=ended, lost=lost)

    @staticmethod
    def join(parts: Sequence[Rollout]) -> Rollout:
        """Consecutive rollouts of the same columns as one, along time."""
        if len(parts) == 1:
            return parts[0]
        offset = 0
        ended: list[Batch] = []
        lost: list[Batch] = []
        for part in parts:
            for found, own in ((ended, part.ended), (lost, part.lost)):
                if own is not None:
                    found.append(own.replace(t=own.t + offset))
            offset += part.T
        return Rollout(
            rows=Batch.cat([part.rows for part in parts]),
            start=parts[0].start,
            last=parts[-1].last,
            ended=Batch.cat(ended) if ended else None,
            has_final_obs=all(part.has_final_obs for part in parts),
            lost=Batch.cat(lost) if lost else None,
        )


def _rebuild(values: Iterable[Any], has_final_obs: Any) -> Rollout:
    rows, start, last, ended, lost = values
    return Rollout(rows, start, last, ended, has_final_obs, lost)


pytree.register_pytree_node(
    Batch,
    lambda batch: ([batch[name] for name in batch], (batch.shape, tuple(batch))),
    lambda values, context: Batch._trusted(context[0], dict(zip(context[1], values, strict=True))),
)
pytree.register_pytree_node(
    Rollout,
    lambda r: ([r.rows, r.start, r.last, r.ended, r.lost], r.has_final_obs),
    _rebuild,
)
