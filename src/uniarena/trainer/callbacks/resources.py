"""What the run takes of the machine."""

from __future__ import annotations

import contextlib
import os
import time

import psutil

__all__ = ["Resources"]

_READ_EVERY, _LOOK_EVERY = 1.0, 5.0  # seconds


class Resources:
    """CPU and memory of this process and its workers, by psutil."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        self._main = psutil.Process()
        self._looked = self._read = 0.0
        self._figures: dict[str, float] = {}

    def read(self) -> dict[str, float]:
        """CPU in percent of one core (two busy cores: 200), resident memory in MiB, and the machine's load of the
        last minute as a share of its cores, where the system tells; measured anew once a second.

        The first call has no earlier one to measure from and leaves the CPU out.
        """
        now, first = time.monotonic(), not self._processes
        early = now - self._read < _READ_EVERY
        if self._figures and early:
            return self._figures
        if first or time.monotonic() - self._looked >= _LOOK_EVERY:
            self._look()
        cpu = memory = 0.0
        for process in self._processes.values():
            with contextlib.suppress(psutil.Error):  # a worker may end at any moment
                cpu += process.cpu_percent(interval=None)
                memory += process.memory_info().rss
        figures = {"system/memory_mib": round(memory / 2**20, 1), **_load()}
        if first:
            self._read = now
            return figures
        whole = {**figures, "system/cpu_percent": round(cpu, 1)}
        if not early:  # what was measured over less would stand for too long
            self._figures, self._read = whole, now
        return whole

    def _look(self) -> None:
        """Which workers there are; it goes through all processes of the machine, so not at every reading."""
        self._looked = time.monotonic()
        found = {self._main.pid: self._main}
        with contextlib.suppress(psutil.Error):
            found |= {child.pid: child for child in self._main.children(recursive=True)}
        # the same objects as before: they remember the times that the next reading is measured from
        self._processes = {pid: self._processes.get(pid, process) for pid, process in found.items()}


def _load() -> dict[str, float]:
    with contextlib.suppress(AttributeError, OSError):  # Windows has none
        return {"system/load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)}
    return {}
