"""Segments: replay memory as it is saved, in parts. A checkpoint writes those that changed since the last one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from uniarena.buffers.chunk import as_array
from uniarena.buffers.flags import FINAL
from uniarena.checkpoint import Segment

if TYPE_CHECKING:
    from uniarena.buffers.ring import Ring

LEAST = 2**22
"""Bytes of a segment, at least: a smaller file costs more than writing it again."""

MOST = 256
"""Segments of a ring."""


class Segments:
    """Which parts of a ring changed since its state was last taken.

    A ring writes in order of time, so what changed are the rows since then, the row before them, the `depth` rows after
    them (the oldest: freed, or no longer whole stacks), and the episodes that were closed since then.
    """

    def __init__(self) -> None:
        self._stamps: list[str] = []
        self._since: int | None = None  # lowest position that changed; None: all did
        self._cursor = 0  # of the ring, when its state was taken

    def changed_from(self, position: int) -> None:
        """Rows from `position` on were written."""
        if self._since is not None:
            self._since = min(self._since, position)

    def state(self, ring: Ring) -> list[Segment]:
        """All segments, with a new stamp where something changed."""
        size = rows_of(ring)
        used = min(ring.cursor + 1, ring.rows)
        count = -(-used // size)
        touched = self._touched(ring, size, count)
        stamps = [
            secrets.token_hex(16) if k in touched or k >= len(self._stamps) else self._stamps[k]
            for k in range(count)
        ]
        self._mark(ring, stamps)
        places = [
            slice(k * size * ring.columns, min(used, (k + 1) * size) * ring.columns) for k in range(count)
        ]
        return [Segment(_content(ring, each), stamp) for each, stamp in zip(places, stamps, strict=True)]

    def load(self, ring: Ring, segments: Sequence[Mapping[str, Any]]) -> None:
        """Fill the ring, whose cursor is set already.

        Raises:
            ValueError: there are fewer or more rows than the cursor says.
        """
        used = min(ring.cursor + 1, ring.rows) * ring.columns
        ring.flags[used:] = 0
        ring.finals.clear()
        self._stamps, self._since = [], None
        start, sizes = 0, []
        for segment in segments:
            sizes.append(_fill(ring, start, used, segment))
            start += sizes[-1]
        if start != used:
            raise ValueError(f"the saved replay memory has {start:,} rows; its cursor says {used:,}.")
        stamps = [getattr(segment, "stamp", None) for segment in segments]
        size = rows_of(ring) * ring.columns
        if all(stamps) and all(each == size for each in sizes[:-1]) and sizes[-1] <= size:
            self._mark(ring, [str(stamp) for stamp in stamps])

    def _mark(self, ring: Ring, stamps: list[str]) -> None:
        self._stamps, self._since, self._cursor = stamps, max(0, ring.cursor - 1), ring.cursor

    def _touched(self, ring: Ring, size: int, count: int) -> set[int]:
        if self._since is None:
            return set(range(count))
        if ring.cursor == self._cursor:
            return set()
        last = ring.cursor + max(1, ring.depth)
        if last - self._since >= ring.rows:
            return set(range(count))
        return set(np.unique(np.arange(self._since, last + 1) % ring.rows // size).tolist())


def rows_of(ring: Ring) -> int:
    """Rows `[columns]` of a segment."""
    row_bytes = sum(each[: ring.columns].nbytes for each in ring.parts().values())
    return max(-(-ring.rows // MOST), -(-LEAST // row_bytes))


def _content(ring: Ring, places: slice) -> dict[str, torch.Tensor]:
    content = {name: array[places] for name, array in ring.parts().items()}
    final = ring.final[places][(ring.flags[places] & FINAL) != 0]
    content["finals.rows"] = ring.finals.table[final]
    content |= {f"finals.frames.{k}": each[final] for k, each in enumerate(ring.finals.frames)}
    return {name: torch.from_numpy(array) for name, array in content.items()}


def _fill(ring: Ring, start: int, used: int, content: Mapping[str, Any]) -> int:
    """Take over a segment at a place → how many places it has.

    Raises:
        ValueError: it holds more rows than fit, or other parts.
    """
    count = len(content["flags"])
    if start + count > used or not count:
        raise ValueError(f"the saved replay memory has segments that do not fit its {used:,} rows.")
    for name, target in ring.parts().items():
        saved = as_array(content[name])
        if saved.dtype != target.dtype or saved.shape != (count, *target.shape[1:]):
            raise ValueError(
                f"{name} of the saved replay memory is {saved.dtype} {saved.shape}, not {target.dtype} "
                f"{(count, *target.shape[1:])}."
            )
        target[start : start + count] = saved
    frames = [as_array(content[f"finals.frames.{k}"]) for k in range(len(ring.frames))]
    places = ring.finals.put_rows(as_array(content["finals.rows"]), frames)
    ring.final[start : start + count][(ring.flags[start : start + count] & FINAL) != 0] = places
    return count
