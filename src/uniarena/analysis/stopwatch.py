"""A stopwatch around methods of objects that exist. Taken off again, it leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

OTHER = "other"
_SAMPLE = 2_000
"""Calls from which the price of one watched call is told."""


class Stopwatch:
    """Seconds by phase, exclusive: while a watched call runs inside another one, the time is its own.

    What is watched returns and raises what it did before. Nothing is counted until `start`.

    Args:
        clock: seconds; moved by tests.

    Attributes:
        seconds, calls: by phase.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.total = 0.0
        self._running, self._inside = False, 0
        self._stack: list[str] = [OTHER]
        self._since = self._started = 0.0
        self._undo: list[tuple[Any, str, Any, bool]] = []

    def watch(self, owner: Any, name: str, phase: str, whole: bool = False) -> bool:
        """Stand around `owner.name` from now on → whether that can be.

        Args:
            owner: an object; or a class, for the methods of all its objects.
            whole: what is watched inside belongs to this phase too.
        """
        if not callable(getattr(owner, name, None)):
            return False
        own = name in vars(owner) if hasattr(owner, "__dict__") else False
        method = vars(owner)[name] if own else getattr(owner, name)
        try:
            setattr(owner, name, self.timed(method, phase, whole))
        except (AttributeError, TypeError):  # slots, a frozen dataclass, a class of C
            return False
        self._undo.append((owner, name, method, own))
        return True

    def timed(self, method: Callable[..., Any], phase: str, whole: bool = False) -> Callable[..., Any]:
        """The same function with the stopwatch around it."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._running or self._inside:
                return method(*args, **kwargs)
            self._turn(phase)
            self.calls[phase] = self.calls.get(phase, 0) + 1
            self._inside += whole
            try:
                return method(*args, **kwargs)
            finally:
                self._inside -= whole
                self._turn(None)

        return timed

    def start(self) -> None:
        """Count from here on, in `other`, whatever is being watched at the moment."""
        self._running, self._stack, self._inside = True, [OTHER], 0
        self._since = self._started = self.clock()

    def stop(self) -> None:
        """Count no more."""
        if self._running:
            now = self.clock()
            self._charge(now)
            self.total += now - self._started
            self._running = False

    def remove(self) -> None:
        """Take it off everywhere."""
        self.stop()
        for owner, name, method, own in reversed(self._undo):
            if own:
                setattr(owner, name, method)
            else:
                delattr(owner, name)
        self._undo.clear()

    def price(self) -> float:
        """Seconds that one watched call costs more than the same call without the stopwatch."""
        probe = Stopwatch(self.clock)

        def nothing() -> None:
            """What is called is empty, so that only the stopwatch is left."""

        watched = probe.timed(nothing, "probe")
        times = []
        probe.start()
        for call in (nothing, watched):
            started = self.clock()
            for _ in range(_SAMPLE):
                call()
            times.append(self.clock() - started)
        return max(0.0, times[1] - times[0]) / _SAMPLE

    def _turn(self, phase: str | None) -> None:
        """Enter a phase, or (None) go back to the one around it."""
        if not self._running and phase is not None:
            return
        self._charge(self.clock())
        if phase is not None:
            self._stack.append(phase)
        elif len(self._stack) > 1:
            self._stack.pop()

    def _charge(self, now: float) -> None:
        if self._running:
            phase = self._stack[-1]
            self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
            self._since = now
