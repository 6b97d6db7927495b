"""The trainer's side of producer processes: one of them, and all together."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any, cast

import numpy as np

from uniarena.batch import Rollout
from uniarena.envs.faults import ONE_SCREEN, WorkerError, WorkerFault
from uniarena.envs.worker_link import OURS, Link
from uniarena.sampling.handover import Inbox
from uniarena.sampling.producer import Collected, Plan, produce
from uniarena.sampling.shared import MappedMemory, SharedMemory


class ProducerError(WorkerError):
    """A producer process raised, ended or hung."""


class Remote:
    """One producer: its process, and the memory that its chunks lie in.

    Args:
        plan: what it runs.
        lock: guards the parameters of a sampler that runs free; None: one that does not.
        context: start-method context of `multiprocessing`.

    Attributes:
        board: `[2]` int64 in shared memory: rows that it has written so far, and the newest version of parameters.
    """

    def __init__(self, plan: Plan, lock: Any, context: Any) -> None:
        self.plan = plan
        board = context.RawArray(ctypes.c_int64, 2)
        self.board = np.frombuffer(cast(Any, board), np.int64)
        name = f"{OURS}producer" if plan.parts == 1 else f"{OURS}producer-{plan.part}"
        self.link = Link(name, produce, plan, (board, lock), context, parent=True)
        self._mapped = MappedMemory()
        self._inboxes = [Inbox(self._mapped) for _ in range(plan.buffers)]
        self._rows = 0

    @property
    def pid(self) -> int | None:
        """Of the process; None where it has ended."""
        return None if self.link.process is None else self.link.process.pid

    def still(self) -> bool:
        """Whether it has written no row since this was asked for the last time."""
        before, self._rows = self._rows, int(self.board[0])
        return before == self._rows

    def answer(self) -> Any:
        """What it says, where it was heard; the memory of a chunk is mapped.

        Raises:
            WorkerFault: it raised or is gone.
        """
        found = self.link.said()
        if isinstance(found, Collected):
            try:
                self._mapped.receive(found.blocks, self.link.connection)
            except (EOFError, OSError, RuntimeError):  # it ended behind its last word
                raise self.link.ended() from None
        return found

    def unpack(self, found: Collected) -> Rollout:
        """A chunk, on the memory that it was written into."""
        rollout = self._inboxes[found.turn].unpack(found.layout, found.beside, found.version)
        if found.layout is not None:
            self._mapped.keep(set().union(*(inbox.blocks for inbox in self._inboxes)))
        return rollout

    def told(self, fault: WorkerFault, timeout_s: float | None) -> ProducerError:
        """A fault in words: what happened, where, and what to do."""
        who, env_id = "the producer process of", self.plan.env_id
        if self.plan.parts > 1:
            who, env_id = f"producer process {self.plan.part}", f"({self.plan.columns} of {env_id})"
        lines = [f"{who} {env_id} {fault.what} in {self.link.doing}"]
        if fault.traceback:
            lines += [
                "in the producer:",
                *(f"  {line}" for line in fault.traceback[-ONE_SCREEN:].splitlines()),
            ]
        if "hangs" in fault.what:
            lines.append(f"sampling.timeout_s={timeout_s:g} is how long no step may be taken")
        lines.append(
            fault.advice
            or "sampling.type=local steps the environment in this process, where it can be debugged"
        )
        return ProducerError("\n".join(lines))


class Remotes:
    """All producers. After an error in the middle of an exchange nobody knows what they will say: they are broken.

    Args:
        parts: the producers, in the order of their columns.
        env_id: name for messages.
        timeout_s: seconds without a step after which one hangs; None: no limit.
    """

    def __init__(self, parts: Sequence[Remote], env_id: str, timeout_s: float | None) -> None:
        self.parts, self.env_id, self.timeout_s = list(parts), env_id, timeout_s
        self.links = [part.link for part in self.parts]
        self.broken = False

    def start(self) -> list[Any]:
        """Start the processes and wait until all have made their environments → what each says then.

        Raises:
            ProducerError: one could not.
        """
        with _Exchange(self) as exchange:
            for part in self.parts:
                exchange.part = part
                part.link.start()
            found = []
            for part in self.parts:
                exchange.part = part
                found.append(part.link.started(self.timeout_s))
        return found

    def order(self, method: str, *arguments: Any) -> None:
        """Have all do something; `answers` waits for it."""
        with _Exchange(self):
            for part in self.parts:
                part.link.ask(method, *arguments)

    def ask(self, method: str, *arguments: Any, each: Sequence[Any] = (), memory: Any = None) -> list[Any]:
        """What all answer.

        Args:
            each: a further argument of each producer's own.
            memory: the `SharedMemory` that the arguments tell of.

        Raises:
            ProducerError: one raised, ended or hung.
        """
        with _Exchange(self):
            for number, part in enumerate(self.parts):
                part.link.ask(method, *arguments, *each[number : number + 1])
            if isinstance(memory, SharedMemory):
                with contextlib.suppress(ConnectionError):  # the answer tells
                    memory.send(*(part.link.connection for part in self.parts))
        return self.answers()

    def answers(self) -> list[Any]:
        """What each says next, as soon as all have; of a fault is told whoever is at work.

        Raises:
            ProducerError: one raised or ended, or says nothing and writes no row either for too long.
        """
        found: dict[int, Any] = {}
        waiting = dict(enumerate(self.parts))
        for part in self.parts:
            part.still()
        with _Exchange(self) as exchange:
            while waiting:
                heard = self._heard(waiting)
                for number in heard:
                    exchange.part = part = waiting.pop(number)
                    found[number] = part.answer()
                for part in () if heard else waiting.values():
                    exchange.part = part
                    if part.still():
                        raise part.link.hung()
        return [found[number] for number in range(len(self.parts))]

    def _heard(self, waiting: dict[int, Remote]) -> list[int]:
        """Those of them that say something in time."""
        if len(waiting) == 1:
            ((number, part),) = waiting.items()
            return [number] if part.link.heard(self.timeout_s) else []
        ends = {part.link.connection: number for number, part in waiting.items()}
        return sorted(ends[cast(Any, end)] for end in wait(list(ends), self.timeout_s))


class _Exchange:
    """Around every exchange with producers; `part` is the one that is spoken with."""

    def __init__(self, remotes: Remotes) -> None:
        self.remotes, self.part = remotes, remotes.parts[0]

    def __enter__(self) -> _Exchange:
        if self.remotes.broken:
            raise ProducerError(f"the producer of {self.remotes.env_id} has ended; make the trainer anew")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.remotes.broken = kind is not None
        if isinstance(error, WorkerFault):
            raise self.part.told(error, self.remotes.timeout_s) from None
