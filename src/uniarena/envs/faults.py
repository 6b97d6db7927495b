"""Faults of worker processes: what is known of one, and the words for it."""

from __future__ import annotations

import signal
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).parent.parent)
ONE_SCREEN = 4_000
"""Characters of an action or a traceback that a report shows."""

_UNKNOWN = (
    "Give the module that registers it, which the worker then imports: environment.id: "
    "'my_package.my_module:MyEnv-v0' or 'my_package.my_module:MyClass'"
)


class WorkerError(RuntimeError):
    """A worker process raised, ended or hung, and is not started again."""


@dataclass
class WorkerFault(Exception):
    """What became of a worker; raised by a link, and told or raised again as `WorkerError` by the adapter.

    Attributes:
        what: what it did, as a sentence after the name of the environment.
        traceback: of the worker, where one is known.
        column: the environment at fault; None: not known.
        code: exit code, where the process ended by itself.
        advice: what to do about it, where that is known.
    """

    what: str
    traceback: str = ""
    column: int | None = None
    code: int | None = None
    advice: str = ""

    def __str__(self) -> str:
        return self.what


class RestartBudget:
    """How often a worker may be started again.

    Args:
        restarts: within so many steps,
        window: these.
    """

    def __init__(self, restarts: int, window: int) -> None:
        self.restarts, self.window = restarts, window
        self._at: deque[int] = deque()

    def spend(self, step: int) -> bool:
        """One restart at this step; False: there were enough."""
        while self._at and self._at[0] <= step - self.window:
            self._at.popleft()
        if len(self._at) >= self.restarts:
            return False
        self._at.append(step)
        return True

    def __str__(self) -> str:
        return f"{len(self._at)} of {self.restarts} within {self.window:,} steps"


@dataclass(frozen=True)
class Circumstances:
    """Where a fault happened.

    Attributes:
        where: the environment and its process.
        doing: `step`, `reset`, … as it was asked for.
        action: the last action it was given; None: none yet.
        seed: the last one it was given, and `steps` how many steps ago.
    """

    where: str
    doing: str
    action: Any
    seed: int | None
    steps: int


def report(fault: WorkerFault, at: Circumstances) -> str:
    """A fault in words: who, how, in what, with which action and seed, and the worker's own traceback."""
    lines = [f"{at.where} {fault.what} in {at.doing}"]
    if at.action is not None:
        lines.append(f"last action: {str(at.action)[:ONE_SCREEN]}")
    if at.seed is not None:
        lines.append(f"seed: {at.seed}, given {at.steps:,} steps before")
    if fault.traceback:
        lines += ["in the worker:", *(f"  {line}" for line in fault.traceback[-ONE_SCREEN:].splitlines())]
    advice = fault.advice
    if any(error in fault.what for error in ("ModuleNotFoundError", "NameNotFound", "NamespaceNotFound")):
        advice = _UNKNOWN
    return "\n".join([*lines, advice] if advice else lines)


def ending(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "closed its pipe and went on running"
    if code >= 0:
        return f"ended (exit code {code})"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "a signal"
    memory = ", mostly for lack of memory," if name == "SIGKILL" else ""
    return f"was killed by {name} (exit code {code}){memory}"


def without_machinery(lines: list[str]) -> list[str]:
    """The dump of `faulthandler`, newest call first, up to where our own frames begin."""
    for number, line in enumerate(lines):
        if line.lstrip().startswith(f'File "{PACKAGE}'):
            return lines[:number]
    return lines


def describe_loss(vector: Any) -> str:
    """Which workers of a gymnasium AsyncVectorEnv have ended, with their exit codes."""
    processes = list(getattr(vector, "processes", ()))
    ended = wait([process.sentinel for process in processes], timeout=1.0)
    for process in processes:
        if process.sentinel in ended:  # its pipe breaks a moment before it is over
            process.join(timeout=1.0)
    gone = [(i, p.exitcode) for i, p in enumerate(processes) if p.exitcode is not None]
    listed = ", ".join(f"{i} (exit code {code})" for i, code in gone) or "one"
    return f"environment worker {listed} ended; a negative code is a signal, -9 mostly a lack of memory"
