"""Columns of gymnasium's sync and async vector environments: what runs around each single one, here or in a
process.

Workers get the environment's maker by cloudpickle, so ids registered in the parent (their spec travels),
lambdas and classes of a notebook work under fork and spawn alike.
"""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from uniarena.envs.column import (
    base_call,
    base_get,
    base_set,
    explain_step,
    frame_of,
    scalar_reward,
    seed_spaces,
    unpack_reset,
)
from uniarena.envs.info import plain_info, reports
from uniarena.envs.native import load_native, native_state
from uniarena.seeding import global_state, seed_globals, set_global_state

Maker = Callable[[], gym.Env]


class Column(gym.Wrapper):
    """Around one environment of a vector: seeds its spaces, answers for its base, gives its state.

    Args:
        env: the environment.
        index: its column.
        process: it is alone in a process, whose global random streams are then its own: seeded and saved with it.
    """

    def __init__(self, env: gym.Env, index: int, process: bool = False) -> None:
        super().__init__(env)
        self.index, self.process = index, process

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset; with a seed, the spaces' own sampling is seeded too."""
        if seed is not None:
            seed_spaces(self.env, seed)
            if self.process:
                seed_globals(seed)
        obs, _ = unpack_reset(self.env.reset(seed=seed, options=options), self.env)
        return obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; of info only what we reduce to numbers goes through the pipe."""
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
        except ValueError as error:
            raise explain_step(self.env, error) from error
        if terminated or truncated:
            obs = copy.deepcopy(obs)  # the reset that follows may write to the same memory
        told = plain_info(info) if info and reports(info) else {}
        return obs, scalar_reward(reward), bool(terminated), bool(truncated), told

    def column_state(self) -> dict[str, Any] | None:
        """Native state of what is inside."""
        state = native_state(self.env)
        return state if state is None or not self.process else {**state, "globals": global_state()}

    def load_column_state(self, states: Sequence[dict[str, Any]]) -> None:
        """Take the state of this column from those of all."""
        load_native(self.env, states[self.index])
        if self.process:
            set_global_state(states[self.index]["globals"])

    def base_get(self, name: str) -> Any:
        """Attribute of the base environment."""
        return base_get(self.env, name)

    def base_set(self, name: str, value: Any) -> None:
        """Set an attribute of the base environment."""
        base_set(self.env, name, value)

    def base_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the base environment."""
        return base_call(self.env, name, *args, **kwargs)

    def picture(self) -> Any:
        """A frame, where the environment was made to draw."""
        return frame_of(self.env.render()) if self.env.render_mode else None


class ColumnMaker:
    """Makes one column; picklable by cloudpickle.

    Args:
        make: gives the environment.
        index: its column.
    """

    makes_columns = True

    def __init__(self, make: Maker, index: int) -> None:
        self.make, self.index = make, index
        self.parent = os.getpid()

    def __call__(self) -> gym.Env:
        """The environment in its `Column`."""
        process = os.getpid() != self.parent
        if process:
            # Ctrl-C goes to the whole group; the parent decides how a run ends, and closes us
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return Column(self.make(), self.index, process)


def sync_vector(makers: Sequence[Maker]) -> SyncVectorEnv:
    """Gymnasium's serial vector environment over these makers, resetting in the same step."""
    return SyncVectorEnv(_columns(makers), copy=False, autoreset_mode=AutoresetMode.SAME_STEP)


def async_vector(makers: Sequence[Maker], context: str | None = None) -> AsyncVectorEnv:
    """A process per maker.

    Args:
        context: start method (`fork`, `spawn`, `forkserver`); None: that of
            `multiprocessing.set_start_method`.

    Raises:
        WorkerError: a worker could not make its environment.
    """
    try:
        same_step = AutoresetMode.SAME_STEP
        return AsyncVectorEnv(_columns(makers), copy=False, context=context, autoreset_mode=same_step)
    except (EOFError, ConnectionError) as error:
        raise WorkerError(
            "a worker process ended while it made its environment (its own error is above). If it says "
            "that a module or an "
            "id is unknown, give the module that registers it, which the worker then imports: "
            "environment.id: "
            "'my_package.my_module:MyEnv-v0' or 'my_package.my_module:MyClass'"
        ) from error


class WorkerError(RuntimeError):
    """A worker process is gone."""


def describe_loss(vector: Any) -> str:
    """Which workers of an async vector environment have ended, with their exit codes."""
    processes = list(getattr(vector, "processes", ()))
    ending = wait([process.sentinel for process in processes], timeout=1.0)
    for process in processes:
        if process.sentinel in ending:  # its pipe breaks a moment before it is over
            process.join(timeout=1.0)
    gone = [(i, p.exitcode) for i, p in enumerate(processes) if p.exitcode is not None]
    listed = ", ".join(f"{i} (exit code {code})" for i, code in gone) or "one"
    return f"environment worker {listed} ended; a negative code is a signal, -9 mostly a lack of memory"


def _columns(makers: Sequence[Maker]) -> list[ColumnMaker]:
    return [ColumnMaker(make, index) for index, make in enumerate(makers)]
