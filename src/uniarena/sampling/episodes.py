"""Finished episodes of a stream of rollouts: returns and lengths in raw reward, one pass per chunk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from uniarena.batch import Rollout

FEW = 16
"""Steps of a chunk up to which lists are quicker than arrays."""


@dataclass(frozen=True)
class Episode:
    """A finished episode.

    Attributes:
        env: column.
        t: row of its last step within the chunk.
        episode_return: sum of raw rewards.
        length: valid steps.
        totals: sums of further reward streams, e.g. `intrinsic_return`.
        success: what the environment said at the end, NaN where nothing.
    """

    env: int
    t: int
    episode_return: float
    length: int
    totals: dict[str, float] = field(default_factory=dict)
    success: float = float("nan")


class EpisodeTracker:
    """Running sums per column that survive chunk borders (and checkpoints)."""

    def __init__(self) -> None:
        self._sums: dict[str, np.ndarray] = {}
        self._length: np.ndarray | None = None
        self._goes_on = np.zeros(0, dtype=bool)
        self._seen: dict[str, tuple[torch.Tensor, np.ndarray]] = {}

    def update(self, rollout: Rollout, streams: Mapping[str, torch.Tensor] | None = None) -> list[Episode]:
        """Account for a chunk → the episodes that ended in it, in order of time.

        The return is in the environment's own reward: `info["raw_reward"]` where wrappers changed it, or what
        gymnasium's `RecordEpisodeStatistics` counted. Ends for learning only (`info["episode_goes_on"]`, a lost life)
        are none. Episodes that a declared boundary cut after the last row (`last.cut`), that broke off with their
        simulator (`lost`) or whose last rows were left out, are dropped, not reported; so is what an interruption left
        of one before row 0.

        Args:
            streams: further `[T, B]` rewards to sum beside the raw one.
        """
        few = None
        if rollout.T * rollout.B <= FEW and not streams and not rollout.rows.get("info"):
            few = self._update_few(rollout)
        return self._update(rollout, streams or {}) if few is None else few

    def _update(self, rollout: Rollout, streams: Mapping[str, torch.Tensor]) -> list[Episode]:
        """`update` by arrays."""
        rows = rollout.rows
        info = rows.get("info", {})
        valid, end = _array(rows.valid), _array(rows.terminated) | _array(rows.truncated)
        values = {"return": info.get("raw_reward", rows.reward), **streams}
        arrays = {name: _array(x).astype(np.float64) for name, x in values.items()}
        whole = np.count_nonzero(valid) == valid.size
        if not whole:
            arrays = {name: np.where(valid, array, 0.0) for name, array in arrays.items()}
        if self._length is None:
            self._length = np.zeros(rollout.B, dtype=np.int64)
            self._goes_on = np.zeros(rollout.B, dtype=bool)
        if whole and not np.count_nonzero(end) and _uneventful(rollout):
            return self._go_on(arrays, rollout.T)
        goes_on = np.zeros(end.shape, dtype=bool)
        if "episode_goes_on" in info:
            goes_on = end & (_array(info["episode_goes_on"]) > 0.0)
            end = end & ~goes_on
        counted = _array(info["episode_return"]) if "episode_return" in info else None
        dropped = _dropped(rollout)
        # cumulative sums over the chunk; an episode's total is the difference between its end and the end before
        cumulative = {name: np.add.accumulate(array, axis=0) for name, array in arrays.items()}
        steps = np.add.accumulate(valid, axis=0, dtype=np.int64)
        carry = {name: self._sums.get(name, np.zeros(rollout.B)).copy() for name in arrays}
        length = self._length.copy()
        episodes = []
        success = _array(info["is_success"]) if "is_success" in info else None
        if "is_first" in rows:
            begins = _array(rows.is_first)[0] & ~self._goes_on
            length[begins] = 0
            for sums in carry.values():
                sums[begins] = 0.0
        for t, b in zip(*(places.tolist() for places in (end | dropped).nonzero()), strict=True):
            totals = {name: float(carry[name][b] + cumulative[name][t, b]) for name in arrays}
            count = int(length[b] + steps[t, b])
            for name in arrays:
                carry[name][b] = -cumulative[name][t, b]
            length[b] = -steps[t, b]
            if dropped[t, b] or not valid[t, b]:
                continue
            flag = float("nan") if success is None else float(success[t, b])
            total = totals.pop("return")
            if counted is not None and counted[t, b] == counted[t, b]:
                total = float(counted[t, b])
            episodes.append(Episode(b, t, total, count, totals, flag))
        self._sums = {name: carry[name] + cumulative[name][-1] for name in arrays}
        self._length = length + steps[-1]
        self._goes_on = self._left_open(goes_on, valid) & ("cut" not in rollout.last)
        return episodes

    def _update_few(self, rollout: Rollout) -> list[Episode] | None:
        """`update` of a handful of steps, number by number; None: something broke off or was left out."""
        sums, length, array = self._sums.get("return"), self._length, self._array
        if rollout.lost is not None or "cut" in rollout.last or sums is None or length is None:
            return None
        rows = rollout.rows.fields
        if not array("valid", rows).all():
            return None
        totals, lengths, episodes = sums.tolist(), length.tolist(), []
        if "is_first" in rows:
            for b, (begins, goes_on) in enumerate(
                zip(array("is_first", rows)[0].tolist(), self._goes_on.tolist(), strict=True)
            ):
                if begins and not goes_on:
                    totals[b], lengths[b] = 0.0, 0
        ends = (array("terminated", rows) | array("truncated", rows)).tolist()
        for t, (over, rewards) in enumerate(zip(ends, array("reward", rows).tolist(), strict=True)):
            for b, (end, reward) in enumerate(zip(over, rewards, strict=True)):
                totals[b] += reward
                lengths[b] += 1
                if end:
                    episodes.append(Episode(b, t, totals[b], lengths[b]))
                    totals[b], lengths[b] = 0.0, 0
        self._sums, self._length = {"return": np.array(totals)}, np.array(lengths, np.int64)
        self._goes_on = np.zeros(len(totals), dtype=bool)
        return episodes

    def _array(self, name: str, rows: Mapping[str, torch.Tensor]) -> np.ndarray:
        """A field as an array, which is remembered as long as the same tensor comes, as a sampler's own does."""
        tensor = rows[name]
        seen = self._seen.get(name)
        if seen is None or seen[0] is not tensor:
            array = _array(tensor)
            if not tensor.is_cpu:
                return array
            seen = self._seen[name] = (tensor, array)
        return seen[1]

    def _go_on(self, arrays: Mapping[str, np.ndarray], steps: int) -> list[Episode]:
        """A chunk in which nothing but steps happened."""
        for name, array in arrays.items():
            self._sums[name] = self._sums.get(name, 0.0) + np.add.accumulate(array, axis=0)[-1]
        assert self._length is not None
        self._length = self._length + steps
        self._goes_on = np.zeros_like(self._goes_on)
        return []

    def _left_open(self, goes_on: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """`[B]` columns whose newest step ended an episode of a game that goes on."""
        newest = len(valid) - 1 - valid[::-1].argmax(axis=0)
        last = goes_on[newest, np.arange(valid.shape[1])]
        return np.where(valid.any(axis=0), last, self._goes_on)

    def state_dict(self) -> dict[str, Any]:
        return {"sums": dict(self._sums), "length": self._length, "goes_on": self._goes_on}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums = {name: np.asarray(value) for name, value in state["sums"].items()}
        self._length = None if state["length"] is None else np.asarray(state["length"])
        self._goes_on = np.asarray(state["goes_on"], dtype=bool)


def _dropped(rollout: Rollout) -> np.ndarray:
    """`[T, B]` rows at which an episode broke off: a declared boundary, or a simulator that was lost."""
    dropped = np.zeros((rollout.T, rollout.B), dtype=bool)
    if "cut" in rollout.last:
        dropped[-1] = _array(rollout.last.cut)
    if rollout.lost is not None:
        dropped[_array(rollout.lost.t), _array(rollout.lost.b)] = True
    return dropped


def _uneventful(rollout: Rollout) -> bool:
    """Whether no episode begins with row 0, and none breaks off."""
    first = rollout.rows.get("is_first")
    return (
        rollout.lost is None
        and "cut" not in rollout.last
        and (first is None or not np.count_nonzero(_array(first)[0]))
    )


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.numpy() if tensor.is_cpu else tensor.cpu().numpy()
