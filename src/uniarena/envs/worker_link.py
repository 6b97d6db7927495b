"""Link: the parent's side of a process of ours: start it, ask it, know what became of it, end it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from uniarena.envs import channel
from uniarena.envs.faults import WorkerError, WorkerFault, ending, without_machinery
from uniarena.envs.worker_process import PARENT_ENDS, Order, serve

OURS = "uniarena-"
NAME = f"{OURS}worker"
MAKING_S = 60.0
"""Seconds that making an environment may take at least; a spawned process imports everything first."""

GRACE_S = 3.0
"""Seconds that workers have to close their environments before they are ended."""

_NO_GUARD = 78  # exit code of a worker that found itself starting workers
_DYING_S = 2.0  # until a process whose pipe broke is over
_DUMP_BYTES = 1 << 16
_GUARD_ADVICE = (
    "Under the start methods spawn and forkserver, worker processes import the script again, and it starts workers "
    'while it is imported: put what it does under `if __name__ == "__main__":`'
)


class Link:
    """One process and the pipe to it.

    Args:
        name: of the process.
        work: what it runs: `work(connection, trace, order, block, guarded)`, as `worker_process.serve` does.
        order: what it is given; goes by cloudpickle where it cannot be inherited.
        block: shared memory that it is given.
        context: start-method context of `multiprocessing`.
        parent: whether it may start processes of its own.

    Attributes:
        doing: what it was asked for last.

    Raises:
        WorkerError: the order cannot be sent.
    """

    def __init__(
        self, name: str, work: Callable[..., None], order: Any, block: Any, context: Any, parent: bool = False
    ) -> None:
        self.name, self.block, self.context = name, block, context
        self.doing = "making it"
        self.process: Any = None
        self._work, self._parent = work, parent
        self._order: Any = order
        if context.get_start_method() != "fork":
            try:
                self._order = channel.pack(order)
            except Exception as error:
                raise WorkerError(
                    f"{order.env_id} cannot be sent to a worker process: {type(error).__name__}: {error}. Give its "
                    "class, its id or a function that makes it, none of which holds something that is open"
                ) from error

    def start(self) -> None:
        """Start the process; `started` waits for it.

        Raises:
            WorkerFault: not even that.
        """
        self.doing = "making it"
        here, there = self.context.Pipe()
        self._trace, writer = self.context.Pipe(duplex=False)
        PARENT_ENDS.update((here, self._trace))
        self._pipe = channel.Channel(here)
        guarded = threading.current_thread() is threading.main_thread()
        self.process = self.context.Process(
            target=self._work,
            args=(there, writer, self._order, self.block, guarded),
            name=self.name,
            daemon=not self._parent,
        )
        try:
            self.process.start()
        except (EOFError, ConnectionError) as error:  # of a fork server that ended
            self.process = None
            advice = self._advice(None)
            raise WorkerFault(f"could not be started ({error!r})", advice=advice) from error
        finally:
            there.close()
            writer.close()

    def started(self, timeout: float | None) -> Any:
        """Wait until its environments are made → what it says then.

        Raises:
            WorkerFault: it ended before, or takes too long.
        """
        until = deadline(None if timeout is None else max(timeout, MAKING_S))
        try:
            self.answer(until)
        except WorkerFault as fault:
            fault.advice = self._advice(fault.code)
            raise
        return self.answer(until)

    def ask(self, method: str, *arguments: Any) -> None:
        """Have a method of what it runs called; `answer` waits for what it gives."""
        self.doing = f"{method}()"
        message = channel.pack((method, arguments))
        with contextlib.suppress(ConnectionError):
            self._pipe.tell(channel.ASK, message)

    @property
    def connection(self) -> Any:
        """This end of the pipe."""
        return self._pipe.connection

    def heard(self, seconds: float | None) -> bool:
        """Whether it says something within that time (None: for ever)."""
        return self._pipe.wait(seconds)

    def answer(self, until: float | None) -> Any:
        """What it was asked for, or None, once it says so.

        Raises:
            WorkerFault: it raised, is gone, or does not answer by then (of `time.monotonic`). It is ended.
        """
        if not self.heard(None if until is None else until - time.monotonic()):
            raise self.hung()
        return self.said()

    def said(self) -> Any:
        """What it says now, where it was heard.

        Raises:
            WorkerFault: it raised or is gone. It is ended.
        """
        word = self._pipe.hear()
        if word == channel.DONE:
            return None
        try:
            if not word:
                raise EOFError
            message = self._pipe.receive()
        except (EOFError, ConnectionError):
            raise self.ended() from None
        if word == channel.TOLD:
            return message
        self.kill()
        raise WorkerFault(f"raised {message.summary}", message.traceback, message.column)

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.join(_DYING_S)
            self._pipe.connection.close()
            self._trace.close()
            self.process = None

    def ended(self) -> WorkerFault:
        """A process whose pipe broke → the fault, with how it ended."""
        self.process.join(_DYING_S)
        code = self.process.exitcode
        fault = WorkerFault(ending(code), self._dump(0.0), code=code)
        self.kill()
        return fault

    def hung(self) -> WorkerFault:
        """End a process that does not answer → the fault, with what it was at."""
        text = ""
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGUSR2)  # it writes where it is
                text = self._dump(1.0)
        self.kill()
        return WorkerFault("did not answer in time and hangs", text)

    def _dump(self, seconds: float) -> str:
        """What the worker's `faulthandler` wrote, or writes within that time."""
        text = b""
        while os.name == "posix" and self._trace.poll(seconds):
            piece = os.read(self._trace.fileno(), _DUMP_BYTES)
            if not piece:
                break
            text, seconds = text + piece, 0.05
        return "\n".join(without_machinery(text.decode(errors="replace").splitlines())).strip()

    def _advice(self, code: int | None) -> str:
        """Why a process may not have come to its first line."""
        if code == _NO_GUARD or not _guarded_script(self.context.get_start_method()):
            return _GUARD_ADVICE
        return "It ended before it ran anything of ours; what it printed says why"


