"""Ring: transitions of B columns in memory that is taken once; what is oldest makes room for what is new.

Rows lie at `[capacity / B, B]`, row-major, each observation once: the next observation of a row is the row after it.
The row after the newest, the *open* row, already holds the observation that the next chunk will start with, so nothing
is special about the newest transition. True last observations of episodes are kept aside (`finals`). A chunk that does
not start with the open observation (a reset boundary, a crash, another actor) makes a cut: the episode before it ends
there, like one that was truncated.

A *position* counts the rows of a column over the whole life of the ring; an *id* is `position · B + column` and never
comes again; a *place* is where a row lies, `id` modulo the places there are. Reading takes places, and wraps them.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from uniarena.batch import Rollout
from uniarena.buffers.chunk import Chunk, flags_of, flags_of_few
from uniarena.buffers.finals import FinalStore
from uniarena.buffers.flags import FINAL, OK, STOP, TERMINATED, VALID
from uniarena.buffers.gather import gather
from uniarena.buffers.layout import make_layout
from uniarena.buffers.memory import Memory, announce
from uniarena.buffers.running import FEW, PlainSteps, Running
from uniarena.buffers.segments import Segments
from uniarena.buffers.spec import BufferSpec
from uniarena.buffers.writer import RowWriter

TO_CHECK = 1000
"""Rows of stacked observations that are compared with what would be rebuilt, before the stacking is believed."""


class Ring:
    """Storage and its books; sampling is made of `flags`, `reward`, `age` and `gather`.

    Args:
        spec: spaces, columns, stacks.
        capacity: transitions; rounded up to a multiple of the columns.
        folder: keep rows in files here; None: in RAM.
        episodes: keep where every row's episode begins, and for `whole` also where it ends.
        more_bytes: of books that others keep about a row, for the estimate.

    Attributes:
        cursor: position of the open row; `oldest` the position of the oldest.
        size: rows that can be sampled.
        flags, reward, age: `[places]`; age: rows since the start of the episode, as far as it is stored.
        until: `[places]` position of the last row of the episode, −1 while it runs. These two where `episodes` asks.

    Raises:
        ConfigError: it will not fit.
    """

    def __init__(
        self,
        spec: BufferSpec,
        capacity: int,
        folder: str | None = None,
        episodes: Literal["begin", "whole"] | None = None,
        more_bytes: float = 0,
    ) -> None:
        self.columns, self.length = spec.columns, -(-capacity // spec.columns)
        self.rows = self.length + 1
        self.places = self.rows * self.columns
        self.stacked, self.layout = make_layout(spec)
        self.depth = max((each.leaf.frames for each in self.stacked), default=1)
        self._tracked = episodes is not None or self.depth > 1
        books = 9 + 4 * self._tracked + 8 * (episodes == "whole") + more_bytes
        row_bytes = self.layout.row_bytes + sum(each.nbytes for each in self.stacked)
        announce(self.places, row_bytes, books, folder, self.columns)
        memory = Memory(folder)
        self.table = memory.zeros("rows", (self.places, self.layout.row_bytes), np.uint8)
        self.frames = [
            memory.zeros(f"frames-{k}", (self.places, *each.frame_shape), each.dtype)
            for k, each in enumerate(self.stacked)
        ]
        self.finals = FinalStore(self.layout, self.stacked, memory)
        self.flags = np.zeros(self.places, np.uint8)
        self.reward = np.zeros(self.places, np.float32)
        self.final = np.zeros(self.places, np.int32)
        self.age = np.zeros(self.places if self._tracked else 0, np.int32)
        self.until = np.full(self.places if episodes == "whole" else 0, -1, np.int64)
        self._writer = RowWriter(self.layout, self.stacked, self.table, self.frames, self.columns)
        shape = (self.rows, self.columns)
        self._flag_grid, self._reward_grid = self.flags.reshape(shape), self.reward.reshape(shape)
        self._final_grid = self.final.reshape(shape)
        self._age_grid = self.age.reshape(shape if len(self.age) else 0)
        self._until_grid = self.until.reshape(shape if len(self.until) else 0)
        self._plain = PlainSteps(1, self.columns)
        self.cursor, self.size = 0, 0
        self._running, self._segments = Running(self.columns), Segments()
        self._unchecked = TO_CHECK if self.stacked else 0

    @property
    def oldest(self) -> int:
        """Position of the oldest row."""
        return max(0, self.cursor - self.length)

    # -- writing -------------------------------------------------------------------------------------------------
    def add(self, rollout: Rollout) -> None:
        """Store a rollout of B columns.

        Raises:
            ValueError: another number of columns, or a stack that is not one.
        """
        steps, columns = rollout.rows.shape
        if columns != self.columns:
            raise ValueError(
                f"a rollout of {columns} columns was added to a replay buffer for {self.columns}; build the buffer for "
                "the environments that feed it."
            )
        plain = rollout.ended is None and not self._unchecked
        if plain and self._add_plain(rollout, steps):
            return
        if steps * columns <= FEW and self._add_few(rollout, steps):
            return
        chunk = self._writer.reader.read(rollout)
        for start in range(0, steps, self.length):
            part = chunk.part(start, min(steps, start + self.length))
            self._write(part)
            if self._unchecked:
                self._check_stacks(part)

    def _add_plain(self, rollout: Rollout, steps: int) -> bool:
        """Store rows in which nothing but steps happened; False: there is more to it, and nothing was done.

        Every line counts here: it runs once per environment step where every step is a chunk.
        """
        writer, rows, last = self._writer, rollout.rows._fields, rollout.last._fields
        array, here = writer.reader.array, self.cursor % self.rows
        end = here + steps
        if not self._running.plain or end >= self.rows:
            return False
        if steps != self._plain.steps:
            self._plain = PlainSteps(steps, self.columns)
        plain = self._plain
        if not plain.only(rows, last, array):
            return False
        gone = self._flag_grid[here + 1 : end + 1].tobytes()
        if gone not in plain.simple or not writer.continues(rows):
            return False
        at = slice(here, end)
        writer.put_plain(at, rows, last["obs"])
        self._reward_grid[at] = array("reward", rows["reward"])
        self._flag_grid[here : end + 1] = plain.flags
        if gone != plain.stored:
            self.size += steps * self.columns
        self.cursor += steps
        if self._tracked:
            self._track_plain(at)
        return True

    def _add_few(self, rollout: Rollout, steps: int) -> bool:
        """Store few rows, of which some end or begin episodes; False: there is more to it, and nothing was done.

        What `_write` does, number by number: its arrays would hold a handful.
        """
        writer, rows, last = self._writer, rollout.rows._fields, rollout.last._fields
        array, here = writer.reader.array, self.cursor % self.rows
        end = here + steps
        more = self._tracked or self._running.blind.any() or "next_obs" in rows or not self.cursor
        if more or end >= self.rows or not array("valid", rows["valid"]).all():
            return False
        first = [*array("is_first", rows["is_first"]).tolist(), last["is_first"].tolist()]
        if first[0] != self._running.open_first.tolist() or not writer.continues(rows):
            return False
        listed: set[tuple[int, int]] = set()
        if rollout.ended is not None:
            t, b, leaves = writer.reader.listed(rollout.ended)
            listed = set(zip(t.tolist(), b.tolist(), strict=True))
        ends = [array(name, rows[name]).tolist() for name in ("terminated", "truncated")]
        flags = flags_of_few(ends[0], ends[1], first, listed)
        if any(self._flag_grid[here + 1 : end + 1].tobytes()):
            self._retire(self.cursor + 1, steps)
        if not all(flag & OK for flag in flags[0]):
            self._close_before(np.array(flags[0], np.uint8), None)
        at = slice(here, end)
        writer.put_plain(at, rows, last["obs"])
        self._reward_grid[at] = array("reward", rows["reward"])
        if listed:
            self._final_grid[here + t, b] = self.finals.put(leaves)
        self._flag_grid[at] = flags
        self.size += sum(flag & OK != 0 for row in flags for flag in row)
        self.cursor += steps
        self._running.open(np.array(first[-1]))
        return True

    def _track_plain(self, rows: slice) -> None:
        """Ages of rows in which every episode just goes on."""
        steps = rows.stop - rows.start
        self._age_grid[rows] = self._running.age + np.arange(steps, dtype=np.int32)[:, None]
        self._running.age += np.int32(steps)
        if len(self.until):
            self._until_grid[rows] = -1
        if self.depth > 1:
            self._drop_broken_stacks()

    def _write(self, chunk: Chunk) -> None:
        """Store at most `length` rows."""
        start, steps = self.cursor, chunk.steps
        cut, flags = self._cut(chunk), flags_of(chunk)
        self._retire(start + 1, steps)
        if start:
            self._close_before(flags[0], cut)
        rows = self.span(start, steps)
        self._writer.put(rows, chunk, cut is not None)
        self._writer.put_open((start + steps) % self.rows, chunk.last)
        self._reward_grid[rows] = chunk.reward
        if self._tracked:
            self._age_grid[rows] = age = self._running.ages(chunk, cut)
            unseen = self._running.unseen(chunk, cut) if self.depth > 1 else None
            if unseen is not None:  # their stacks reach back to frames that were never stored
                flags[unseen & (age < self.depth - 1)] &= 255 - OK
        if chunk.ends is not None:
            t, b, leaves = chunk.ends
            self._final_grid[(start + t) % self.rows, b] = self.finals.put(leaves)
            flags[t, b] |= FINAL
        self._flag_grid[rows] = flags
        self.size += _count(flags & OK)
        self.cursor += steps
        self._running.open(chunk.last_first)
        if len(self.until):
            self._until_grid[rows] = -1
            for t, b in np.argwhere((flags & (STOP | VALID)) == STOP | VALID):
                self._close(start + int(t), int(b))
        if self.depth > 1:
            self._drop_broken_stacks()

    def _cut(self, chunk: Chunk) -> np.ndarray | None:
        """`[B]` columns whose stored rows the chunk does not continue; None: it continues all of them."""
        if not self.cursor:
            return np.ones(self.columns, bool)
        same = chunk.first[0] == self._running.open_first
        same &= self._writer.same_start(chunk, self.cursor % self.rows)
        return None if same.all() else ~same

    def _retire(self, position: int, count: int) -> None:
        """Free the rows that lie where rows from `position` on will."""
        rows = self.span(position, count)
        flags = self._flag_grid[rows]
        self.size -= _count(flags & OK)
        kept = (flags & FINAL) != 0
        if kept.any():
            self.finals.release(self._final_grid[rows][kept])
        self._flag_grid[rows] = 0

    def _close_before(self, following: np.ndarray, cut: np.ndarray | None) -> None:
        """End windows with the newest rows where the chunk does not go on, or goes on with a row (of flags `following`
        `[B]`) that no window may enter.
        """
        row = (self.cursor - 1) % self.rows
        flags = self._flag_grid[row]
        before = flags.copy()
        stop = (following & OK) == 0
        if cut is not None:
            stop = stop | cut
            keep = np.flatnonzero(cut & ((flags & (OK | FINAL | TERMINATED)) == OK))
            if len(keep):
                self._final_grid[row, keep] = self._keep_open(keep)
                flags[keep] |= FINAL
        flags[stop & (flags != 0)] |= STOP
        if len(self.until):
            for b in np.flatnonzero(stop & ((before & (STOP | VALID)) == VALID)):
                self._close(self.cursor - 1, int(b))

    def _keep_open(self, columns: np.ndarray) -> np.ndarray:
        """Keep the open observations of these columns as final ones → their places."""
        places = (self.cursor % self.rows) * self.columns + columns
        frames = [each[places] for each in self.frames]
        return self.finals.put_rows(self.table[places, : self.layout.obs_bytes], frames)

    def _drop_broken_stacks(self) -> None:
        """The oldest rows are not sampled once frames of their stacks were overwritten."""
        count = min(self.depth - 1, self.cursor - self.oldest)
        if self.oldest == 0 or count == 0:
            return
        rows = self.span(self.oldest, count)
        flags = self._flag_grid[rows]
        lost = ((flags & OK) != 0) & (self._age_grid[rows] >= np.arange(1, count + 1)[:, None])
        if lost.any():
            self._flag_grid[rows] = np.where(lost, flags & (255 - OK), flags)
            self.size -= _count(lost)

    def _close(self, position: int, column: int) -> None:
        """The episode of a column ends at a position, or one row before where that row's successor is not known."""
        row = position % self.rows
        begin = max(position - int(self._age_grid[row, column]), self.oldest)
        self._segments.changed_from(begin)
        known = self._flag_grid[row, column] & OK
        rows = np.arange(begin, position + 1) % self.rows
        self._until_grid[rows, column] = position if known else position - 1

    def _check_stacks(self, chunk: Chunk) -> None:
        """Compare what was stored with what would be rebuilt.

        Raises:
            ValueError: they differ.
        """
        self._unchecked -= chunk.steps * self.columns
        start = self.cursor - chunk.steps
        t, b = np.nonzero(self._flag_grid[self.span(start, chunk.steps)] & OK)
        if not len(t):
            return
        places = ((start + t) % self.rows) * self.columns + b
        obs, _, _ = gather(self, places, self.flags[places])
        for frames in self.stacked:
            if not np.array_equal(obs[frames.index], chunk.obs[frames.index][t, b]):
                path = self.layout.leaves["obs"][frames.index].path
                raise ValueError(
                    f"{path} was to be stored as {frames.leaf.frames} stacked frames along axis {frames.leaf.axis}, "
                    "but its rows are not the frames of those before: set agent.buffer.frame_stack to false, or leave "
                    "the stacked observation as it is after the wrapper that stacks it."
                )

    # -- reading -------------------------------------------------------------------------------------------------
    def span(self, position: int, count: int) -> Any:
        """Index of the rows of `count` positions: a slice where they lie in a row."""
        start = position % self.rows
        if start + count <= self.rows:
            return slice(start, start + count)
        return np.arange(start, start + count) % self.rows

    @property
    def first_place(self) -> int:
        """Place of the oldest row's first column."""
        return (self.oldest % self.rows) * self.columns

    @property
    def newest_place(self) -> int:
        """Place of the newest row's first column, counted on from `first_place` without a wrap."""
        return self.first_place + (self.cursor - self.oldest - 1) * self.columns

    @property
    def id_shift(self) -> int:
        """What a place, counted on from `first_place`, lacks to the id of its row."""
        oldest = self.oldest
        return (oldest - oldest % self.rows) * self.columns

    @property
    def first_id(self) -> int:
        return self.oldest * self.columns

    @property
    def end_id(self) -> int:
        """One more than the newest id."""
        return self.cursor * self.columns

    # -- state ---------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The rows that were written, in segments, and nothing of the memory beyond. The tensors share the ring's
        memory: write them out, or copy them, before the next `add`.
        """
        return {
            "layout": self._signature(),
            "cursor": self.cursor,
            "running": self._running.state_dict(),
            "unchecked": self._unchecked,
            "segments": self._segments.state(self),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where the state was taken; running episodes go on if their next chunk continues them.

        Raises:
            ValueError: it is of a ring of another shape.
        """
        if state["layout"] != self._signature():
            raise ValueError(
                f"the saved replay memory holds {state['layout']}; this one is for {self._signature()}. Give the same "
                "capacity, number of environments, observation and action spaces, and extra fields."
            )
        self.cursor, self._unchecked = int(state["cursor"]), int(state["unchecked"])
        self._segments.load(self, state["segments"])
        self._running.load_state_dict(state["running"])
        self.size = int(np.count_nonzero(self.flags & OK))
        if self.cursor:
            self._writer.reopen(self.cursor % self.rows)

    def parts(self) -> dict[str, np.ndarray]:
        """Arrays `[places, …]` that make up a row, by name."""
        frames = {f"frames.{k}": each for k, each in enumerate(self.frames)}
        return {"rows": self.table, "flags": self.flags, "reward": self.reward, **self._books(), **frames}

    def _books(self) -> dict[str, np.ndarray]:
        found = {"age": self.age} if len(self.age) else {}
        return {**found, "until": self.until} if len(self.until) else found

    def _signature(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "columns": self.columns,
            "leaves": self.layout.describe(),
            "stacks": [[each.leaf.path, each.leaf.frames, each.leaf.axis] for each in self.stacked],
        }


def _count(flags: np.ndarray) -> int:
    return int(np.count_nonzero(flags))
