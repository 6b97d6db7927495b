"""Environments that fail: by an exception, an abort, a signal or by never answering."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from tests.fakes.envs import CounterEnv

WAYS = ("raises", "aborts", "killed", "hangs")
WORDS = {
    "raises": "raised KeyError: 'wheel'",
    "aborts": "was killed by SIGABRT",
    "killed": "was killed by SIGKILL",
    "hangs": "did not answer in time and hangs",
}
"""How a report puts it."""


def fail(how: str) -> None:
    """Do it."""
    if how == "raises":
        raise KeyError("wheel")
    if how == "aborts":
        os.abort()
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


class Fragile(CounterEnv):
    """A counter that fails in its `at`-th step or reset, counted over the life of the process.

    Args:
        how: one of `WAYS`.
        marker: a file that is made before it fails; it does not fail where that is there. None: it always fails.
        call: `step` or `reset`.
    """

    def __init__(
        self, how: str, marker: str | None = None, at: int = 4, length: int = 100, call: str = "step"
    ) -> None:
        super().__init__(length)
        self.how, self.marker, self.at, self.call = how, marker, at, call
        self.calls = {"step": 0, "reset": 0}

    def reset(self, **options: Any) -> Any:
        self._count("reset")
        return super().reset(**options)

    def step(self, action: int) -> Any:
        self._count("step")
        return super().step(action)

    def _count(self, call: str) -> None:
        self.calls[call] += 1
        if call != self.call or self.calls[call] != self.at:
            return
        if self.marker is not None:
            try:  # at once: of several workers only one finds it missing
                Path(self.marker).touch(exist_ok=False)
            except FileExistsError:
                return
        fail(self.how)
