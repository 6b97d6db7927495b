"""What runs in a producer process: an environment of its own, the in-process sampler, and an actor kept up to date.

It answers one order after another. An order for a chunk says how many steps are wanted and where the run ends; how many
are left by then, it counts itself, so that the next order may wait in the pipe while a chunk is being collected.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import cloudpickle
import numpy as np

from uniarena.batch import Rollout
from uniarena.envs import channel
from uniarena.envs.protocol import Env
from uniarena.envs.worker_process import Refused, settle, tell
from uniarena.ops.statistics import count_true
from uniarena.sampling.handover import Outbox
from uniarena.sampling.local import LocalSampler
from uniarena.sampling.published import Received
from uniarena.sampling.shared import MappedMemory, SharedMemory
from uniarena.seeding import Streams, global_state, seed_globals, set_global_state


@dataclass(frozen=True)
class Plan:
    """What a producer is to run; goes by cloudpickle where it cannot be inherited.

    Attributes:
        make: gives the environment, unseeded.
        seed: of the run.
        records: what rollouts must hold of the behaviour.
        env_id: name for messages.
        buffers: chunks whose memory is valid at a time.
        columns: the environments that it steps, in words.
        part, parts: which producer it is, and of how many.
    """

    make: Callable[[], Env]
    seed: int
    records: tuple[str, ...]
    env_id: str
    buffers: int
    columns: str = ""
    part: int = 0
    parts: int = 1


class Answering(Protocol):
    """What `serve_calls` serves, beside the methods that are called by name."""

    def begin(self) -> Any:
        """What the parent is told first."""

    def behind(self, connection: Connection) -> None:
        """Send what follows a message outside of it."""

    def close(self) -> None: ...


class Order(NamedTuple):
    """One chunk.

    Attributes:
        steps: env steps wanted of all producers together, fewer where the run ends before.
        total: env steps at which the run ends.
        boundary: whether it ends with a declared reset.
        slot: where the parameters lie, and `version` which ones they are; None: the newest there are, in slot 0.
        attributes: set on the environment before the chunk.
        at: env steps of the run; None: counted on from the chunk before.
    """

    steps: int
    total: int
    boundary: bool
    slot: int | None
    version: int
    attributes: dict[str, Any]
    at: int | None


class Collected(NamedTuple):
    """The answer to an order.

    Attributes:
        blocks: new memory, whose descriptors follow.
        turn: which buffer holds it.
        layout, beside: of `Outbox.pack`.
        version: of the actor.
        explorer: its explorer's state afterwards.
        seconds: spent on it.
    """

    blocks: list[tuple[int, int]]
    turn: int
    layout: Any
    beside: dict[str, Any]
    version: int
    explorer: dict[str, Any]
    seconds: float


class OwnStreams(Streams):
    """The streams of one producer among several: those of the first are the run's, the others have names of their own.

    Args:
        seed: of the run.
        part: which producer.
    """

    def __init__(self, seed: int, part: int) -> None:
        super().__init__(seed)
        self.part = part

    def seed_for(self, name: str) -> int:
        return super().seed_for(f"{name}/producer/{self.part}" if self.part else name)


class Producer:
    """The environment and its sampler in this process.

    Args:
        plan: what to run.
        board: `[2]` int64 in shared memory, rows written so far and the version in slot 0, and a lock for that slot.
        connection: to the trainer, for file descriptors.
    """

    def __init__(self, plan: Plan, board: tuple[np.ndarray, Any], connection: Connection) -> None:
        streams = OwnStreams(plan.seed, plan.part)
        seed_globals(streams.seed_for("producer"))
        self.connection, self._parts = connection, plan.parts
        self.memory, self.mapped = SharedMemory(), MappedMemory()
        self.env = plan.make()
        try:
            self.sampler = LocalSampler(
                self.env, streams, plan.records, allocate=self.memory.allocate, buffers=plan.buffers
            )
        except BaseException:
            self.env.close()
            raise
        self._board, self._lock = board
        self.sampler.progress = self._board[:1]
        self._outboxes = [Outbox(self.memory) for _ in range(plan.buffers)]
        self._turn = 0
        self._received: Received | None = None
        self._env_steps = 0

    def begin(self) -> dict[str, Any]:
        """What the trainer wants to know first."""
        return {"obs": self.sampler.last_obs, "columns": self.sampler.columns}

    def act_with(self, sent: dict[str, Any], slot: int, explorer: dict[str, Any] | None) -> None:
        """Act with the actor that was sent from now on; with the state of its explorer, where that is given."""
        self.mapped.receive(sent["blocks"], self.connection)
        block = self.mapped.tensor(sent["place"])
        self._received = received = Received(sent["message"], sent["likes"], sent["trained"], block)
        received.read(slot)
        received.actor.explorer.parts = self._parts
        if explorer is not None:
            received.actor.explorer.load_state_dict(explorer)
        self.sampler.publish(received.actor, 0)

    def collect(self, order: Order) -> Collected | None:
        """A chunk; None where the run has all its steps."""
        received, sampler, began = self._received, self.sampler, time.perf_counter()
        assert received is not None
        if order.at is not None:
            self._env_steps = order.at
        for name, value in order.attributes.items():
            sampler.set_attr(name, value)
        left = order.total - self._env_steps
        if left <= 0:
            if order.boundary:
                sampler.abandon()
            return None
        version, explorer = self._refresh(order), received.actor.explorer
        explorer.set_clock(self._env_steps, min(1.0, self._env_steps / max(1, order.total)))
        sampler.publish(received.actor, version)
        rows = -(-min(order.steps, left) // (sampler.columns * self._parts))  # as many as all the others
        rollout = sampler.collect(rows * sampler.columns, order.boundary)
        return self._handed_on(rollout, version, explorer.state_dict(), began)

    def _refresh(self, order: Order) -> int:
        """Take over the parameters of an order → their version."""
        assert self._received is not None
        if order.slot is not None:
            self._received.read(order.slot)
            return order.version
        with self._lock:
            self._received.read(0)
            return int(self._board[1])

    def _handed_on(self, rollout: Rollout, version: int, explorer: dict[str, Any], began: float) -> Collected:
        self._env_steps += count_true(rollout.rows.valid)
        self._turn = (self._turn + 1) % len(self._outboxes)
        layout, beside = self._outboxes[self._turn].pack(rollout)
        seconds = time.perf_counter() - began
        return Collected(self.memory.unsent(), self._turn, layout, beside, version, explorer, seconds)

    def put(self, name: str, value: Any) -> Refused | None:
        """Set an attribute of the environment now; what it raises is told, and it goes on."""
        try:
            self.sampler.set_attr(name, value)
        except Exception as error:
            return Refused(error)
        return None

    def native(self) -> bool:
        """Whether the environment can save its own state."""
        return self.sampler.native_state

    def abandon(self) -> None:
        """Give up all running episodes."""
        self.sampler.abandon()

    def state(self) -> dict[str, Any]:
        """Everything that the next chunk depends on."""
        explorer = None if self._received is None else self._received.actor.explorer.state_dict()
        return {
            **self.sampler.state_dict(),
            "stream": self.sampler.generator.get_state(),
            "globals": global_state(),
            "explorer": explorer,
            "env_steps": self._env_steps,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave, or from what the trainer knew of a producer that was lost."""
        self.sampler.load_state_dict(state)
        self._env_steps = state["env_steps"] or 0
        if state["stream"] is None:  # of a producer that was lost: not the same noise again
            seed = self.sampler.streams.seed_for(f"act/boundary/{state['boundaries']}")
            self.sampler.generator.manual_seed(seed)
        else:
            self.sampler.generator.set_state(state["stream"])
            set_global_state(state["globals"])
        if self._received is not None and state["explorer"] is not None:
            self._received.actor.explorer.load_state_dict(state["explorer"])

    def behind(self, connection: Connection) -> None:
        """Send the descriptors of new memory behind a message that tells of it."""
        self.memory.send(connection)

    def close(self) -> None:
        """Close the environment."""
        self.sampler.close()


