"""When to collect and when to update. Regimes differ here and in their buffer, never in the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Counters:
    """Where a run stands.

    Attributes:
        env_steps: valid rows, the unit of every frequency.
        steps: vector rows × B, also those that were only resets.
        updates: learner updates.
        episodes: finished episodes.
        iterations: turns of the loop.
        epochs: optimisation epochs scheduled so far (what `log_interval` and kin count).
    """

    env_steps: int = 0
    steps: int = 0
    updates: int = 0
    episodes: int = 0
    iterations: int = 0
    epochs: int = 0


@dataclass(frozen=True)
class OnPolicySchedule:
    """Collect `rollout_length` rows of every column; update once whenever a train batch is full.

    Attributes:
        rollout_length: vector steps per chunk.
        epochs_per_update: optimisation epochs in one update.
    """

    rollout_length: int
    epochs_per_update: int = 1

    def env_steps(self, counters: Counters, columns: int, total: int) -> int:
        """Steps (rows × B) to collect next; the last chunk is shortened to what remains."""
        return min(self.rollout_length * columns, total - counters.env_steps)

    def updates_due(self, counters: Counters, buffer: Any, total: int) -> int:
        """One when the batch is full, or when the run is over and some experience is left."""
        over = counters.env_steps >= total and buffer.size > 0
        return 1 if buffer.ready or over else 0
