"""Columns that must not be read, in a file that may not need them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from uniarena.batch import Tree, tree_leaves, tree_paths
from uniarena.data.columns import Column
from uniarena.data.errors import DataError


class Unread(Column):
    """Reading it raises what is wrong with it.

    Args:
        shape, dtype: as the file claims.
        error: of whoever reads it.
        rest: the same column with a value in place of what was never written; None: there is no such thing.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, error: DataError, rest: Column | None = None
    ) -> None:
        super().__init__(shape, dtype)
        self.error, self.rest = error, rest

    def read(self, start: int, stop: int) -> np.ndarray:
        raise self.error


def refuse_unread(tree: Tree) -> None:
    """Raise what is wrong with columns that are needed, before their lengths are compared.

    Raises:
        DataError: a single value, objects, or rows of which some were never written.
    """
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Unread):
            raise leaf.error


def unread_notes(tree: Tree, used: Iterable[Tree]) -> list[str]:
    """A sentence for each column of objects that nothing needed."""
    needed = {id(leaf) for part in used for leaf in tree_leaves(part)}
    return [
        f"{path} is an array of objects, which could run code when it is read. Nothing needs it: it was left unread."
        for path, leaf in tree_paths(tree)
        if isinstance(leaf, Unread) and leaf.dtype.hasobject and id(leaf) not in needed
    ]