class WorkerLink(Link):
    """The process of one worker.

    Args:
        index: which worker.
        order: what it runs.
        block: the shared memory.
        context: start-method context of `multiprocessing`.

    Attributes:
        columns: those it runs, counted over all workers.
    """

    def __init__(self, index: int, order: Order, block: Any, context: Any) -> None:
        self.index = index
        self.columns = range(order.first, order.first + len(order.makers))
        super().__init__(f"{NAME}-{index}", serve, order, block, context)

    def step(self) -> None:
        """Have it step; `answer` waits for it."""
        self.doing = "step()"
        with contextlib.suppress(ConnectionError):  # `answer` will find out
            self._pipe.say(channel.STEP)

    def __str__(self) -> str:
        first, last = self.columns.start, self.columns.stop - 1
        return f"worker process {self.index} (environment{f's {first} to {last}' if last > first else f' {first}'})"


def deadline(timeout: float | None) -> float | None:
    """The moment of `time.monotonic` that is so many seconds ahead."""
    return None if timeout is None else time.monotonic() + timeout


def shut(links: Iterable[Link]) -> None:
    """End all workers: they may close their environments for a while, then they are killed."""
    alive = [link for link in links if link.process is not None]
    for link in alive:
        with contextlib.suppress(ConnectionError):
            link._pipe.say(channel.CLOSE)
    until = time.monotonic() + GRACE_S
    left = [link.process.sentinel for link in alive]
    while left and (rest := until - time.monotonic()) > 0:
        ended = wait(left, timeout=rest)
        left = [sentinel for sentinel in left if sentinel not in ended]
    for link in alive:
        link.kill()


def refuse_unguarded() -> None:
    """Stop in a process that is only beginning: a script without main guard, imported again by its own worker.

    Raises:
        WorkerError: it starts workers while it is imported.
    """
    process = multiprocessing.current_process()
    if not getattr(process, "_inheriting", False):
        return
    if process.name.startswith(OURS):
        sys.exit(_NO_GUARD)  # the parent tells it, once
    raise WorkerError(_GUARD_ADVICE)


def _guarded_script(method: str) -> bool:
    """Whether the main module may be imported again, as far as its text tells."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if method == "fork" or file is None or getattr(main, "__spec__", None):
        return True
    try:
        return "__main__" in Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return True


def spread(columns: int, processes: int | None) -> Sequence[range]:
    """Columns over processes, as evenly as can be: 5 over 2 are 0–2 and 3–4."""
    count = min(columns, processes or columns)
    edges = [round(k * columns / count) for k in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]
