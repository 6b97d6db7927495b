"""What a ring knows of the episodes that are going on, column by column."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from uniarena.buffers.chunk import Chunk, as_array
from uniarena.buffers.flags import OK, VALID

FEW = 16
"""Flags up to which reading them one by one is the fastest."""


class Running:
    """B running episodes.

    Attributes:
        open_first: `[B]` whether the open row begins an episode.
        age: `[B]` int32, the open row's rows since the start of its episode.
        blind: `[B]` whether the episode began before what is stored.
        plain: none of that is so for any column: every episode just goes on.
    """

    def __init__(self, columns: int) -> None:
        self.open_first = np.zeros(columns, bool)
        self.age = np.zeros(columns, np.int32)
        self.blind = np.zeros(columns, bool)
        self.plain = False

    def ages(self, chunk: Chunk, cut: np.ndarray | None) -> np.ndarray:
        """Rows since the start of the episode `[T, B]`; columns in `cut` `[B]` start anew."""
        begins = chunk.first
        if cut is not None:
            begins = begins.copy()
            begins[0] |= cut
        t = np.arange(chunk.steps, dtype=np.int32)[:, None]
        begun = np.maximum.accumulate(np.where(begins, t, -1), axis=0)
        age = np.where(begun >= 0, t - begun, self.age + t).astype(np.int32)
        self.age = age[-1] + np.int32(1)
        return age

    def unseen(self, chunk: Chunk, cut: np.ndarray | None) -> np.ndarray | None:
        """`[T, B]` rows of episodes whose start is not stored; None: there are none."""
        if cut is not None:
            self.blind = np.where(cut, ~chunk.first[0], self.blind)
        if not self.blind.any():
            return None
        blind: np.ndarray = self.blind & ~np.logical_or.accumulate(chunk.first, axis=0)
        self.blind = blind[-1]
        return blind

    def open(self, first: np.ndarray) -> None:
        """The row after a chunk is open now."""
        self.open_first = np.array(first)
        self.plain = not (self.open_first.any() or self.blind.any())

    def state_dict(self) -> dict[str, Any]:
        return {name: torch.from_numpy(getattr(self, name).copy()) for name in ("open_first", "age", "blind")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.age, self.blind = (np.array(as_array(state[name])) for name in ("age", "blind"))
        self.open(as_array(state["open_first"]))


class PlainSteps:
    """Tells rows in which nothing but steps happened, by comparing whole arrays.

    Args:
        steps: T rows.
        columns: B.

    Attributes:
        flags: `[T + 1, 1]` of such rows in the ring, and of the open row after them.
        stored: flags of such rows, as bytes.
        simple: these, and those of rows that were never written or can no longer be sampled: nothing to free in any.
    """

    def __init__(self, steps: int, columns: int) -> None:
        self.steps, count = steps, steps * columns
        self.flags = np.full((steps + 1, 1), OK | VALID, np.uint8)
        self.flags[-1] = 0
        self.stored = bytes([OK | VALID]) * count
        self.simple = (self.stored, bytes(count), bytes([VALID]) * count)
        self._none, self._all = bytes(count), b"\1" * count
        few = columns <= FEW
        self._read: Callable[[torch.Tensor], Any] = torch.Tensor.tolist if few else _bytes
        self._none_last: Any = [False] * columns if few else bytes(columns)

    def only(
        self, rows: Mapping[str, Any], last: Mapping[str, Any], array: Callable[..., np.ndarray]
    ) -> bool:
        """Whether all rows are steps, none ends or begins an episode, and none begins after them.

        Args:
            array: (name, tensor) → its array.
        """
        none = self._none
        return (
            array("terminated", rows["terminated"]).tobytes() == none
            and array("truncated", rows["truncated"]).tobytes() == none
            and array("is_first", rows["is_first"]).tobytes() == none
            and self._read(last["is_first"]) == self._none_last
            and array("valid", rows["valid"]).tobytes() == self._all
        )


def _bytes(flags: torch.Tensor) -> bytes:
    return as_array(flags).tobytes()
