"""Prioritized replay: transitions are drawn in proportion to how much is still to be learned from them.

Schaul et al. 2016 (arXiv:1511.05952): P(i) = p_i^α / Σ p^α with proportional priorities, drawn stratified; importance
weights w_i = (P_min / P_i)^β, at most 1, where P_min is the smallest in the sample. New transitions get the largest
priority that was ever seen, so that each is drawn once at least.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from uniarena.buffers.chunk import as_array
from uniarena.buffers.flags import OK
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.buffers.spec import BufferSpec
from uniarena.buffers.sum_tree import SumTree
from uniarena.config import Between, config
from uniarena.optim.schedules import ScheduleConfig, make_schedule

ROUNDS = 32
"""Draws again where rounding led to a transition that cannot be sampled."""


@config
class PrioritizedConfig(ReplayConfig):
    """Settings of `PrioritizedReplay`."""

    alpha: Annotated[float, Between(0)] = 0.6  # how much priorities count; 0 is uniform
    beta: Annotated[float | ScheduleConfig, Between(0, 1)] = ScheduleConfig(
        start=0.4, end=1.0
    )  # how much importance weights correct the bias
    epsilon: Annotated[float, Between(0)] = 1e-6  # added to every priority, so that none is 0


class PrioritizedReplay(ReplayBuffer):
    """`ReplayBuffer` that draws by priority. The learner, or anyone, sets priorities by `reprioritise`.

    Args:
        cfg: an instance of `Config`.
        spec: of the run.

    Attributes:
        max_priority: the largest that was seen.
    """

    Config = PrioritizedConfig
    index_bytes = 8.6  # a leaf of the sum tree, and its part of the nodes above

    def __init__(self, cfg: PrioritizedConfig, spec: BufferSpec) -> None:
        super().__init__(cfg, spec)
        self.alpha, self.epsilon = cfg.alpha, cfg.epsilon
        self.tree = SumTree(self.ring.places)
        self.max_priority = 1.0
        self._beta = make_schedule(cfg.beta)
        self.beta = self._beta(0.0)
        self._strata, self._uniform = np.arange(0), torch.empty(0)
        self._seen = 0  # position up to which rows have got their first priority

    def reprioritise(self, index: Any, priority: Any) -> None:
        """Set priorities of sampled transitions; those that were overwritten since are passed over.

        Args:
            index: `[N]` the `index` of a sample.
            priority: `[N]`, such as |TD error|; from 0 up.

        Raises:
            ValueError: a priority is negative, infinite or NaN.
        """
        ids, priority = as_array(index), as_array(priority).astype(np.float64)
        if not len(ids):
            return
        largest = float(np.maximum.reduce(priority))
        if not (np.minimum.reduce(priority) >= 0.0 and largest < np.inf):
            odd = int(np.flatnonzero(~((priority >= 0) & (priority < np.inf)))[0])
            raise ValueError(
                f"the priority of entry {odd} of {len(priority)} is {priority[odd]}; expected a finite number from 0 "
                "up. Has the loss become NaN?"
            )
        self._admit()
        ring = self.ring
        places = ids % ring.places
        ok = ring.flags.take(places) & OK
        first, end = ring.first_id, ring.end_id
        if np.count_nonzero(ok) < len(ids) or np.minimum.reduce(ids) < first or np.maximum.reduce(ids) >= end:
            live = (ok != 0) & (ids >= first) & (ids < end)
            places, priority = places[live], priority[live]
            largest = float(priority.max(initial=0.0))
        self.max_priority = max(self.max_priority, largest + self.epsilon)
        priority += self.epsilon
        priority **= self.alpha
        self.tree.set(places, priority)

    def set_progress(self, fraction: float) -> None:
        """Move β to its place at this fraction of the run, in [0, 1]."""
        self.beta = self._beta(fraction)

    def state_dict(self) -> dict[str, Any]:
        self._admit()
        used = min(self.ring.cursor + 1, self.ring.rows) * self.ring.columns
        return {
            **super().state_dict(),
            "priorities": torch.from_numpy(self.tree.leaves[:used]),
            "max_priority": self.max_priority,
            "beta": self.beta,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.tree.restore(as_array(state["priorities"]))
        self.max_priority, self.beta = float(state["max_priority"]), float(state["beta"])
        self._seen = self.ring.cursor

    def _choose(self, size: int, generator: torch.Generator | None) -> tuple[np.ndarray, np.ndarray, Tensor]:
        self._admit()
        total = self.tree.total
        if not total > 0.0:
            return super()._choose(size, generator)
        if len(self._strata) != size:
            self._strata, self._uniform = np.arange(size), torch.empty(size, dtype=torch.float64)
        draw = self._uniform.uniform_(generator=generator).numpy() + self._strata
        found = self.tree.find(draw * (total / size))
        priority = self.tree.leaves.take(found)
        lowest = np.minimum.reduce(priority)
        if not lowest > 0.0:
            self._redraw_empty(found, priority, generator)
            lowest = priority.min()
        weight = self._send(((lowest / priority) ** self.beta).astype(np.float32))
        ring = self.ring
        start = ring.first_place
        places = np.where(found < start, found + ring.places, found) if start else found
        return places, ring.flags.take(found), weight

    def _redraw_empty(
        self, found: np.ndarray, priority: np.ndarray, generator: torch.Generator | None
    ) -> None:
        """Draw again, in place, where rounding led to a number that is 0."""
        leaves, total = self.tree.leaves, self.tree.total
        for _ in range(ROUNDS):
            bad = np.flatnonzero(priority == 0.0)
            if not len(bad):
                return
            draw = torch.rand(len(bad), dtype=torch.float64, generator=generator).numpy()
            found[bad] = self.tree.find(draw * total)
            priority[bad] = leaves.take(found[bad])
        bad = np.flatnonzero(priority == 0.0)
        found[bad] = leaves.argmax()
        priority[bad] = leaves.max()

    def _admit(self) -> None:
        """Give rows that came since the last call their first priority; take away that of rows that went."""
        ring = self.ring
        start = max(self._seen, ring.oldest)
        if start == ring.cursor:
            return
        places = np.arange(start * ring.columns, (ring.cursor + 1) * ring.columns) % ring.places
        ok = ring.flags.take(places) & OK
        first = self.max_priority**self.alpha
        self.tree.set(places, first if ok.all() else np.where(ok != 0, first, 0.0))
        if ring.depth > 1:  # the oldest rows, whose stacks can no longer be rebuilt
            old = (
                np.arange(ring.first_id, min(ring.first_id + (ring.depth - 1) * ring.columns, ring.end_id))
                % ring.places
            )
            gone = old[ring.flags.take(old) & OK == 0]
            self.tree.set(gone, 0.0)
        self._seen = ring.cursor