def produce(connection: Connection, trace: Connection, plan: Plan | bytes, block: Any, guarded: bool) -> None:
    """The life of a producer.

    Args:
        connection: its end of the pipe.
        trace: what is written here outlives a crash: the traceback of a signal.
        plan: as it is, or by cloudpickle.
        block: shared memory for the count of rows and the version of parameters, and a lock for the latter.
        guarded: end with the thread that started this process; true where that is the parent's main thread.
    """
    serve_calls(
        connection,
        trace,
        guarded,
        lambda: Producer(_unpacked(plan), (np.frombuffer(block[0], np.int64), block[1]), connection),
    )


def serve_calls(
    connection: Connection, trace: Connection, guarded: bool, make: Callable[[], Answering]
) -> None:
    """Make something in this process and call its methods as the parent asks, until that closes it or is gone."""
    settle(trace, guarded)
    pipe = channel.Channel(connection)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent is gone: so are we
        pipe.say(channel.DONE)
        try:
            made = make()
            message = channel.pack(made.begin())
        except BaseException as error:
            return tell(pipe, error)
        pipe.tell(channel.TOLD, message)
        while pipe.hear() not in (b"", channel.CLOSE):
            name, arguments = pipe.receive()
            try:
                message = channel.pack(getattr(made, name)(*arguments))
            except BaseException as error:
                return tell(pipe, error)
            pipe.tell(channel.TOLD, message)
            made.behind(connection)
        made.close()


def _unpacked(plan: Plan | bytes) -> Plan:
    found: Plan = cloudpickle.loads(plan) if isinstance(plan, bytes) else plan
    return found
