"""What runs in a worker process: some columns, stepped at a word of the parent into shared memory.

Episodes that end are reset in the same step. Whatever an environment raises is told to the parent with its traceback,
and the process ends: the parent decides whether another one takes its place.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple
from weakref import WeakSet

import cloudpickle
import gymnasium as gym
import numpy as np
import torch
from gymnasium import Space

from uniarena.batch import Tree, tree_map
from uniarena.config.errors import text_of
from uniarena.envs import channel
from uniarena.envs.column import (
    base_call,
    base_get,
    base_set,
    begin,
    episode_end,
    explain_step,
    frame_of,
    refuse_misfit,
    refuse_none,
    scalar_reward,
)
from uniarena.envs.faults import PACKAGE
from uniarena.envs.info import plain_info, reports
from uniarena.envs.native import load_native, native_state
from uniarena.envs.score import Score
from uniarena.envs.serial import by_column
from uniarena.envs.shared import DONE, STEPPED, SharedColumns
from uniarena.envs.storage import ObsRows
from uniarena.seeding import global_state, preserved_globals, seed_globals, set_global_state

PARENT_ENDS: WeakSet[Connection] = WeakSet()
"""The parent's ends of all pipes. A forked worker closes its copies, or no pipe would break when the parent dies."""

_NUMBERS = {float, int, bool, np.float64, np.float32}
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Order:
    """What a worker is to run; goes by cloudpickle where it cannot be inherited.

    Attributes:
        makers: of its environments.
        first: the column of the first one.
        columns: B, of all workers.
        spaces: observation and action space of a column, as the environment states them.
        env_id: name for messages.
    """

    makers: Sequence[Callable[[], gym.Env]]
    first: int
    columns: int
    spaces: tuple[Space[Any], Space[Any]]
    env_id: str


class Raised(NamedTuple):
    """An exception of a worker as text."""

    summary: str
    traceback: str
    column: int | None


class Refused(NamedTuple):
    """The answer of an environment that raised when it was asked for something beside a step or a reset."""

    error: Exception


