"""Sampling beside learning: a producer process collects the next chunk while this one learns from the last.

With a fixed lag, chunk k + 1 is collected with the parameters after update k − 1 while update k runs. Which ones these
are does not depend on who was quicker, so a run repeats bit for bit.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.util import Finalize
from typing import Any, cast

import numpy as np
import torch

from uniarena.batch import Rollout, Tree
from uniarena.buffers.rollout import rollout_from_state, rollout_to_state
from uniarena.config import ConfigError, SamplingConfig
from uniarena.envs.faults import ONE_SCREEN, WorkerError, WorkerFault
from uniarena.envs.inside import innermost
from uniarena.envs.protocol import Env
from uniarena.envs.worker_link import OURS, Link, refuse_unguarded, shut
from uniarena.envs.worker_process import Refused
from uniarena.explorers.actor import Actor
from uniarena.sampling.ahead import Ahead
from uniarena.sampling.handover import Inbox
from uniarena.sampling.producer import Collected, Order, Plan, produce
from uniarena.sampling.published import Published
from uniarena.sampling.shared import MappedMemory, SharedMemory
from uniarena.seeding import Streams

_LOCKED_S = 10.0  # longer nobody copies parameters: who holds the lock is dead


class ProducerError(WorkerError):
    """The producer process raised, ended or hung."""


class PipelinedSampler:
    """Has a producer process step an environment like `env`, which itself is never stepped.

    Args:
        env: the batched environment; the producer makes another one with its factory.
        streams: named generators; the producer derives its own from the same seed.
        records: what the learner must know of the behaviour policy.
        device: where rollouts are handed on.
        cfg: the section `sampling`.

    Attributes:
        ahead: chunks that are under way when one is handed on.
        seconds: `waited` for the producer here, and `collecting` there.

    Raises:
        ConfigError: no second environment can be made, or it lives on another device.
        ProducerError: the producer could not make or reset it.
    """

    def __init__(
        self,
        env: Env,
        streams: Streams,
        records: Sequence[str] = (),
        device: torch.device | str | None = None,
        cfg: SamplingConfig | None = None,
    ) -> None:
        refuse_unguarded()
        self.env, self.cfg = env, cfg or SamplingConfig(type="pipelined")
        self.device = torch.device("cpu" if device is None else device)
        make = _maker(env)
        free = self.cfg.lag == "free"
        self.ahead = 2 if free else 1
        self.seconds = {"waited": 0.0, "collecting": 0.0}
        context = multiprocessing.get_context()
        board = context.RawArray(ctypes.c_int64, 2)
        self._board, self._lock = np.frombuffer(cast(Any, board), np.int64), context.Lock() if free else None
        plan = Plan(make, streams.seed, tuple(records), env.env_id, self.ahead + 1)
        self._link = Link(f"{OURS}producer", produce, plan, (board, self._lock), context, parent=True)
        self._memory, self._mapped = SharedMemory(), MappedMemory()
        self._inboxes = [Inbox(self._mapped) for _ in range(self.ahead + 1)]
        self._actor: Actor | None = None
        self._published: Published | None = None
        self._explorer: dict[str, Any] | None = None  # a loaded state that no actor was there to take
        self._version = self._orders = self._total = self._boundaries = 0
        self._ready: deque[tuple[Rollout, dict[str, Any]]] = deque()
        self._attributes: dict[str, Any] = {}  # that were set, and those that the producer was not told yet
        self._pending: dict[str, Any] = {}
        self._broken = False
        self._end = Finalize(self, shut, args=([self._link],), exitpriority=10)  # also at exit and collection
        try:
            begun = self._start()
        except BaseException:
            self.close()
            raise
        self.columns: int = begun["columns"]
        self.last_obs: Tree = begun["obs"]
        if hasattr(innermost(env), "pids"):  # its worker processes have nothing to do
            env.close()

    @property
    def pid(self) -> int | None:
        """Of the producer; None where it has ended."""
        process = self._link.process
        return None if process is None else process.pid

    def publish(self, actor: Actor, version: int) -> None:
        """Collect with `actor` from the next chunk that is begun on; its values are copied when that is ordered."""
        if actor is not self._actor:
            self._send(actor)
        self._actor, self._version = actor, version
        self._share()

    def collect(self, steps: int, boundary: bool = False, ahead: Ahead | None = None) -> Rollout:
        """The chunk that was begun before, and the next one begins. Its memory is valid until the next call.

        Args:
            steps: vector rows × B wanted, where no chunk was begun.
            boundary: end the chunk that begins now by a declared reset: it will be under way at a checkpoint that is
                due by env steps, and goes into it.
            ahead: of that chunk; None: none begins.

        Raises:
            RuntimeError: no actor was published.
            ProducerError: the producer raised, ended or hung.
        """
        if self._actor is None:
            raise RuntimeError("collect() before publish(): publish an actor first.")
        now = self._actor.explorer.env_steps
        if self._orders and self._total <= now:  # the run was over, and goes on
            self._drain()
        total = now + steps if ahead is None else ahead.total
        self._share()  # also what was mended or changed since they were published
        if not (self._orders or self._ready):
            self._order(steps, total, boundary and ahead is None, now)
        while ahead is not None and self._orders + len(self._ready) <= self.ahead:
            self._order(ahead.steps, total, boundary, None)
        while not self._ready:
            self._take()
        rollout, explorer = self._ready.popleft()
        if explorer:
            self._actor.explorer.load_state_dict(explorer)
        return rollout if self.device.type == "cpu" else rollout.to(self.device)

    def set_attr(self, name: str, value: Any) -> None:
        """Set attribute `name` of every environment, plain data, before the next chunk that is begun; a resumed run
        sets it again.
        """
        if self._orders or self._ready:
            self._pending[name] = value
        else:
            self._ask("put", name, value)
        self._attributes[name] = value

    def abandon(self) -> None:
        """Give up all running episodes and the chunks under way: the next one begins with new ones."""
        self._boundaries += 1
        if not self._broken:
            self._ask("abandon")
        self._ready.clear()

    def close(self) -> None:
        """End the producer, whatever it does: within seconds. Again is harmless."""
        self._broken = True
        self._end()
        self._ready.clear()
        self.env.close()

    @property
    def native_state(self) -> bool:
        """Whether the environment can save its own state."""
        return not self._broken and bool(self._ask("native"))

    def state_dict(self) -> dict[str, Any]:
        """Everything after the chunks under way, and these; what a lost producer leaves, begins with new episodes."""
        if self._broken:
            known = {"boundaries": self._boundaries + 1, "attributes": dict(self._attributes)}
            nothing = dict.fromkeys(
                ("env", "obs", "is_first", "state", "stream", "globals", "explorer", "env_steps")
            )
            return {**nothing, **known, "reset_with": dict(self._attributes), "pending": {}, "chunks": []}
        own = self._ask("state")
        chunks = [{"rollout": rollout_to_state(rollout), "explorer": told} for rollout, told in self._ready]
        return {**own, "pending": dict(self._pending), "chunks": chunks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the state was taken; without native state, as after the last declared boundary.

        Raises:
            ValueError: it is the state of another kind of sampler.
        """
        if "chunks" not in state:
            raise ValueError("the state is that of sampling in one process: set sampling.type to local")
        self._drain()
        own = {name: value for name, value in state.items() if name not in ("pending", "chunks")}
        self._ask("load", own)
        self._explorer = state["explorer"]
        self._boundaries, self._pending = state["boundaries"], dict(state["pending"])
        self._attributes = {**state["attributes"], **self._pending}
        self._ready = deque(
            (rollout_from_state(chunk["rollout"]), dict(chunk["explorer"])) for chunk in state["chunks"]
        )

    # -- the producer -------------------------------------------------------------------------------------------------
    def _start(self) -> Any:
        with _Exchange(self):
            self._link.start()
            return self._link.started(self.cfg.timeout_s)

    def _send(self, actor: Actor) -> None:
        """Have the producer act with another actor."""
        try:
            self._published = published = Published(actor, self._memory)
        except Exception as error:
            raise ConfigError(
                f"the policy cannot be sent to a producer process: {type(error).__name__}: {error}",
                "sampling.type",
                hint="hold nothing in it that is open, such as a lock or a file, or set sampling.type to local",
            ) from error
        sent = {
            "message": published.message,
            "likes": published.likes,
            "trained": published.trained,
            "place": self._memory.place(published.block),
            "blocks": self._memory.unsent(),
        }
        self._ask("act_with", sent, published.write(0), self._explorer)
        self._explorer = None

    def _share(self) -> None:
        """Free running: the newest parameters lie where the producer looks when it begins a chunk."""
        if self._lock is not None and self._published is not None:
            held = self._lock.acquire(timeout=_LOCKED_S)
            try:
                self._published.write(0)
                self._board[1] = self._version
            finally:
                if held:
                    self._lock.release()

    def _order(self, steps: int, total: int, boundary: bool, at: int | None) -> None:
        assert self._published is not None
        slot = None if self._lock is not None else self._published.write_next()
        order = Order(steps, total, boundary, slot, self._version, self._pending, at)
        with _Exchange(self):
            self._link.ask("collect", order)
        self._orders, self._total, self._pending = self._orders + 1, total, {}
        self._boundaries += boundary

    def _ask(self, method: str, *arguments: Any) -> Any:
        """An answer, once the chunks under way are there."""
        self._drain()
        with _Exchange(self):
            self._link.ask(method, *arguments)
            with contextlib.suppress(ConnectionError):  # the answer tells
                self._memory.send(self._link.connection)
            found = self._answer()
        if isinstance(found, Refused):
            raise found.error
        return found

    def _drain(self) -> None:
        while self._orders:
            self._take()

    def _take(self) -> None:
        """The answer to the earliest order."""
        began = time.perf_counter()
        with _Exchange(self):
            found: Collected | None = self._answer()
            self._orders -= 1
            if found is None:
                return
            try:
                self._mapped.receive(found.blocks, self._link.connection)
            except (EOFError, OSError, RuntimeError):  # it ended behind its last word
                raise self._link.ended() from None
        self.seconds["waited"] += time.perf_counter() - began
        self.seconds["collecting"] += found.seconds
        rollout = self._inboxes[found.turn].unpack(found.layout, found.beside, found.version)
        if found.layout is not None:
            self._mapped.keep(set().union(*(inbox.blocks for inbox in self._inboxes)))
        self._ready.append((rollout, found.explorer))

    def _answer(self) -> Any:
        """What the producer says next. It hangs where it says nothing, and writes no row either, for too long."""
        rows = int(self._board[0])
        while not self._link.heard(self.cfg.timeout_s):
            if int(self._board[0]) == rows:
                raise self._link.hung()
            rows = int(self._board[0])
        return self._link.answer(None)

    def told(self, fault: WorkerFault) -> ProducerError:
        """A fault in words: what happened, where, and what to do."""
        lines = [f"the producer process of {self.env.env_id} {fault.what} in {self._link.doing}"]
        if fault.traceback:
            lines += [
                "in the producer:",
                *(f"  {line}" for line in fault.traceback[-ONE_SCREEN:].splitlines()),
            ]
        if "hangs" in fault.what:
            lines.append(f"sampling.timeout_s={self.cfg.timeout_s:g} is how long no step may be taken")
        lines.append(
            fault.advice
            or "sampling.type=local steps the environment in this process, where it can be debugged"
        )
        return ProducerError("\n".join(lines))


class _Exchange:
    """Around every exchange: after an error in the middle of one, nobody knows what the producer will say."""

    def __init__(self, sampler: PipelinedSampler) -> None:
        self.sampler = sampler

    def __enter__(self) -> None:
        if self.sampler._broken:
            raise ProducerError(f"the producer of {self.sampler.env.env_id} has ended; make the trainer anew")

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.sampler._broken = kind is not None
        if isinstance(error, WorkerFault):
            raise self.sampler.told(error) from None


def _maker(env: Env) -> Callable[[], Env]:
    """What makes the producer's environment.

    Raises:
        ConfigError: it cannot be made there.
    """
    make, reason, hint = getattr(env, "factory", None), "", "set sampling.type to local"
    if os.name != "posix":
        reason = "sharing memory with a producer process needs a system such as Linux or macOS"
    elif env.device.type != "cpu":
        reason = f"{env.env_id} lives on {env.device}, and only main memory can be shared between processes"
    elif make is None:
        reason = (
            f"{env.env_id} was given as an object, and a producer process makes an environment of its own"
        )
        hint = "give its class, its id or a function that makes it, or set sampling.type to local"
    if reason or make is None:
        raise ConfigError(reason, "sampling.type", hint=hint)
    return partial(make, env.num_envs)
