"""WorkerEnvs: columns in worker processes, for slow or fragile simulators. `vectorization: async`.

Observations, rewards, flags and actions lie in shared memory; a step costs one byte to each process and one back. A
worker that raises, ends or hangs is started again, or ends the run, as the config says.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.util import Finalize
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import Space

from uniarena.batch import Tree, tree_leaves, tree_map
from uniarena.config import WorkersConfig
from uniarena.envs.actions import ActionMap
from uniarena.envs.column import env_seeds
from uniarena.envs.faults import Circumstances, RestartBudget, WorkerError, WorkerFault, report
from uniarena.envs.info import reduce_infos
from uniarena.envs.protocol import RESTARTS, Final, Step
from uniarena.envs.shared import DONE, PENDING, SharedColumns
from uniarena.envs.spaces import storage_space
from uniarena.envs.worker_link import WorkerLink, deadline, refuse_unguarded, shut, spread
from uniarena.envs.worker_process import Order, Refused
from uniarena.seeding import Streams

_log = logging.getLogger(__name__)
_NOTHING: dict[str, Any] = {}


class WorkerEnvs:
    """B columns spread over processes (see `envs.protocol.Env`).

    Args:
        makers: of one environment per column.
        spaces: observation and action space of a column.
        env_id: name for messages.
        seed: for the first reset, where `reset` is given none.
        cfg: processes, time limit, what follows a fault.

    Attributes:
        pids: of the processes.

    Raises:
        WorkerError: a worker could not make its environments. Nothing is started again that never ran.
    """

    tensor = False
    partial_reset = True
    has_final_obs = True

    def __init__(
        self,
        makers: Sequence[Callable[[], gym.Env]],
        spaces: tuple[Space[Any], Space[Any]],
        env_id: str = "",
        seed: int | None = None,
        cfg: WorkersConfig | None = None,
    ) -> None:
        refuse_unguarded()
        self.example: gym.Env | Callable[[], gym.Env] = makers[0]  # one like the columns, or a maker of one
        self.env_id, self.num_envs, self.device = env_id, len(makers), torch.device("cpu")
        self.observation_space, self.action_space = storage_space(spaces[0]), spaces[1]
        self.action_map = ActionMap(self.action_space)
        self.cfg = cfg or WorkersConfig()
        context = multiprocessing.get_context()
        self._shared = shared = SharedColumns(*spaces, self.num_envs, context)
        self._action = tree_leaves(shared.action)
        parts = spread(self.num_envs, self.cfg.processes)
        orders = [Order(makers[p.start : p.stop], p.start, self.num_envs, spaces, env_id) for p in parts]
        self._links = [WorkerLink(k, order, shared.block, context) for k, order in enumerate(orders)]
        self._budgets = [RestartBudget(self.cfg.restarts, self.cfg.restart_window) for _ in parts]
        self._count = [0] * len(parts)  # restarts of each, over its whole life
        self._broke_off = np.zeros(self.num_envs, bool)  # lost between steps: the next step says so
        self._untold: dict[int, int] = {}  # first column of a worker → restarts since the last step
        self._attributes: dict[str, Any] = {}  # set from outside: a new process needs them again
        self._seed, self._seeded = seed, seed
        self._seeds: list[int | None] = [None] * self.num_envs
        self._seeded_at, self._steps = np.zeros(self.num_envs, np.int64), 0
        self._begun = self._broken = self._uneven = False
        self._end = Finalize(self, shut, args=(self._links,), exitpriority=10)  # also at exit and collection
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        return [link.process.pid for link in self._links if link.process is not None]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None, mask: Any | None = None
    ) -> Tree:
        """Begin episodes in all columns, or in those of `mask` `[B]`; each gets its own seed from `seed`."""
        seed, self._seed = (self._seed if seed is None else seed), None
        if mask is None:
            self._seeded = self._seeded if seed is None else seed
            self._broke_off[:] = False
        chosen = np.ones(self.num_envs, bool) if mask is None else np.array(mask, bool)
        seeds = env_seeds(seed, self.num_envs)
        links = [link for link in self._links if chosen[link.columns].any()]
        with _Guard(self):
            self._shared.progress[chosen] = PENDING
            for link in links:
                self._ask_reset(link, chosen, seeds, options)
            for link, fault in self._faults(links)[1]:
                self._restart(link, fault, chosen, options)
        self._begun = True
        return self._shared.obs

    def step(self, action: Tree) -> Step:
        """One step of every column with the policy's own actions `[B, …]`."""
        shared = self._shared
        for memory, leaf in zip(self._action, tree_leaves(self.action_map(action)), strict=True):
            memory[...] = leaf
        self._steps += 1
        shared.progress.fill(PENDING)
        with _Guard(self):
            if self._uneven:
                return self._uneven_step()
            for link in self._links:
                link.step()
            told, faults = self._faults(self._links)
            if faults:
                return self._broken_step(told, faults)
        return self._result(told, None, None)

    def close(self) -> None:
        """End the processes, whatever they do: within seconds. Again is harmless."""
        self._broken = True
        self._end()

    def render(self) -> np.ndarray | None:
        """The first environment's picture, where it was made with a `render_mode` that gives arrays."""
        picture: np.ndarray | None = self._ask(self._links[:1], "picture")[0]
        return picture

    def state_dict(self) -> dict[str, Any] | None:
        """Native state of every environment, or None where one of them cannot give it, or a worker is gone."""
        if self._broken or not self._begun:
            return None
        states = self._ask(self._links, "state")
        if any(state is None for state in states):
            return None
        return {
            "workers": states,
            "obs": tree_map(np.copy, self._shared.obs),
            "broke_off": self._broke_off.copy(),
            "seed": self._seeded,
            "steps": self._steps,
            "restarts": list(self._count),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`, in this or in a newly made environment of the same kind."""
        workers = state["workers"]
        sizes = [len(own["envs"]) for own in workers]
        if sizes != [len(link.columns) for link in self._links]:
            raise ValueError(
                f"state of {sum(sizes)} environments in {len(sizes)} processes given; {self.env_id} has "
                f"{self.num_envs} in {len(self._links)}: set environment.num_envs and environment.workers.processes "
                "as they were"
            )
        if not self._begun:
            self.reset()  # makes what the environments make at their first reset
        for link, own in zip(self._links, workers, strict=True):
            self._ask([link], "load", own)
        tree_map(np.copyto, self._shared.obs, state["obs"])
        self._broke_off[:], self._seed, self._seeded = state["broke_off"], None, state["seed"]
        self._steps, self._count = state["steps"], list(state["restarts"])
        self._seeded_at[:], self._uneven = self._steps, bool(self._broke_off.any())

    def get_attr(self, name: str) -> list[Any]:
        """Attribute `name` of every environment, found through its wrappers."""
        return [value for values in self._ask(self._links, "attribute", name) for value in values]

    def set_attr(self, name: str, value: Any) -> None:
        """Set attribute `name` of every environment where it is defined; a restarted worker is told again."""
        self._ask(self._links, "put", name, value)
        self._attributes[name] = value

    def call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call method `name` of every environment."""
        return [value for values in self._ask(self._links, "call", name, args, kwargs) for value in values]

    def __repr__(self) -> str:
        return f"WorkerEnvs({self.env_id}, num_envs={self.num_envs}, processes={len(self._links)})"

    # -- what a step gave -------------------------------------------------------------------------------------------
    def _result(
        self, told: Sequence[list[Any] | None], lost: np.ndarray | None, valid: np.ndarray | None
    ) -> Step:
        shared = self._shared
        ended = shared.terminated | shared.truncated
        final = None
        if ended.any():
            index = np.flatnonzero(ended)
            final = Final(index, tree_map(lambda leaf: leaf[index], shared.final))
        said = [entry for entries in told if entries for entry in entries]
        info = reduce_infos(said, self.num_envs) if said else _NOTHING
        if self._untold:
            info = {**info, RESTARTS: np.full(self.num_envs, np.nan, np.float32)}
            for column, count in self._untold.items():
                info[RESTARTS][column] = count
            self._untold = {}
        is_first = ended if lost is None else ended | lost
        flags = (shared.terminated, shared.truncated, is_first)
        return Step(shared.obs, shared.reward, *flags, valid, final, None, info, lost)

    def _uneven_step(self) -> Step:
        """A step after a fault between steps: workers whose columns broke off then only reset."""
        fresh = [link for link in self._links if self._broke_off[link.columns].any()]
        for link in self._links:
            if link in fresh:
                self._ask_reset(link, np.ones(self.num_envs, bool), self._new_seeds(link), None)
            else:
                link.step()
        told, faults = self._faults(self._links)
        self._broke_off[:] = False
        for link in fresh:
            self._shared.progress[link.columns] = PENDING  # whatever came of the reset, no step was taken
        return self._broken_step(told, faults, fresh)

    def _broken_step(
        self,
        told: Sequence[list[Any] | None],
        faults: Sequence[tuple[WorkerLink, WorkerFault]],
        fresh: Sequence[WorkerLink] = (),
    ) -> Step:
        """The step in which workers were lost. What their columns had done by then counts; the rest did not happen."""
        shared, progress = self._shared, self._shared.progress.copy()
        lost, valid = np.zeros(self.num_envs, bool), np.ones(self.num_envs, bool)
        for link in [*fresh, *(link for link, _ in faults)]:
            own = link.columns
            over = (shared.terminated[own] | shared.truncated[own]) & (progress[own] != PENDING)
            lost[own], valid[own] = ~over, progress[own] != PENDING
            for flags in (shared.reward, shared.terminated, shared.truncated):
                flags[own] = np.where(valid[own], flags[own], 0)
            cut = np.flatnonzero(lost & valid)  # stepped, but what they would have gone on from is gone
            shared.truncated[cut] = True
            tree_map(lambda to, of, cut=cut: to.__setitem__(cut, of[cut]), shared.final, shared.obs)
        for link, fault in faults:
            self._restart(link, fault, np.ones(self.num_envs, bool), None)
        self._broke_off[:], self._uneven = False, False
        return self._result(told, lost if lost.any() else None, None if valid.all() else valid)

    # -- asking -----------------------------------------------------------------------------------------------------
    def _start(self) -> None:
        """Start every worker.

        Raises:
            WorkerError: one could not make its environments.
        """
        with _Guard(self):
            try:
                for link in self._links:
                    link.start()
                for link in self._links:
                    link.started(self.cfg.timeout_s)
            except WorkerFault as fault:
                raise WorkerError(report(fault, self._circumstances(link, fault))) from None

    def _faults(self, links: Sequence[WorkerLink]) -> tuple[list[Any], list[tuple[WorkerLink, WorkerFault]]]:
        """(answers, faults) of workers that were asked."""
        until, answers, faults = deadline(self.cfg.timeout_s), [], []
        for link in links:
            try:
                answers.append(link.answer(until))
            except WorkerFault as fault:
                answers.append(None)
                faults.append((link, fault))
        return answers, faults

    def _ask(self, links: Sequence[WorkerLink], method: str, *arguments: Any) -> list[Any]:
        """An answer of each. A worker that is started again is asked again; its columns break off in the next step.

        Raises:
            Exception: what an environment raised at it; it goes on.
        """
        with _Guard(self):
            for link in links:
                link.ask(method, *arguments)
            answers, faults = self._faults(links)
            for link, fault in faults:
                answers[links.index(link)] = self._ask_again(link, fault, method, arguments)
        for answer in answers:
            if isinstance(answer, Refused):
                raise answer.error
        return answers

    def _ask_again(
        self, link: WorkerLink, fault: WorkerFault, method: str, arguments: tuple[Any, ...]
    ) -> Any:
        while True:
            self._restart(link, fault, np.zeros(self.num_envs, bool), None)
            link.ask(method, *arguments)
            try:
                return link.answer(deadline(self.cfg.timeout_s))
            except WorkerFault as another:
                fault = another

    def _ask_reset(
        self,
        link: WorkerLink,
        chosen: np.ndarray,
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> None:
        columns = [b for b in link.columns if chosen[b]]
        for b in columns:
            if seeds[b] is not None:
                self._seeds[b], self._seeded_at[b] = seeds[b], self._steps
        link.ask("reset", [b - link.columns.start for b in columns], [seeds[b] for b in columns], options)

    # -- faults -----------------------------------------------------------------------------------------------------
    def _restart(
        self, link: WorkerLink, fault: WorkerFault, chosen: np.ndarray, options: dict[str, Any] | None
    ) -> None:
        """Another process in place of one, as often as is allowed. All its columns begin anew; those that nobody
        `chosen` asked to do so keep the observation that was seen last, and break off in the next step.
        """
        own = np.array(link.columns)
        kept = own[~chosen[own]]
        seen = tree_map(lambda leaf: leaf[kept], self._shared.obs)
        while True:
            self._account(link, fault)
            try:
                link.start()
                link.started(self.cfg.timeout_s)
                for name, value in self._attributes.items():
                    link.ask("put", name, value)
                    link.answer(deadline(self.cfg.timeout_s))
                everything = np.ones(self.num_envs, bool)
                self._ask_reset(link, everything, self._new_seeds(link), options)
                link.answer(deadline(self.cfg.timeout_s))
                break
            except WorkerFault as another:
                link.kill()
                fault = another
        tree_map(lambda leaf, rows: leaf.__setitem__(kept, rows), self._shared.obs, seen)
        self._broke_off[own], self._uneven = len(kept) > 0, True

    def _account(self, link: WorkerLink, fault: WorkerFault) -> None:
        """Tell of a fault, and that the worker is started again.

        Raises:
            WorkerError: it is not: by config, or because it was too often.
        """
        text, budget = report(fault, self._circumstances(link, fault)), self._budgets[link.index]
        if self.cfg.on_fault == "stop":
            raise WorkerError(text)
        if not budget.spend(self._steps):
            raise WorkerError(f"{text}\nIt was started again before: {budget} (environment.workers.restarts)")
        self._count[link.index] += 1
        first = link.columns.start
        self._untold[first] = self._untold.get(first, 0) + 1
        _log.warning("%s\nIt is started again: %s", text, budget)

    def _new_seeds(self, link: WorkerLink) -> list[int | None]:
        """Seeds of the columns of a worker after its latest restart; they repeat where the run's seed does."""
        if self._seeded is None:
            entropy = np.random.SeedSequence().generate_state(self.num_envs) >> 1
            return [int(number) for number in entropy]
        streams, count = Streams(self._seeded), self._count[link.index]
        return [
            streams.seed_for(f"worker/{link.index}/{count}/{self._steps}/{b}") for b in range(self.num_envs)
        ]

    def _circumstances(self, link: WorkerLink, fault: WorkerFault) -> Circumstances:
        column = fault.column
        if column is None and link.doing in ("step()", "reset()"):
            column = next((b for b in link.columns if self._shared.progress[b] != DONE), None)
        where = f"{link} of {self.env_id}"
        if column is not None and len(link.columns) > 1:
            where = f"environment {column} of {self.env_id}, in {link},"
        b = link.columns.start if column is None else column
        action = tree_map(lambda leaf: leaf[b].tolist(), self._shared.action) if self._steps else None
        return Circumstances(where, link.doing, action, self._seeds[b], int(self._steps - self._seeded_at[b]))


class _Guard:
    """Around every exchange: after an error in the middle of one, nobody knows what the workers will say."""

    def __init__(self, envs: WorkerEnvs) -> None:
        self.envs = envs

    def __enter__(self) -> None:
        if self.envs._broken:
            raise WorkerError(f"the workers of {self.envs.env_id} have ended; make the environment anew")

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.envs._broken = kind is not None
