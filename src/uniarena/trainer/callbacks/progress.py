"""How a run is doing, on the terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TextIO

from uniarena.config import Between, config
from uniarena.trainer.events import IterationEnd, TrainingEnd, TrainingStart

__all__ = ["Progress", "ProgressConfig"]


@config
class ProgressConfig:
    """The progress line on stderr."""

    quiet: bool = False  # show nothing
    every_seconds: Annotated[float, Between(0)] = 5.0  # between lines where stderr is no terminal
    refresh_seconds: Annotated[float, Between(0)] = 0.2  # between refreshes of the line on a terminal


class Progress:
    """One line that is refreshed on a terminal, plain lines elsewhere; both on stderr.

    It has no thread: it looks at the clock at the end of an iteration and costs nothing in between.

    Attributes:
        stream: where to write; None: `sys.stderr` when training starts.
        clock: seconds that only move forward; exchanged in tests.
    """

    Config = ProgressConfig

    def __init__(
        self, cfg: ProgressConfig | None = None, stream: TextIO | None = None, **fields: Any
    ) -> None:
        self.cfg: ProgressConfig = replace(cfg or ProgressConfig(), **fields)
        self.stream = stream
        self.clock: Callable[[], float] = time.monotonic
        self._live: Any = None
        self._start = (0.0, 0)  # time and env_steps
        self._shown = -float("inf")
        self._rate: float | None = None
        self._mark = (0.0, 0)  # of the last rate
        self._figures: dict[str, float] = {}

    def on_training_start(self, trainer: Any, event: TrainingStart) -> None:
        if self.cfg.quiet:
            return
        self._start = self._mark = (self.clock(), trainer.counters.clock)
        self._shown, self._rate = -float("inf"), None
        stream = self.stream or sys.stderr
        if stream.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=stream)
            self._live = Live(console=console, auto_refresh=False, redirect_stdout=False)
            self._live.start()

    def on_iteration_end(self, trainer: Any, event: IterationEnd) -> None:
        if self.cfg.quiet:
            return
        for name in ("return_mean", "eval/return_mean"):
            if name in trainer.metrics:
                self._figures[name] = trainer.metrics[name]
        wait = self.cfg.every_seconds if self._live is None else self.cfg.refresh_seconds
        if self.clock() - self._shown >= wait and not trainer.done:  # the end has a line of its own
            self._show(trainer)

    def on_training_end(self, trainer: Any, event: TrainingEnd) -> None:
        if self.cfg.quiet:
            return
        if "eval/return_mean" in trainer.metrics:
            self._figures["eval/return_mean"] = trainer.metrics["eval/return_mean"]
        self._show(trainer, event.reason)
        self.close()

    def on_exception(self, trainer: Any, event: Any) -> None:
        self.close()

    def _show(self, trainer: Any, reason: str | None = None) -> None:
        self._shown = self.clock()
        line = self.line(trainer, reason)
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            with contextlib.suppress(OSError):  # a full disk behind stderr is no reason to end a run
                print(line, file=self.stream or sys.stderr, flush=True)

    def line(self, trainer: Any, reason: str | None = None) -> str:
        """The text of the moment: steps, share, speed, returns, time left; or at the end, how long it
        took.
        """
        now, steps, total = self.clock(), trainer.counters.clock, trainer.total_env_steps
        time_before, steps_before = self._mark
        if now - time_before >= 1.0 or self._rate is None:
            speed = (steps - steps_before) / max(now - time_before, 1e-9)
            # lightly smoothed, so that an evaluation in between does not make the estimate jump
            self._rate = speed if self._rate is None else 0.7 * self._rate + 0.3 * speed
            self._mark = (now, steps)
        unit = trainer.counters.units
        parts = [f"{steps:,}/{total:,} {unit} ({steps / max(total, 1):.0%})"]
        parts += [f"{self._rate:,.0f} {unit.split()[-1]}/s"]
        if "return_mean" in self._figures:
            parts.append(f"return {self._figures['return_mean']:.1f}")
        if "eval/return_mean" in self._figures:
            parts.append(f"evaluated {self._figures['eval/return_mean']:.1f}")
        if reason is not None:
            parts.append(f"{reason} after {_duration(now - self._start[0])}")
        elif self._rate > 0:
            parts.append(f"ETA {_duration(max(total - steps, 0) / self._rate)}")
        return "  ".join(parts)

    def close(self) -> None:
        """Leave the line on the terminal as it is and stop refreshing it."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
