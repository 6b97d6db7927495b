"""Sampling beside learning: producer processes collect the next chunk while this one learns from the last.

With a fixed lag, chunk k + 1 is collected with the parameters after update k − 1 while update k runs. Which ones these
are does not depend on who was quicker, so a run repeats bit for bit.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.util import Finalize
from typing import Any

import torch

from uniarena.batch import Rollout, Tree
from uniarena.buffers.rollout import rollout_from_state, rollout_to_state
from uniarena.config import ConfigError, SamplingConfig
from uniarena.envs.inside import innermost
from uniarena.envs.protocol import Env
from uniarena.envs.worker_link import refuse_unguarded, shut
from uniarena.envs.worker_process import Refused
from uniarena.explorers.actor import Actor
from uniarena.sampling.ahead import Ahead
from uniarena.sampling.beside import SideBySide, join_columns
from uniarena.sampling.producer import Collected, Order, Plan
from uniarena.sampling.published import Published
from uniarena.sampling.remote import ProducerError, Remote, Remotes
from uniarena.sampling.shared import SharedMemory
from uniarena.seeding import Streams

__all__ = ["PipelinedSampler", "ProducerError"]

_LOCKED_S = 10.0  # longer nobody copies parameters: who holds the lock is dead


class _Ready:
    """A chunk that is there: what each producer gave, and what its explorer's state was afterwards."""

    def __init__(self, parts: list[Rollout], explorer: dict[str, Any]) -> None:
        self.parts, self.explorer = parts, explorer


