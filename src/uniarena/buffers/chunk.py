"""Chunk: a rollout as the arrays that a ring stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from uniarena.batch import Batch, Rollout, Tree
from uniarena.buffers.flags import FINAL, FIRST, OK, STOP, TERMINATED, TRUNCATED, VALID
from uniarena.buffers.layout import RowLayout


class Chunk(NamedTuple):
    """T rows of B columns as NumPy arrays.

    Attributes:
        obs: leaves `[T, B, …]`; `last`: leaves `[B, …]` of the row after.
        fields: leaves `[T, B, …]` of action and extra fields, in the order of the layout.
        reward, terminated, truncated, first, valid: `[T, B]`; `last_first`: `[B]`.
        ends: `(t [K], b [K], leaves [K, …])` of the true last observations that are known, or None.
    """

    obs: list[np.ndarray]
    last: list[np.ndarray]
    fields: list[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    first: np.ndarray
    valid: np.ndarray
    last_first: np.ndarray
    ends: tuple[np.ndarray, np.ndarray, list[np.ndarray]] | None

    @property
    def steps(self) -> int:
        return len(self.reward)

    def next_first(self) -> np.ndarray:
        """`[T, B]`: whether the row after begins an episode."""
        return np.concatenate((self.first[1:], self.last_first[None]))

    def part(self, start: int, stop: int) -> Chunk:
        """Rows `start … stop − 1` as a chunk of their own."""
        if start == 0 and stop == self.steps:
            return self
        over = stop < self.steps
        ends = self.ends
        if ends is not None:
            t, b, leaves = ends
            kept = np.flatnonzero((t >= start) & (t < stop))
            ends = (t[kept] - start, b[kept], [leaf[kept] for leaf in leaves]) if len(kept) else None
        return Chunk(
            [leaf[start:stop] for leaf in self.obs],
            [leaf[stop] for leaf in self.obs] if over else self.last,
            [leaf[start:stop] for leaf in self.fields],
            self.reward[start:stop],
            self.terminated[start:stop],
            self.truncated[start:stop],
            self.first[start:stop],
            self.valid[start:stop],
            self.first[stop] if over else self.last_first,
            ends,
        )


class ChunkReader:
    """Reads rollouts; remembers the arrays of tensors that come again, as a sampler's own do.

    Args:
        layout: of the rows that are stored.
    """

    def __init__(self, layout: RowLayout) -> None:
        self.layout = layout
        self._seen: dict[str, tuple[torch.Tensor, np.ndarray]] = {}

    def array(self, name: str, tensor: Any) -> np.ndarray:
        """A tensor as an array, without a copy on the CPU. `name` tells tensors apart that keep coming."""
        seen = self._seen.get(name)
        if seen is not None and seen[0] is tensor:
            return seen[1]
        array = as_array(tensor)
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
            self._seen[name] = (tensor, array)
        return array

    def read(self, rollout: Rollout) -> Chunk:
        """All of a rollout.

        Raises:
            KeyError: a field that is to be stored is not in it.
        """
        rows, last = rollout.rows.require("obs", "reward", *self.layout.fields), rollout.last
        chunk = Chunk(
            self._arrays("obs", rows["obs"]),
            self._arrays("obs", last["obs"]),
            [leaf for name in self.layout.fields for leaf in self._arrays(name, rows[name])],
            as_array(rows["reward"]),
            as_array(rows["terminated"]),
            as_array(rows["truncated"]),
            as_array(rows["is_first"]),
            as_array(rows["valid"]),
            as_array(last["is_first"]),
            None,
        )
        return chunk._replace(ends=self._ends(rollout, chunk))

    def _arrays(self, field: str, tree: Tree) -> list[np.ndarray]:
        return [as_array(leaf) for leaf in self.layout.flatten(field, tree)]

    def listed(self, ended: Batch) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """`t [K]`, `b [K]` and leaves `[K, …]` of the final observations that a rollout lists."""
        return as_array(ended["t"]), as_array(ended["b"]), self._arrays("obs", ended["obs"])

    def _ends(self, rollout: Rollout, chunk: Chunk) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]] | None:
        """True last observations: those listed, and with dense successors those of rows after which an episode begins.

        A row that is listed counts as listed: a declared boundary is cut after the environment spoke.
        """
        listed = rollout.ended
        found: list[tuple[np.ndarray, np.ndarray, list[np.ndarray]]] = []
        if listed is not None and listed.shape[0]:
            found.append(self.listed(listed))
        if "next_obs" in rollout.rows:
            over = (chunk.terminated | chunk.truncated | chunk.next_first()) & chunk.valid
            for t, b, _ in found:
                over[t, b] = False
            if over.any():
                t, b = np.nonzero(over)
                found.append((t, b, [leaf[t, b] for leaf in self._arrays("obs", rollout.rows["next_obs"])]))
        if len(found) < 2:
            return found[0] if found else None
        join: Callable[..., Any] = np.concatenate
        leaves = [join(pair) for pair in zip(*(each[2] for each in found), strict=True)]
        return join([each[0] for each in found]), join([each[1] for each in found]), leaves


def as_array(tensor: Any) -> np.ndarray:
    """A tensor or array as a NumPy array; from another device it is copied."""
    try:
        array: np.ndarray = tensor.numpy()
    except (TypeError, RuntimeError):  # on another device, or part of a graph
        return tensor.detach().cpu().numpy()
    except AttributeError:
        return np.asarray(tensor)
    return array


def flags_of(chunk: Chunk) -> np.ndarray:
    """Flags `[T, B]` of the rows of a chunk.

    An episode that is left without an end broke off in its last row: what followed it is not known, unless the chunk
    says so. Neither is it for a row that was truncated. Such a row is not sampled, and windows end before it.
    """
    valid, terminated, truncated, first = chunk.valid, chunk.terminated, chunk.truncated, chunk.first
    ended = terminated | truncated
    broken = chunk.next_first() & ~ended
    known = ~broken & (~truncated | terminated)
    if chunk.ends is not None:
        known[chunk.ends[0], chunk.ends[1]] = True
    known &= valid
    stop = ended | broken
    stop[:-1] |= ~known[1:]
    flags: np.ndarray = VALID + OK * known.view(np.uint8) + STOP * stop.view(np.uint8)
    flags += terminated.view(np.uint8)  # TERMINATED is 1
    flags += TRUNCATED * truncated.view(np.uint8)
    flags *= valid
    flags += FIRST * first.view(np.uint8)
    return flags


def flags_of_few(
    terminated: list[list[bool]],
    truncated: list[list[bool]],
    first: list[list[bool]],
    listed: set[tuple[int, int]],
) -> list[list[int]]:
    """What `flags_of` gives, number by number, which of few rows is quicker; all of them valid.

    Args:
        first: `[T + 1][B]`, that of the row after the chunk included.
        listed: (t, b) of the rows whose true last observation is known; they are flagged as `FINAL` too.
    """
    flags: list[list[int]] = []
    for t, (failed, cut, begins, following) in enumerate(
        zip(terminated, truncated, first, first[1:], strict=False)
    ):
        row = []
        for b, (fails, cuts, begin, follows) in enumerate(zip(failed, cut, begins, following, strict=True)):
            broken = follows and not (fails or cuts)
            final = (t, b) in listed
            flag = VALID | TERMINATED * fails | TRUNCATED * cuts | FIRST * begin | FINAL * final
            flag |= STOP * (fails or cuts or broken)
            if final or not (broken or (cuts and not fails)):
                flag |= OK
            elif t:
                flags[-1][b] |= STOP
            row.append(flag)
        flags.append(row)
    return flags


def equal_bits(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """`[B, …]`, `[B, …]` → `[B]`: the same numbers bit by bit, NaN included."""
    count = len(one)
    a, b = (np.ascontiguousarray(x).reshape(count, -1).view(np.uint8) for x in (one, other))
    return (a == b).all(axis=1)
