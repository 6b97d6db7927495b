"""When to collect and when to update. Regimes differ here and in their buffer, never in the loop."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from uniarena.config import ConfigError
from uniarena.learners.base import declared

ITERATION = 1_000
"""Environment steps (offline: updates) in an iteration off-policy, unless something is due more often."""

Unit = Literal["env_steps", "updates"]


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
        worker_restarts: environment processes that were started again after a fault.
        unit: of the run's clock, by which everything is due: updates where no environment is stepped.
    """

    env_steps: int = 0
    steps: int = 0
    updates: int = 0
    episodes: int = 0
    iterations: int = 0
    epochs: int = 0
    worker_restarts: int = 0
    unit: Unit = "env_steps"

    @property
    def clock(self) -> int:
        """Where the run stands, in its unit."""
        return self.updates if self.unit == "updates" else self.env_steps

    @property
    def units(self) -> str:
        """The unit in words."""
        return self.unit.replace("_", " ")


@dataclass(frozen=True)
class OnPolicySchedule:
    """Collect `rollout_length` rows of every column; update once whenever a train batch is full.

    Attributes:
        rollout_length: vector steps per chunk.
        epochs_per_update: optimisation epochs in one update.
        train_batch: environment steps gathered for one update; None: one rollout.
    """

    unit: ClassVar[Unit] = "env_steps"
    rollout_length: int
    epochs_per_update: int = 1
    train_batch: int | None = None

    def chunk(self, columns: int) -> int:
        """Steps (rows × B) of a whole chunk."""
        return self.rollout_length * columns

    def env_steps(self, counters: Counters, columns: int, total: int) -> int:
        """Steps to collect next; the last chunk is shortened to what remains."""
        return min(self.chunk(columns), total - counters.env_steps)

    def updates_due(self, counters: Counters, buffer: Any, total: int) -> int:
        """One when the batch is full, or when the run is over and some experience is left."""
        over = counters.env_steps >= total and buffer.size > 0
        return 1 if buffer.ready or over else 0

    def iteration_end(self, counters: Counters, total: int) -> int:
        """Env steps at which the iteration closes: every rollout is one."""
        return counters.env_steps + 1

    def steps_per_update(self, columns: int) -> int:
        """Environment steps gathered for one update."""
        rollout = self.rollout_length * columns
        return -(-(self.train_batch or rollout) // rollout) * rollout

    def describe(self, columns: int, batch_size: int | None, row_bytes: int) -> str:
        """One line for the start of a run; `row_bytes` is the size of one column's observation."""
        batch, rows, epochs = self.steps_per_update(columns), self.rollout_length, self.epochs_per_update
        rollouts = batch // (rows * columns)
        gathered = f"{rollouts} rollouts of " if rollouts > 1 else ""
        return (
            f"every {batch:,} env steps ({gathered}{rows} steps x {columns}, observations "
            f"{readable(rows * columns * row_bytes)}), {epochs} epoch{'' if epochs == 1 else 's'} in minibatches of "
            f"{min(batch_size or batch, batch):,}"
        )


@dataclass(frozen=True)
class OffPolicySchedule:
    """Collect a little, update in proportion to what was collected since the warm-up.

    Attributes:
        train_every: environment steps between updates; rounded up to whole vector steps.
        updates_per_env_step: the update-to-data ratio. The count is exact: after n environment steps beyond the warm-up
            ⌊n · ratio⌋ updates were made, however many environments there are.
        learning_starts: environment steps before the first update.
        iteration: environment steps between two ends of iterations, where logs, evaluations and checkpoints happen.
    """

    unit: ClassVar[Unit] = "env_steps"
    train_every: int
    updates_per_env_step: float
    learning_starts: int
    iteration: int = ITERATION
    epochs_per_update: int = 1

    def chunk(self, columns: int) -> int:
        """Steps (rows × B) of a whole chunk."""
        return max(self.train_every, columns)

    def env_steps(self, counters: Counters, columns: int, total: int) -> int:
        """Steps to collect next."""
        return min(self.chunk(columns), total - counters.env_steps)

    def updates_due(self, counters: Counters, buffer: Any, total: int) -> int:
        """How many updates the count lacks."""
        if not buffer.ready:
            return 0
        learned_from = max(0, counters.env_steps - self.learning_starts)
        return max(0, math.floor(learned_from * self.updates_per_env_step + 1e-9) - counters.updates)

    def iteration_end(self, counters: Counters, total: int) -> int:
        """The next multiple of `iteration`, so that a resumed run closes where the uninterrupted one did."""
        return min(total, (counters.env_steps // self.iteration + 1) * self.iteration)

    def steps_per_update(self, columns: int) -> int:
        """Environment steps to one update, at least 1."""
        return max(1, round(1 / self.updates_per_env_step))

    def describe(self, columns: int, batch_size: int | None, row_bytes: int) -> str:
        """One line for the start of a run."""
        return (
            f"{self.updates_per_env_step:g} per env step, every {max(self.train_every, columns):,} env steps from "
            f"{self.learning_starts:,} on, in batches of {batch_size:,}"
        )


@dataclass(frozen=True)
class OfflineSchedule:
    """Collect nothing, and update until the run is over. Its clock is updates.

    Attributes:
        iteration: updates between two ends of iterations.
    """

    unit: ClassVar[Unit] = "updates"
    iteration: int = ITERATION
    epochs_per_update: int = 1

    def chunk(self, columns: int) -> int:
        """Nothing is collected."""
        return 0

    def env_steps(self, counters: Counters, columns: int, total: int) -> int:
        """None."""
        return 0

    def updates_due(self, counters: Counters, buffer: Any, total: int) -> int:
        """To the next multiple of `iteration`, so that a resumed run closes where the uninterrupted one did."""
        return min(total, (counters.updates // self.iteration + 1) * self.iteration) - counters.updates

    def iteration_end(self, counters: Counters, total: int) -> int:
        """Here: one round of updates is an iteration."""
        return counters.updates

    def steps_per_update(self, columns: int) -> int:
        """One of the clock's units."""
        return 1

    def describe(self, columns: int, batch_size: int | None, row_bytes: int) -> str:
        """One line for the start of a run."""
        return f"on data alone, in batches of {batch_size:,}; all intervals are counted in updates"


AnySchedule = OnPolicySchedule | OffPolicySchedule | OfflineSchedule


def readable(size: int) -> str:
    """Bytes as people read them."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size / 2**10:.1f} KiB"


def schedule_for(cfg: Any, intervals: Iterable[int] = (), buffer: Any = None) -> AnySchedule:
    """The schedule that a learner's config declares: off-policy where it has `updates_per_env_step`; offline where the
    buffer is of fixed data.

    Args:
        intervals: the clock's units between what callbacks do; but on-policy, no iteration is longer than the least.
        buffer: the agent's; one that is `fixed` takes no experience.

    Raises:
        ConfigError: a learner that learns from data alone, and no data.
    """
    ratio = getattr(cfg, "updates_per_env_step", None)
    iteration = min((ITERATION, *intervals))
    if getattr(buffer, "fixed", False):
        return OfflineSchedule(iteration)
    if ratio is None:
        return OnPolicySchedule(
            *(declared(cfg, name) for name in ("n_steps", "n_epochs", "train_batch_size"))
        )
    if not hasattr(cfg, "learning_starts"):
        raise ConfigError(
            "this learner learns from data, and none is given.",
            path="data",
            hint="add `data: {path: …}`, or choose a learner that acts, such as sac or dqn",
        )
    every, starts = declared(cfg, "train_every_env_steps"), declared(cfg, "learning_starts")
    return OffPolicySchedule(every, ratio, starts, iteration)
