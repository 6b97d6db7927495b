"""Minibatches that grow while growing makes learning faster by the clock and no worse by its figures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import psutil
import torch

from uniarena.config import Between, ConfigError, config
from uniarena.ops.statistics import count_true
from uniarena.trainer.events import BatchCollected, IterationEnd, TrainingStart, UpdateEnd

__all__ = ["AdaptiveBatch", "AdaptiveBatchConfig"]

_log = logging.getLogger(__name__)

FAR_KL = 1.5
"""Clip ranges: a larger mean KL says that steps have become too long."""
LOST_VARIANCE = 0.1
"""A larger fall of the explained variance says that the value is fitted worse."""
WORSE_LOSS = 2.0
"""Off-policy: a loss so many times that of the size before says the same."""
SPARE = 0.8
"""Share of the free memory that may be taken."""


@config
class AdaptiveBatchConfig:
    """Between which sizes, and when it is worth while."""

    base_batch: Annotated[int, Between(1)] = 256  # rows of the first minibatches
    max_batch: Annotated[int, Between(1)] = 4096  # rows of the largest ones
    updates: Annotated[int, Between(2)] = 20  # that each size is measured over; the first one does not count
    min_gain: Annotated[float, Between(0)] = 0.1  # least rise of samples per second, as a share

    def __post_init__(self) -> None:
        if self.max_batch < self.base_batch:
            raise ConfigError(
                f"got {self.max_batch}, less than base_batch ({self.base_batch}).", path="max_batch"
            )


class AdaptiveBatch:
    """Tries `min(base · 2ⁿ, max)` rows for n = 0, 1, 2, …, and stays with the last size that was worth it.

    A size is kept if it learns from `min_gain` more samples a second than the one before, and neither KL, loss nor
    explained variance say that it learns worse; nothing is tried that memory may not hold. What was chosen, and why, is
    logged; the metrics are `batch_size` and `samples_per_second`.

    It goes by the clock, so a run does not repeat bit for bit. What was found so far is saved: a resumed run goes on
    with the size that was chosen.

    Args:
        cfg: see `AdaptiveBatchConfig`.
        clock: seconds, for tests.
        memory: bytes in use and free on a device, for tests.

    Attributes:
        level: n.
        settled: why it grows no more; empty: it still tries.
        rates: samples per second of each size so far.
    """

    Config = AdaptiveBatchConfig

    def __init__(
        self,
        cfg: AdaptiveBatchConfig | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        memory: Callable[[torch.device], tuple[int, int]] | None = None,
        **fields: Any,
    ) -> None:
        self.cfg: AdaptiveBatchConfig = replace(cfg or AdaptiveBatchConfig(), **fields)
        self.level, self.settled = 0, ""
        self.rates: list[float] = []
        self._figures: list[dict[str, float]] = []
        self._clock, self._memory = clock, memory or memory_of
        self._used_before = 0
        self._updates, self._samples = 0, 0
        self._gathered, self._largest = (
            0,
            0,
        )  # valid rows since the last update, and those that it learned from
        self._seconds, self._since = 0.0, 0.0
        self._sums: dict[str, float] = {}

    @property
    def size(self) -> int:
        """Rows of a minibatch."""
        return int(min(self.cfg.base_batch * 2**self.level, self.cfg.max_batch))

    # -- what it hears -------------------------------------------------------------------------------------------
    def on_training_start(self, trainer: Any, event: TrainingStart) -> None:
        self._used_before = self._memory(trainer.agent.device)[0]
        resize(trainer.agent, self.size)
        _log.info("adaptive_batch: minibatches of %s rows", f"{self.size:,}")

    def on_batch_collected(self, trainer: Any, event: BatchCollected) -> None:
        self._gathered += count_true(event.rollout.rows.valid)
        self._since = self._clock()

    def on_update_end(self, trainer: Any, event: UpdateEnd) -> None:
        now = self._clock()
        seconds, self._since = now - self._since, now
        rows = self.size
        if (passes := event.metrics.get("epochs_done")) is not None:
            rows, self._gathered, self._largest = round(self._gathered * passes), 0, self._gathered
        self._updates += 1
        if self._updates == 1:  # the first one of a size may lay out memory or compile
            return
        self._samples, self._seconds = self._samples + rows, self._seconds + seconds
        for name, value in event.metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def on_iteration_end(self, trainer: Any, event: IterationEnd) -> None:
        if self._updates >= self.cfg.updates and self._seconds > 0.0 and not self.settled:
            rate, count = self._samples / self._seconds, self._updates - 1
            self._decide(trainer, rate, {name: total / count for name, total in self._sums.items()})
        trainer.metrics["batch_size"] = float(self.size)
        if self.rates:
            trainer.metrics["samples_per_second"] = self.rates[-1]

    # -- what it does --------------------------------------------------------------------------------------------
    def _decide(self, trainer: Any, rate: float, figures: dict[str, float]) -> None:
        """Go on to the next size, stay, or go back."""
        self.rates = [*self.rates[: self.level], rate]
        self._figures = [*self._figures[: self.level], figures]
        _log.info("adaptive_batch: %s samples/s with %s rows", f"{rate:,.0f}", f"{self.size:,}")
        reason = self._against(rate, figures)
        if reason:
            self.level -= 1
            self.rates, self._figures = self.rates[:-1], self._figures[:-1]
            resize(trainer.agent, self.size)
        else:
            reason = self._limit(trainer.agent.device)
        if reason:
            self.settled = reason
            steps = f"{trainer.counters.env_steps:,}"
            _log.info("adaptive_batch: %s rows from %s env steps on: %s", f"{self.size:,}", steps, reason)
        else:
            self.level += 1
            resize(trainer.agent, self.size)
        self._begin()

    def _against(self, rate: float, figures: dict[str, float]) -> str:
        """Why the size that was tried is worse than the one before; empty: it is not."""
        if self.level == 0:
            return ""
        before, known, tried = (
            self.rates[self.level - 1],
            self._figures[self.level - 1],
            f"{self.size:,} rows",
        )
        if rate < before * (1.0 + self.cfg.min_gain):
            return f"{tried} give {rate / before - 1.0:+.0%} samples/s"
        kl, clip_range = figures.get("kl"), figures.get("clip_range")
        if kl is not None and clip_range is not None and kl > FAR_KL * clip_range:
            return f"with {tried} the KL is {kl:.3g}"
        name = "explained_variance"
        if name in figures and name in known:
            if figures[name] < known[name] - LOST_VARIANCE:
                return (
                    f"with {tried} the explained variance fell from {known[name]:.2f} to {figures[name]:.2f}"
                )
            return ""
        name = "value_loss" if "value_loss" in figures else "loss"
        if name in figures and name in known and figures[name] > WORSE_LOSS * known[name]:
            return f"with {tried} the {name} rose from {known[name]:.3g} to {figures[name]:.3g}"
        return ""

    def _limit(self, device: torch.device) -> str:
        """Why no larger size can be tried; empty: it can."""
        if self.size >= self.cfg.max_batch:
            return "it is max_batch"
        if self._largest and self.size >= self._largest:
            return "it is a whole rollout"
        used, free = self._memory(device)
        needed = used - self._used_before  # whatever was taken since the start, taken once more
        if needed > SPARE * free:
            return f"{needed / 2**20:,.0f} MiB more may be needed, and {free / 2**20:,.0f} are free"
        return ""

    def _begin(self) -> None:
        """Measure anew."""
        self._updates, self._samples, self._seconds, self._since = 0, 0, 0.0, self._clock()
        self._gathered, self._largest, self._sums = 0, 0, {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "settled": self.settled,
            "rates": list(self.rates),
            "figures": [dict(figures) for figures in self._figures],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was found; what a size was being measured by begins anew."""
        self.level, self.settled = int(state["level"]), str(state["settled"])
        self.rates = [float(rate) for rate in state["rates"]]
        self._figures = [dict(figures) for figures in state["figures"]]
        self._begin()


def resize(agent: Any, size: int) -> None:
    """Minibatches of `size` rows from the next update on.

    Raises:
        ConfigError: the learner neither cuts rollouts into minibatches of ours nor samples from a buffer.
    """
    minibatches, spec = getattr(agent.learner, "minibatches", None), getattr(agent.buffer, "spec", None)
    if minibatches is not None and hasattr(minibatches, "size"):
        minibatches.size = size
    elif spec is not None:
        agent.buffer.spec = replace(spec, batch_size=size)
    else:
        raise ConfigError(
            f"{type(agent.learner).__name__} has no minibatches whose size could be set.",
            path="callbacks",
            hint="give the learner an attribute `minibatches` with a `size`, or remove adaptive_batch.",
        )


def memory_of(device: torch.device) -> tuple[int, int]:
    """Bytes in use (on a GPU: the most so far), and bytes that are free."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.max_memory_allocated(device), torch.cuda.mem_get_info(device)[0] + unused
    return psutil.Process().memory_info().rss, psutil.virtual_memory().available
