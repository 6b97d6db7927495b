"""Rollouts of several producers as one: their columns side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout, Tree, tree_map


class SideBySide:
    """Joins chunks of the same rows and different columns, in memory that is kept from one to the next."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def join(self, parts: Sequence[Rollout]) -> Rollout:
        """`[T, b]` of each as `[T, Σ b]`, in their order; valid until the next call. One part is given as it is.

        Raises:
            ValueError: they do not have the same fields.
        """
        if len(parts) == 1:
            return parts[0]
        columns = sum(part.B for part in parts)
        rows = self._batch("rows", [_with_info(part.rows, parts) for part in parts], (parts[0].T, columns))
        start, last = (
            self._batch(name, [getattr(part, name) for part in parts], (columns,))
            for name in ("start", "last")
        )
        ended, lost = (_events([getattr(part, name) for part in parts], parts) for name in ("ended", "lost"))
        return Rollout(rows, start, last, ended, all(part.has_final_obs for part in parts), lost)

    def _batch(self, path: str, batches: list[Batch], shape: tuple[int, ...]) -> Batch:
        names: list[set[str]] = [set(batch.fields) for batch in batches]
        if odd := names[0].union(*names) - names[0].intersection(*names):
            raise ValueError(
                f"{path}.{min(odd)} is given by some of the producers' environments and not by others"
            )
        fields = {
            name: self._tree(f"{path}.{name}", [batch.fields[name] for batch in batches], len(shape) - 1)
            for name in batches[0].fields
        }
        return Batch(shape, fields)

    def _tree(self, path: str, trees: list[Any], dim: int) -> Tree:
        first = trees[0]
        if isinstance(first, dict):
            return {key: self._tree(f"{path}.{key}", [tree[key] for tree in trees], dim) for key in first}
        if isinstance(first, tuple):
            parts = zip(*trees, strict=True)
            return tuple([self._tree(f"{path}.{k}", list(own), dim) for k, own in enumerate(parts)])
        shape = list(first.shape)
        shape[dim] = sum(tree.shape[dim] for tree in trees)
        kept = self._kept.get(path)
        if kept is None or list(kept.shape) != shape or kept.dtype != first.dtype:
            kept = self._kept[path] = torch.empty(shape, dtype=first.dtype)
        return torch.cat(trees, dim, out=kept)


def _with_info(rows: Batch, parts: Sequence[Rollout]) -> Batch:
    """Rows with every figure that an environment of any part gave: NaN where this one's said nothing."""
    names = list(dict.fromkeys(name for part in parts for name in part.rows.fields.get("info", {})))
    own = rows.fields.get("info", {})
    if not names or list(own) == names:
        return rows
    info = {name: own[name] if name in own else torch.full(rows.shape, torch.nan) for name in names}
    return Batch(rows.shape, {**rows.fields, "info": info})


def _events(batches: Sequence[Batch | None], parts: Sequence[Rollout]) -> Batch | None:
    """What happened at single places (t, b), in order of time, with columns counted over all parts."""
    found, first = [], 0
    for batch, part in zip(batches, parts, strict=True):
        if batch is not None:
            found.append(batch.replace(b=batch.b + first))
        first += part.B
    if len(found) < 2:
        return found[0] if found else None
    joined = Batch.cat(found)
    return joined[torch.argsort(joined.t, stable=True)]


def join_columns(trees: Sequence[Tree]) -> Tree:
    """Observations `[b, …]` of each part as `[Σ b, …]`; of one part as they are."""
    if len(trees) == 1:
        return trees[0]
    return tree_map(lambda *leaves: torch.cat([torch.as_tensor(leaf) for leaf in leaves]), *trees)