class PipelinedSampler:
    """Has producer processes step environments like `env`, which itself is never stepped.

    Args:
        env: the batched environment; each producer makes another one with its factory, of its part of the columns.
        streams: named generators; producers derive their own from the same seed.
        records: what the learner must know of the behaviour policy.
        device: where rollouts are handed on.
        cfg: the section `sampling`.

    Attributes:
        ahead: chunks that are under way when one is handed on.
        seconds: `waited` for producers here, and `collecting` there, by the one that took longest.

    Raises:
        ConfigError: no second environment can be made, it lives on another device, or its columns cannot be spread
            evenly over the producers.
        ProducerError: a producer could not make or reset it.
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
        free = self.cfg.lag == "free"
        self.ahead = 2 if free else 1
        self.seconds = {"waited": 0.0, "collecting": 0.0}
        context = multiprocessing.get_context()
        self._lock = context.Lock() if free else None
        plans = _plans(env, streams.seed, tuple(records), self.ahead + 1, self.cfg.producers)
        remotes = [Remote(plan, self._lock, context) for plan in plans]
        self._remotes = Remotes(remotes, env.env_id, self.cfg.timeout_s)
        self._memory, self._joined = SharedMemory(), SideBySide()
        self._actor: Actor | None = None
        self._published: Published | None = None
        self._explorers: list[Any] = [None] * len(plans)  # loaded states that no actor was there to take
        self._version = self._orders = self._total = self._boundaries = 0
        self._ready: deque[_Ready] = deque()
        self._due: deque[int] = deque()  # env steps of the chunks under way, if all their rows are valid
        self._attributes: dict[str, Any] = {}  # that were set, and those that producers were not told yet
        self._pending: dict[str, Any] = {}
        self._end = Finalize(self, shut, args=(self._remotes.links,), exitpriority=10)  # also at exit
        try:
            begun = self._remotes.start()
        except BaseException:
            self.close()
            raise
        self.columns: int = sum(each["columns"] for each in begun)
        self.last_obs: Tree = join_columns([each["obs"] for each in begun])
        if hasattr(innermost(env), "pids"):  # its worker processes have nothing to do
            env.close()

    @property
    def pids(self) -> list[int]:
        """Of the producers, without those that have ended."""
        return [part.pid for part in self._remotes.parts if part.pid is not None]

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
            ProducerError: a producer raised, ended or hung.
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
            if not self._order(ahead.steps, total, boundary, None):
                break
        while not self._ready:
            self._take()
        self._due.popleft()
        ready = self._ready.popleft()
        if ready.explorer:
            self._actor.explorer.load_state_dict(ready.explorer)
        rollout = self._joined.join(ready.parts)
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
        if not self._remotes.broken:
            self._ask("abandon")
        self._ready.clear()
        self._due.clear()

    def close(self) -> None:
        """End the producers, whatever they do: within seconds. Again is harmless."""
        self._remotes.broken = True
        self._end()
        self._ready.clear()
        self.env.close()

    @property
    def native_state(self) -> bool:
        """Whether the environment can save its own state."""
        return not self._remotes.broken and all(self._ask("native"))

    def state_dict(self) -> dict[str, Any]:
        """Everything after the chunks under way, and these; what a lost producer leaves, begins with new episodes.

        It is the state of the first producer, with those of the `others` in it.
        """
        if self._remotes.broken:
            known = {"boundaries": self._boundaries + 1, "attributes": dict(self._attributes)}
            nothing = dict.fromkeys(
                ("env", "obs", "is_first", "state", "stream", "globals", "explorer", "env_steps")
            )
            own = {**nothing, **known, "reset_with": dict(self._attributes)}
            states, pending, chunks = [dict(own) for _ in self._remotes.parts], {}, []
        else:
            states, pending = self._ask("state"), dict(self._pending)
            whole = [(SideBySide().join(ready.parts), ready.explorer) for ready in self._ready]
            chunks = [{"rollout": rollout_to_state(rollout), "explorer": told} for rollout, told in whole]
        others = {"others": states[1:]} if len(states) > 1 else {}
        return {**states[0], **others, "pending": pending, "chunks": chunks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the state was taken; without native state, as after the last declared boundary.

        Raises:
            ValueError: it is the state of another kind of sampler, or of another number of producers.
        """
        if "chunks" not in state:
            raise ValueError("the state is that of sampling in one process: set sampling.type to local")
        own = {name: value for name, value in state.items() if name not in ("others", "pending", "chunks")}
        states, wanted = [own, *state.get("others", ())], len(self._remotes.parts)
        if (given := len(states)) != wanted:
            raise ValueError(
                f"the state is that of {given} producer{'s' if given > 1 else ''}, and here are {wanted}: set "
                f"sampling.producers to {given}"
            )
        self._drain()
        self._ask("load", each=states)
        self._explorers = [each["explorer"] for each in states]
        self._boundaries, self._pending = state["boundaries"], dict(state["pending"])
        self._attributes = {**state["attributes"], **self._pending}
        self._ready = deque(
            _Ready([rollout_from_state(chunk["rollout"])], dict(chunk["explorer"]))
            for chunk in state["chunks"]
        )
        self._due = deque(ready.parts[0].T * ready.parts[0].B for ready in self._ready)

    # -- the producers ------------------------------------------------------------------------------------------------
    def _send(self, actor: Actor) -> None:
        """Have the producers act with another actor."""
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
        self._ask("act_with", sent, published.write(0), each=self._explorers)
        self._explorers = [None] * len(self._explorers)

    def _share(self) -> None:
        """Free running: the newest parameters lie where producers look when they begin a chunk."""
        if self._lock is not None and self._published is not None:
            held = self._lock.acquire(timeout=_LOCKED_S)
            try:
                self._published.write(0)
                for part in self._remotes.parts:
                    part.board[1] = self._version
            finally:
                if held:
                    self._lock.release()

    def _order(self, steps: int, total: int, boundary: bool, at: int | None) -> bool:
        """Have a chunk collected → whether one will come, or the answer that the run has all its steps.

        One producer counts itself where the run stands. Several do not know of each other's rows, so those of the
        chunks under way are taken for valid; what is missing in the end, a further chunk brings.
        """
        assert self._published is not None and self._actor is not None
        start, several = self._actor.explorer.env_steps + sum(self._due), len(self._remotes.parts) > 1
        self._boundaries += boundary
        if several and start >= total:
            if boundary:
                self._ask("abandon")
            return False
        slot = None if self._lock is not None else self._published.write_next()
        order = Order(steps, total, boundary, slot, self._version, self._pending, start if several else at)
        self._remotes.order("collect", order)
        self._due.append(-(-max(0, min(steps, total - start)) // self.columns) * self.columns)
        self._orders, self._total, self._pending = self._orders + 1, total, {}
        return True

    def _ask(self, method: str, *arguments: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Each producer's answer, once the chunks under way are there."""
        self._drain()
        found = self._remotes.ask(method, *arguments, each=each, memory=self._memory)
        for answer in found:
            if isinstance(answer, Refused):
                raise answer.error
        return found

    def _drain(self) -> None:
        while self._orders:
            self._take()

    def _take(self) -> None:
        """The answers to the earliest order."""
        began = time.perf_counter()
        found: list[Collected | None] = self._remotes.answers()
        self._orders -= 1
        whole = [each for each in found if each is not None]
        if not whole:  # the run had all its steps
            del self._due[len(self._ready)]
            return
        self.seconds["waited"] += time.perf_counter() - began
        self.seconds["collecting"] += max(each.seconds for each in whole)
        parts = [part.unpack(each) for part, each in zip(self._remotes.parts, whole, strict=True)]
        self._ready.append(_Ready(parts, whole[0].explorer))


def _plans(env: Env, seed: int, records: tuple[str, ...], buffers: int, producers: int) -> list[Plan]:
    """What each producer is to run.

    Raises:
        ConfigError: the environment cannot be made there, or not in so many parts.
    """
    make, share = _maker(env), env.num_envs // producers
    if share * producers != env.num_envs:
        fitting = [str(count) for count in range(1, env.num_envs + 1) if env.num_envs % count == 0]
        raise ConfigError(
            f"{env.num_envs} environment{'s' if env.num_envs > 1 else ''} cannot be spread evenly over {producers} "
            f"producers; those that fit are {', '.join(fitting)}",
            "sampling.producers",
            hint="set it to one of these, or environment.num_envs to a multiple of it",
        )
    if producers == 1:
        return [Plan(partial(make, share), seed, records, env.env_id, buffers)]
    plans = []
    for part in range(producers):
        first = part * share
        words = f"environments {first} to {first + share - 1}" if share > 1 else f"environment {first}"
        own = partial(make, share, first=first)
        plans.append(Plan(own, seed, records, env.env_id, buffers, words, part, producers))
    return plans


def _maker(env: Env) -> Callable[..., Env]:
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
    found: Callable[..., Env] = make
    return found
