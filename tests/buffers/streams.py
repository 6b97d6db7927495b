"""Experience whose every number is known, and what a replay buffer must give back of it, told as lists of rows.

A stream writes rollouts the way samplers do, in each autoreset mode, with ends, time limits, crashes, cuts and agents
that are only reset; beside them it keeps plain Python rows. Nothing here computes with indices into a ring.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from uniarena.batch import Batch, Rollout

MODES = ("same_step", "next_step", "dense", "lost")
ACTIONS = 5
GOALS = 4  # neighbouring frames share a goal, so that one is reached again within a window


@dataclass
class Row:
    """One row of a column: what went in, and what is known of it."""

    obs: dict[str, np.ndarray]
    age: int  # rows since the episode began
    seen: bool  # whether the episode's beginning was ever given
    first: bool
    action: int = 0
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    valid: bool = True
    successor: dict[str, np.ndarray] | None = None
    stop: bool = False  # the episode ends here, or breaks off


@dataclass
class Column:
    """A running environment: its frames since the start of the episode, and all rows that it gave."""

    frames: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    first: bool = True
    seen: bool = True
    age: int = 0
    idle: bool = False  # NEXT_STEP: the next row only resets
    goal: int = 0


class Stream:
    """Random experience of `columns` environments.

    Args:
        mode: one of `MODES`.
        frames: stacked frames of the leaf `obs`; 1 is none.
        zero: zeros stand before an episode instead of its first frame.
        events: how likely a step is to be anything but a step.
    """

    def __init__(
        self,
        seed: int,
        columns: int = 1,
        mode: str = "same_step",
        frames: int = 1,
        zero: bool = False,
        events: float = 0.4,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.mode, self.depth, self.zero, self.events = mode, frames, zero, events
        self.count = 0
        self.columns = [Column() for _ in range(columns)]
        for column in self.columns:
            self._begin(column)

    @property
    def space(self) -> spaces.Dict:
        return spaces.Dict(
            {
                "obs": spaces.Box(-np.inf, np.inf, (self.depth, 2), np.float32),
                "action_mask": spaces.MultiBinary(ACTIONS),
                "achieved_goal": spaces.Box(-np.inf, np.inf, (1,), np.float32),
                "desired_goal": spaces.Box(-np.inf, np.inf, (1,), np.float32),
                "step": spaces.Discrete(1000),
            }
        )

    # -- one environment -------------------------------------------------------------------------------------------
    def _frame(self) -> int:
        self.count += 1
        return self.count

    def _begin(self, column: Column, seen: bool = True) -> None:
        """A new episode; one that was not seen from its beginning has frames before the first that is given."""
        past = 0 if seen else int(self.rng.integers(1, 6))
        column.frames = [self._frame() for _ in range(past + 1)]
        column.first, column.seen, column.age = seen, seen, 0
        column.goal = int(self.rng.integers(0, 50))

    def _obs(self, column: Column) -> dict[str, np.ndarray]:
        stack = column.frames[-self.depth :]
        pad = [0 if self.zero else column.frames[0]] * (self.depth - len(stack))
        newest = column.frames[-1]
        return {
            "obs": np.array([[frame, -frame] for frame in pad + stack], np.float32),
            "action_mask": np.array([newest % 2, 1, newest % 3 == 0, 1, 0], np.int8),
            "achieved_goal": np.array([newest // GOALS], np.float32),
            "desired_goal": np.array([column.goal], np.float32),
            "step": np.array(newest % 1000, np.int64),
        }

    def _step(self, column: Column) -> tuple[Row, dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        """One row, the dense next observation, and the final observation if it is told."""
        rng, before = self.rng, self._obs(column)
        row = Row(before, column.age, column.seen, column.first)
        if column.idle:
            row.valid, row.stop, column.idle = False, True, False
            self._begin(column)
            return row, self._obs(column), None
        column.frames.append(self._frame())
        column.first, column.age = False, column.age + 1
        row.action, row.reward = int(rng.integers(ACTIONS)), float(rng.integers(-9, 10))
        row.successor = after = self._obs(column)
        event, final = rng.random() * 0.4 / self.events, None
        if event < 0.25:
            row.terminated, row.truncated, row.stop = event < 0.15, event > 0.12, True
            final = after
            if self.mode == "lost":
                final = row.successor = None
            if self.mode == "next_step":
                column.idle = True
            else:
                self._begin(column)
        elif event < 0.28:  # the environment crashed and was made again
            row.stop = True
            row.successor = after if self.mode == "dense" else None
            self._begin(column)
        return row, after, final

    # -- rollouts ----------------------------------------------------------------------------------------------------
    def rollout(self, steps: int, cuts: bool = True) -> Rollout:
        """The next T rows of every column. With `cuts`, some columns do not go on where they were."""
        if cuts:
            for column in self.columns:
                self._maybe_cut(column)
        rows: list[list[Row]] = []
        dense, ended = [], []
        for t in range(steps):
            found = [self._step(column) for column in self.columns]
            rows.append([row for row, _, _ in found])
            dense.append([after for _, after, _ in found])
            ended += [(t, b, final) for b, (_, _, final) in enumerate(found) if final is not None]
        for b, column in enumerate(self.columns):
            column.rows += [line[b] for line in rows]
        return self._pack(rows, dense, ended)

    def _maybe_cut(self, column: Column) -> None:
        kind = self.rng.random() * 0.4 / self.events
        if kind > 0.15:
            return
        if column.rows and column.rows[-1].valid and not column.rows[-1].stop:
            column.rows[-1].stop = True  # its successor is known: the observation that was to come
        column.idle = False
        self._begin(column, seen=kind < 0.08)

    def _pack(self, rows: list[list[Row]], dense: list[Any], ended: list[Any]) -> Rollout:
        shape = (len(rows), len(self.columns))

        def flags(name: str) -> torch.Tensor:
            return torch.tensor([[getattr(row, name) for row in line] for line in rows])

        fields: dict[str, Any] = {
            "obs": _stack([row.obs for line in rows for row in line], shape),
            "action": flags("action"),
            "reward": flags("reward").float(),
            **{name: flags(name) for name in ("terminated", "truncated", "valid")},
            "is_first": flags("first"),
        }
        ends = None
        if self.mode == "dense":
            fields["next_obs"] = _stack([after for line in dense for after in line], shape)
        elif ended and self.mode != "lost":
            t, b = (torch.tensor([each[k] for each in ended]) for k in (0, 1))
            ends = Batch((len(ended),), t=t, b=b, obs=_stack([each[2] for each in ended], (len(ended),)))
        first = torch.tensor([column.first for column in self.columns])
        last = Batch(
            shape[1:], obs=_stack([self._obs(column) for column in self.columns], shape[1:]), is_first=first
        )
        start = Batch(shape[1:], is_first=fields["is_first"][0])
        return Rollout(Batch(shape, fields), start, last, ends, has_final_obs=self.mode != "lost")


def _stack(trees: list[dict[str, np.ndarray]], shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    stacked = {name: torch.from_numpy(np.stack([tree[name] for tree in trees])) for name in trees[0]}
    return {name: leaf.reshape(*shape, *leaf.shape[1:]) for name, leaf in stacked.items()}


def goal_reward(achieved: np.ndarray, desired: np.ndarray, info: Any) -> tuple[np.ndarray, np.ndarray]:
    """10 and the end where the goal is reached, else −1."""
    reached = (achieved == desired).all(axis=-1)
    return np.where(reached, 10.0, -1.0), reached


@dataclass
class Expected:
    """A transition of n steps, computed by walking through a list."""

    reward: float
    discount: float
    terminated: bool
    steps: int
    next_obs: dict[str, np.ndarray] | None


class Oracle:
    """What a ring of `length` rows a column must hold of a stream."""

    def __init__(self, stream: Stream, length: int, gamma: float = 0.9, n: int = 1) -> None:
        self.stream, self.length, self.gamma, self.n = stream, length, gamma, n

    def stored(self, b: int) -> dict[int, Row]:
        """Position → row of what is still there."""
        rows = self.stream.columns[b].rows
        return {p: rows[p] for p in range(max(0, len(rows) - self.length), len(rows))}

    def can_sample(self, b: int) -> set[int]:
        """Positions of rows that can be sampled."""
        stored = self.stored(b)
        return {p for p, row in stored.items() if self._known(row) and self._whole_stack(stored, p)}

    @staticmethod
    def _known(row: Row) -> bool:
        return row.valid and (row.successor is not None or row.terminated)

    def _whole_stack(self, stored: dict[int, Row], p: int) -> bool:
        row, back = stored[p], self.stream.depth - 1
        if not row.seen and row.age < back:
            return False
        return all(p - k in stored for k in range(min(back, row.age) + 1))

    def episode(self, b: int, p: int) -> list[int]:
        """Positions of the stored rows of the episode of `p`, as far as they belong together."""
        stored, found = self.stored(b), [p]
        while found[0] - 1 in stored and stored[found[0]].age > 0:
            found.insert(0, found[0] - 1)
        while not stored[found[-1]].stop and found[-1] + 1 in stored and self._known(stored[found[-1] + 1]):
            found.append(found[-1] + 1)
        return found

    def transition(self, b: int, p: int, goal: np.ndarray | None = None) -> Expected:
        """The window of n steps from a position on, as if `goal` had been wanted (None: as it was)."""
        stored = self.stored(b)
        total, discount, count = 0.0, 1.0, 0
        for q in [q for q in self.episode(b, p) if q >= p][: self.n]:
            row = stored[q]
            reward, terminated = row.reward, row.terminated
            if goal is not None:
                assert row.successor is not None
                achieved = row.successor["achieved_goal"]
                by_goal = bool((achieved == row.obs["desired_goal"]).all())
                reached = bool((achieved == goal).all())
                reward, terminated = (10.0 if reached else -1.0), reached or (terminated and not by_goal)
            total, discount, count = total + discount * reward, discount * self.gamma, count + 1
            if terminated:
                return Expected(total, 0.0, True, count, row.successor)
        return Expected(total, discount, False, count, row.successor)
