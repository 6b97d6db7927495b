"""A logger whose disk may be full: what it cannot write costs a warning, not the run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)
PAUSE = 10.0
"""Seconds between attempts to open a logger that could not be opened."""


class Steady:
    """Calls a logger's methods. Errors of the system are told once, until it writes again; any others are raised.

    Args:
        logger: opened by `open`, at once or later.
        clock: seconds that only move forward.
    """

    def __init__(self, logger: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self.logger, self._clock = logger, clock
        self._unopened: tuple[Path, int] | None = None
        self._next, self._failing = 0.0, False

    def open(self, run_dir: Path, step: int) -> None:
        """Open it, or try again with a later call."""
        self._unopened, self._next = (run_dir, step), self._clock() + PAUSE
        try:
            self.logger.open(run_dir, step)
            self._unopened = None
        except OSError as error:
            self._tell(error)

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method, where the logger has it and is open."""
        function = getattr(self.logger, method, None)
        if function is None:
            return
        if self._unopened is not None and self._clock() >= self._next:
            self.open(*self._unopened)
        if self._unopened is not None:
            return
        try:
            function(*arguments)
        except OSError as error:
            self._tell(error)
            return
        if self._failing and method != "close":
            self._failing = False
            _log.warning("%s writes again", type(self.logger).__name__)

    def _tell(self, error: OSError) -> None:
        if not self._failing:
            _log.warning(
                "%s cannot write its figures, training goes on, and it is tried again: %s",
                type(self.logger).__name__,
                error,
            )
        self._failing = True
