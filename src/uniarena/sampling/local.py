"""In-process sampling: step the environment with the published actor into preallocated [T, B] memory.

Per vector step only the action is computed; rows are written through NumPy views of the torch storage (a tensor
environment writes tensors on its device). Noise is drawn once per chunk, and log-probs are annotated at its end: at
once from what the policy said of each row, or in one pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout, Tree, tree_leaves, tree_map
from uniarena.envs.protocol import Env, Step
from uniarena.explorers.actor import Actor, untouched
from uniarena.sampling.ahead import Ahead
from uniarena.sampling.chunk import Allocate, Chunk, new_memory
from uniarena.seeding import Streams, preserved_globals, seed_globals


class LocalSampler:
    """Steps `env` with the published actor.

    Args:
        env: the batched environment; reset here, with a seed from the stream `env`.
        streams: named generators; action noise comes from `act`.
        records: what the learner must know of the behaviour policy: `log_prob`; `state`, the recurrent state before
            every row. Before the first row, after the last and at ends it is there wherever there is one; tensor
            environments, which name no ends, always give that of every row.
        device: where the actor computes and rollouts are handed on; None: where the environment is.
        allocate: gives zeroed memory of a shape, dtype and device for chunks.
        buffers: chunks whose memory stays valid: 1 until the next `collect`, 2 until the one after.

    Attributes:
        ahead: chunks that are under way when one is handed on.
        progress: `[1]` int64, rows written so far: whoever shares this memory sees that it goes on.
    """

    ahead = 0

    def __init__(
        self,
        env: Env,
        streams: Streams,
        records: Sequence[str] = (),
        device: torch.device | str | None = None,
        allocate: Allocate = new_memory,
        buffers: int = 1,
    ) -> None:
        self.env, self.streams, self.records = env, streams, tuple(records)
        self.device = _exact(env.device if device is None else device)
        self.crosses = self.device != _exact(env.device)  # every row goes there and every action comes back
        self.generator = streams.torch("act", device=self.device)
        self._obs = tree_map(_owned, env.reset(seed=streams.seed_for("env")))
        self._is_first: Any = torch.ones(len(tree_leaves(self._obs)[0]), dtype=torch.bool, device=env.device)
        self._state: Tree | None = None
        self._actor: Actor | None = None
        self._version = 0
        self._boundaries = 0
        self._given_up = False
        self._attributes: dict[str, Any] = {}  # that were set, by name; and those of the last declared reset
        self._reset_with: dict[str, Any] = {}
        self._allocate, self._turn = allocate, 0
        self._chunks: list[Chunk | None] = [None] * buffers
        self.progress: Any = np.zeros(1, np.int64)

    @property
    def columns(self) -> int:
        """B: rows that one vector step gives."""
        count: int = self._is_first.shape[0]  # `len` of a tensor takes a way through Python
        return count

    @property
    def last_obs(self) -> Tree:
        """The observations `[B, …]` that the next chunk starts with."""
        return self._obs

    def publish(self, actor: Actor, version: int) -> None:
        """Act with `actor` from the next chunk on. In this process it acts on the live parameters, without a copy."""
        if self._state is None and actor is not self._actor:
            self._state = self._there(actor.initial_state(self.columns))
        self._actor, self._version = actor, version

    def collect(self, steps: int, boundary: bool = False, ahead: Ahead | None = None) -> Rollout:
        """At least `steps` rows: ⌈steps / B⌉ vector steps of B columns. Its memory is valid until the next call.

        Args:
            steps: vector rows × B wanted.
            boundary: end the chunk by a declared reset of every column: its last row is truncated and bootstrapped from
                the true next observation. Taken where a checkpoint is due and the environment cannot save its state.
            ahead: of the chunk to come, which nobody begins here.

        Raises:
            RuntimeError: no actor was published.
        """
        actor = self._actor
        if actor is None:
            raise RuntimeError("collect() before publish(): publish an actor first.")
        if self._given_up:
            self._given_up = False
            self._reset()
        rows = -(-steps // self.columns)
        chunk = self._prepare(rows, actor)
        with torch.no_grad():
            noise = actor.noise(rows, self.columns, self.generator)
        before = self._state
        kept = actor.keeps() if "log_prob" in self.records else None
        ended, states, info, lost = self._step(chunk, actor, noise, kept)
        self._keep_last(chunk)
        batch = self._rows(chunk, states, info)
        after = self._state
        cut = self._declare_boundary(chunk, ended, after) if boundary else None
        rollout = self._rollout(batch, chunk, ended, (before, after), cut)
        if lost:
            rollout = replace(rollout, lost=Batch.cat(lost))
        if self.crosses:
            rollout = rollout.to(self.device)
        if "log_prob" in self.records:
            with torch.no_grad():
                log_prob = actor.log_prob(rollout.rows, rollout.start.get("state"), kept)
            rollout = replace(rollout, rows=rollout.rows.replace(log_prob=log_prob))
        return rollout

    def _prepare(self, rows: int, actor: Actor) -> Chunk:
        """The chunk's memory with row 0 in place; the same memory as before while the number of rows stays."""
        self._turn = (self._turn + 1) % len(self._chunks)
        chunk = self._chunks[self._turn]
        if chunk is None or chunk.rows != rows:
            memory = partial(self._allocate, device=self.env.device)
            chunk = Chunk(rows, self._obs, self._probe_action(actor), self.env.tensor, memory)
            self._chunks[self._turn] = chunk
        for write, leaf in zip(chunk.write_obs, tree_leaves(self._obs), strict=True):
            write[0] = leaf
        chunk.scalars[-1][0] = self._is_first
        chunk.write_valid[:] = True
        return chunk

    def _probe_action(self, actor: Actor) -> Tree:
        """An action of the right structure, from a generator of its own so that the acting stream does not move."""
        generator = torch.Generator(device=self.device)
        generator.manual_seed(0)
        obs = tree_map(lambda leaf: _float32(torch.as_tensor(leaf, device=self.device)), self._obs)
        first = self._is_first.to(self.device)
        # a user's module may draw from the global streams, and an explorer may count its steps
        with torch.no_grad(), preserved_globals(), untouched(actor):
            noise = actor.noise(1, self.columns, generator)
            row = None if noise is None else tree_map(lambda leaf: leaf[0], noise)
            return actor.act(obs, self._state, first, row, generator)[0]

    def _step(
        self, chunk: Chunk, actor: Actor, noise: Tree | None, kept: list[Any] | None
    ) -> tuple[list[Any], list[Any], dict[str, Any], list[Batch]]:
        """Fill every row → ends (t, Final, state), states before rows where asked for, user figures, what was lost."""
        env, generator, tensor = self.env, self.generator, chunk.tensor
        act = actor.act if kept is None else partial(actor.act, kept=kept)
        act = self._across(act) if self.crosses else act
        reward, terminated, truncated, is_first = chunk.scalars
        bare_obs, single_action = isinstance(chunk.obs, Tensor), isinstance(chunk.action, Tensor)
        write_obs, write_action = chunk.write_obs[0], chunk.write_action[0]
        state, ended, states, info = self._state, [], [], {}  # type: ignore[var-annotated]
        lost: list[Batch] = []
        record = state is not None and (tensor or "state" in self.records)
        progress = self.progress
        find = None if tensor or self.crosses or state is not None else getattr(actor, "on_arrays", None)
        short = find and find(chunk.obs, noise, kept)
        # around the policy alone: an environment may have networks of its own to train
        quiet: Any = None if short else torch.no_grad()
        draws = [None] * chunk.rows if noise is None or short else _by_row(noise, chunk.rows)
        for t in range(chunk.rows):
            if record:
                states.append(state)
            if short:
                action = short(write_obs[t], t)
            else:
                with quiet:
                    action, state = act(chunk.obs_row[t], state, chunk.is_first_row[t], draws[t], generator)
            if single_action:
                if not (tensor or short):
                    action = action.numpy()
                write_action[t] = action
            else:
                action = self._write_tree(chunk.write_action, t, action, tensor)
            step = env.step(action)
            if len(chunk.write_obs) == 1:
                write_obs[t + 1] = step.obs if bare_obs else tree_leaves(step.obs)[0]
            else:
                for write, leaf in zip(chunk.write_obs, tree_leaves(step.obs), strict=True):
                    write[t + 1] = leaf
            reward[t] = step.reward
            terminated[t] = step.terminated
            truncated[t] = step.truncated
            is_first[t + 1] = step.is_first
            progress[0] += 1
            if step.valid is not None or step.final is not None or step.next_obs is not None or step.info:
                self._rare(chunk, t, step, state, ended, info)
                if step.lost is not None:
                    b = torch.as_tensor(step.lost).nonzero().squeeze(1)
                    lost.append(Batch((len(b),), t=torch.full_like(b, t), b=b))
        self._state = state
        return ended, states, info, lost

    @staticmethod
    def _write_tree(writers: list[Any], t: int, action: Tree, tensor: bool) -> Tree:
        if not tensor:
            action = tree_map(lambda leaf: leaf.numpy(), action)
        for write, leaf in zip(writers, tree_leaves(action), strict=True):
            write[t] = leaf
        return action

    @staticmethod
    def _rare(chunk: Chunk, t: int, step: Step, state: Tree, ended: list[Any], info: dict[str, Any]) -> None:
        """What most steps do not have: ends, reset-only rows, dense successors, user figures."""
        if step.valid is not None:
            chunk.write_valid[t] = step.valid
        if step.final is not None:
            ended.append((t, step.final, state))
        if step.next_obs is not None:
            for write, leaf in zip(tree_leaves(chunk.dense()), tree_leaves(step.next_obs), strict=True):
                write[t] = leaf
        for name, value in step.info.items():
            chunk.figure(info, name)[t] = value

    def _across(self, there: Callable[..., Any]) -> Callable[..., tuple[Tree, Tree | None]]:
        """An actor's `act` where it computes on another device than the environment is on."""
        home = self.env.device

        def act(obs: Tree, state: Tree, is_first: Tensor, *rest: Any) -> tuple[Tree, Tree | None]:
            action, state = there(self._there(obs), state, is_first.to(self.device), *rest)
            return tree_map(lambda leaf: leaf.to(home), action), state

        return act

    def _there(self, tree: Tree | None) -> Tree | None:
        """A tree of tensors on the actor's device."""
        return None if tree is None else tree_map(lambda leaf: leaf.to(self.device), tree)

    def _keep_last(self, chunk: Chunk) -> None:
        self._obs = tree_map(lambda leaf: _owned(leaf[-1]), chunk.obs_views)
        first = chunk.scalars[-1][-1]
        self._is_first = first.clone() if chunk.tensor else torch.from_numpy(first.copy())

    def _rows(self, chunk: Chunk, states: list[Any], info: dict[str, Any]) -> Batch:
        fields = dict(chunk.fields)
        if chunk.next_obs is not None:
            fields["next_obs"] = chunk.next_obs
        if info:
            fields["info"] = info
        if states:
            fields["state"] = tree_map(lambda *leaves: torch.stack(leaves), *states)
        return Batch._trusted((chunk.rows, self.columns), fields)

    def _declare_boundary(self, chunk: Chunk, ended: list[Any], state: Tree) -> Tensor:
        """Cut every running episode after the last row and reset all columns → which ones were cut, `[B]`."""
        running = ~(chunk.terminated[-1] | chunk.truncated[-1]) & chunk.valid[-1]
        index = running.nonzero().squeeze(1)
        obs = tree_map(lambda leaf: torch.as_tensor(leaf)[index], self._obs)
        ended.append((chunk.rows - 1, (index, obs), state))
        chunk.truncated[-1] |= running
        self._boundaries += 1
        self._reset()
        return running

    def _reset(self) -> None:
        """Begin all columns with a seed that a resumed run draws again, also for code that uses global streams."""
        self._reset_with = dict(self._attributes)
        seed = self.streams.seed_for(f"env/boundary/{self._boundaries}")
        with preserved_globals():
            seed_globals(seed)
            self._obs = tree_map(_owned, self.env.reset(seed=seed))
        self._is_first = torch.ones_like(self._is_first)

    def _rollout(
        self, rows: Batch, chunk: Chunk, ended: list[Any], states: tuple[Tree, Tree], cut: Tensor | None
    ) -> Rollout:
        columns, recurrent = (self.columns,), states[0] is not None
        start: dict[str, Tree] = {"is_first": chunk.is_first_row[0]}
        last: dict[str, Tree] = {"obs": tree_map(_as_tensor, self._obs), "is_first": self._is_first}
        if recurrent:
            start["state"], last["state"] = states
        if cut is not None:
            last["cut"] = cut
        ends = self._ended(ended, recurrent) if ended else None
        trusted = Batch._trusted
        return Rollout(rows, trusted(columns, start), trusted(columns, last), ends, self.env.has_final_obs)

    def _ended(self, ended: list[Any], recurrent: bool) -> Batch:
        """Ends `(t, Final, state)` as one batch; joined at once, for short episodes have one every other row."""
        columns = [index for _, (index, _), _ in ended]
        where = np.repeat([t for t, *_ in ended], [len(index) for index in columns])
        joined = tree_map(_joined, *[obs for _, (_, obs), _ in ended])
        fields = {"t": torch.from_numpy(where), "b": _joined(*columns), "obs": tree_map(_float32, joined)}
        if recurrent:
            states = [
                tree_map(lambda leaf, own=own: leaf[own], state)
                for own, (*_, state) in zip(columns, ended, strict=True)
            ]
            fields["state"] = tree_map(_joined, *states)
        return Batch((len(where),), fields).to(self.env.device)

    def set_attr(self, name: str, value: Any) -> None:
        """Set attribute `name` of every environment, plain data, from its next step on; a resumed run sets it again."""
        self.env.set_attr(name, value)
        self._attributes[name] = value

    def abandon(self) -> None:
        """Give up all running episodes: the next chunk begins with new ones, here or where the state is loaded."""
        self._boundaries += 1
        self._given_up, self._state = True, None

    def close(self) -> None:
        self.env.close()

    @property
    def native_state(self) -> bool:
        """Whether the environment can save its own state."""
        return self.env.state_dict() is not None

    def state_dict(self) -> dict[str, Any]:
        return {
            "env": None if self._given_up else self.env.state_dict(),
            "obs": self._obs,
            "is_first": self._is_first,
            "state": self._state,
            "boundaries": self._boundaries,
            "attributes": dict(self._attributes),
            "reset_with": dict(self._reset_with),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the state was taken; without native state, as after the last declared boundary.

        Raises:
            ValueError: it holds chunks that were under way.
        """
        if state.get("chunks"):
            raise ValueError("the state is that of pipelined sampling: set sampling.type to pipelined")
        self._boundaries, self._given_up = state["boundaries"], False
        self._state = self._there(state["state"])
        if state["env"] is None:
            self._set_all(state.get("reset_with", {}))  # checkpoints of before tell of no attributes
            self._reset()
            self._set_all(state.get("attributes", {}))
            return
        self._set_all(state.get("attributes", {}))
        self.env.load_state_dict(state["env"])
        home = self.env.device
        self._obs = tree_map(lambda leaf: leaf.to(home) if isinstance(leaf, Tensor) else leaf, state["obs"])
        self._is_first = torch.as_tensor(state["is_first"]).to(home)

    def _set_all(self, attributes: dict[str, Any]) -> None:
        for name, value in attributes.items():
            self.set_attr(name, value)


def _owned(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else np.array(leaf)


def _as_tensor(leaf: Any) -> Tensor:
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else torch.as_tensor(leaf)


def _exact(device: torch.device | str) -> torch.device:
    """With its index: `cuda` and `cuda:0` may be one device."""
    return torch.empty(0, device=device).device


def _float32(leaf: Tensor) -> Tensor:
    return leaf.float() if leaf.dtype == torch.float64 else leaf


def _joined(*leaves: Any) -> Tensor:
    """What ends brought, one after the other; arrays as arrays, of which a call takes a fraction of the time."""
    if all(isinstance(leaf, np.ndarray) for leaf in leaves):
        return torch.from_numpy(np.concatenate(leaves))
    return torch.cat([torch.as_tensor(leaf) for leaf in leaves])


def _by_row(noise: Tree, rows: int) -> list[Tree]:
    if isinstance(noise, Tensor):
        return list(noise.unbind(0))
    return [tree_map(lambda leaf, t=t: leaf[t], noise) for t in range(rows)]