class WorkerColumns:
    """The environments of one process.

    Attributes:
        at: the one, counted from 0 here, that was used last.
    """

    def __init__(self, order: Order, block: Any) -> None:
        self.at: int | None = 0
        self.first, self.env_id = order.first, order.env_id
        self.envs: list[gym.Env] = []
        for b, make in enumerate(order.makers):
            self.at = b
            self.envs.append(make())
            refuse_misfit(self.envs[b], order.first + b, order.env_id, order.spaces)
        shared = SharedColumns(*order.spaces, order.columns, block)
        own = slice(order.first, order.first + len(self.envs))

        def mine(tree: Tree) -> Tree:
            return tree_map(lambda leaf: leaf[own], tree)

        count = len(self.envs)
        self._rows = ObsRows(order.spaces[0], count, mine(shared.obs))
        self._finals = ObsRows(order.spaces[0], count, mine(shared.final))
        self._action: Tree = mine(shared.action)
        self._reward, self._progress = shared.reward[own], shared.progress[own]
        self._terminated, self._truncated = shared.terminated[own], shared.truncated[own]
        self._steps = [env.step for env in self.envs]
        self._scores = [Score(env) for env in self.envs]
        self._checked: set[int] = set()

    def step(self) -> list[tuple[int, dict[str, Any]]]:
        """A step of every column → what they report, by column of all."""
        told = []
        # copies, for an environment may keep what it is given
        action: Any = tree_map(np.copy, self._action)
        actions = action if isinstance(action, np.ndarray) else by_column(action, len(self.envs))
        write, reward, progress = self._rows.write, self._reward, self._progress
        for b, (step, own) in enumerate(zip(self._steps, actions, strict=True)):
            self.at = b
            try:
                obs, value, terminated, truncated, info = step(own)
                over = terminated or truncated
                if terminated is None or truncated is None:
                    refuse_none(self.envs[b], terminated, truncated)  # type: ignore[unreachable]
                if over:
                    terminated, truncated, info = episode_end(self.envs[b], terminated, truncated, info)
            except (ValueError, RuntimeError) as error:
                raise explain_step(self.envs[b], error) from error
            reward[b] = value if type(value) in _NUMBERS else scalar_reward(value)
            self._terminated[b], self._truncated[b] = terminated, truncated
            if over:
                self._finals.write(b, obs)
                progress[b] = STEPPED
                obs = begin(self.envs[b], None, None)
                info = {**info, **self._scores[b].at_end()}
            if info and reports(info):
                told.append((self.first + b, plain_info(info)))
            write(b, obs)
            progress[b] = DONE
        return told

    def reset(
        self, columns: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> None:
        """Begin episodes in some columns, counted from 0 here; the first seed seeds this process too."""
        if seeds[0] is not None:
            seed_globals(seeds[0])
        for b, seed in zip(columns, seeds, strict=True):
            self.at = b
            obs = begin(self.envs[b], seed, options)
            if b not in self._checked:
                self._rows.check(obs, f"reset() of {self.env_id}")
                self._checked.add(b)
            self._rows.write(b, obs)
            self._progress[b] = DONE
            self._scores[b].sync()

    def state(self) -> dict[str, Any] | None:
        """Native state of every environment and of the global streams, or None where one cannot give it."""
        states = [native_state(env) for env in self.envs]
        return None if any(state is None for state in states) else {"envs": states, "globals": global_state()}

    def load(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        for env, own, score in zip(self.envs, state["envs"], self._scores, strict=True):
            load_native(env, own)
            score.sync()
        set_global_state(state["globals"])

    def picture(self) -> np.ndarray | None:
        """A frame of the first environment, where it was made to draw."""
        return frame_of(self.envs[0].render()) if self.envs[0].render_mode else None

    def attribute(self, name: str) -> list[Any]:
        """An attribute of each."""
        return [base_get(env, name) for env in self.envs]

    def put(self, name: str, value: Any) -> None:
        """Set an attribute of each."""
        for env in self.envs:
            base_set(env, name, value)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of each."""
        return [base_call(env, name, *args, **kwargs) for env in self.envs]

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()


def serve(connection: Connection, trace: Connection, order: Order | bytes, block: Any, guarded: bool) -> None:
    """The life of a worker.

    Args:
        connection: its end of the pipe.
        trace: what is written here outlives a crash: the traceback of a signal.
        order: as it is, or by cloudpickle.
        block: the shared memory.
        guarded: end with the thread that started this process; true where that is the parent's main thread.
    """
    settle(trace, guarded)
    pipe = channel.Channel(connection)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent is gone: so are we
        pipe.say(channel.DONE)
        columns: WorkerColumns | None = None
        try:
            columns = WorkerColumns(cloudpickle.loads(order) if isinstance(order, bytes) else order, block)
        except BaseException as error:
            return tell(pipe, error, _column(columns))
        pipe.say(channel.DONE)
        while (word := pipe.hear()) not in (b"", channel.CLOSE):
            request = None if word == channel.STEP else pipe.receive()
            try:
                message = _step(columns) if request is None else _do(columns, *request)
            except BaseException as error:
                return tell(pipe, error, _column(columns))
            if message is None:
                pipe.say(channel.DONE)
            else:
                pipe.tell(channel.TOLD, message)
        columns.close()


def _step(columns: WorkerColumns) -> bytes | None:
    told = columns.step()
    return channel.pack(told) if told else None


def _do(columns: WorkerColumns, name: str, arguments: tuple[Any, ...]) -> bytes:
    """What the parent asks for. Episodes go on after an error, unless it was a reset's."""
    columns.at = None
    if name == "reset":
        columns.reset(*arguments)
        return channel.pack(None)
    try:
        return channel.pack(getattr(columns, name)(*arguments))
    except Exception as error:
        error.add_note(f"in a worker process of {columns.env_id}: {account(error)}")
        try:
            message = channel.pack(Refused(error))
            cloudpickle.loads(message)
        except Exception:  # it cannot be sent as it is
            return channel.pack(Refused(RuntimeError(f"{type(error).__name__}: {text_of(error)}")))
        return message


def settle(trace: Connection, guarded: bool) -> None:
    """Make this process a worker: what it hears, where its crashes are written, with whom it ends."""
    for end in list(PARENT_ENDS):
        end.close()
    # Ctrl-C goes to the whole group and schedulers tell every process: the parent decides how a run ends. What an
    # environment starts shall still end by the latter, so they are not ignored but answered with nothing.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, frame: None)
    if os.name == "posix":
        faulthandler.enable(trace.fileno(), all_threads=False)
        faulthandler.register(signal.SIGUSR2, trace.fileno(), all_threads=False)
    if guarded and sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # a process for every core is parallel enough, and a pool of threads that was forked would hang
    torch.set_num_threads(1)
    with preserved_globals():
        seed_globals(0)  # the first time takes long, and shall not count as an environment's


def _column(columns: WorkerColumns | None) -> int | None:
    return None if columns is None or columns.at is None else columns.first + columns.at


def tell(pipe: channel.Channel, error: BaseException, column: int | None = None) -> None:
    """Tell the parent what was raised; the process ends with it."""
    raised = Raised(f"{type(error).__name__}: {text_of(error)}", account(error), column)
    pipe.tell(channel.RAISED, channel.pack(raised))


def account(error: BaseException) -> str:
    """The traceback from where our own frames end."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


def _ours(file: str) -> bool:
    return file.startswith(PACKAGE)
