"""Actor: everything a sampler needs to act, and nothing else of the agent."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Batch, Tree, tree_map
from uniarena.explorers.base import Explorer
from uniarena.policies.frozen import FrozenPolicy


class Actor:
    """A frozen policy (observation statistics included) and the explorer that acts with it.

    It acts with the live parameters and statistics; `copy.deepcopy(actor)` is a version that training leaves
    alone. Call it under `torch.inference_mode()` or `torch.no_grad()`; a policy with memory whose states are
    to enter a loss later needs the latter.
    """

    def __init__(self, policy: FrozenPolicy, explorer: Explorer) -> None:
        self.policy = policy
        self.explorer = explorer

    def noise(self, steps: int, columns: int, generator: torch.Generator) -> Tree | None:
        """The noise of a chunk of `steps` × `columns`, a tree of `[T, B, ...]`; None: draw step by step."""
        return self.explorer.chunk_noise(self.policy, steps, columns, generator)

    def act(
        self,
        obs: Tree,
        state: Tree | None = None,
        is_first: Tensor | None = None,
        noise: Tree | None = None,
        generator: torch.Generator | None = None,
        kept: list[Any] | None = None,
    ) -> tuple[Tree, Tree | None]:
        """The behaviour's action `[B, ...]` and the next state.

        Args:
            obs: raw observations, a tree of `[B, ...]` tensors.
            state: recurrent state `[B, ...]` before this row; None without memory.
            is_first: `[B]` bool, where the state is reset first.
            noise: this step's part of what `noise` drew; None: drawn from `generator`.
            kept: of `keeps`.
        """
        if kept is not None:
            return self.policy.sample_keeping(kept, obs, state, is_first, noise, generator)
        return self.explorer.chunk_act(self.policy, obs, state, is_first, noise, generator)

    def keeps(self) -> list[Any] | None:
        """A list for what the policy says of each row of the chunk that begins: `act` fills it, and `log_prob` then
        needs no pass of its own. None where log-probs do not follow from that.
        """
        own = {"act", "on_arrays", "log_prob"}.isdisjoint(vars(self))
        return [] if own and self.explorer.samples(self.policy) else None

    def on_arrays(
        self, obs: Tree, noise: Tree | None, kept: list[Any] | None = None
    ) -> Callable[[Any, int], Any] | None:
        """`act` for one chunk without memory, on arrays: (observations `[B, D]`, step t) → actions in new memory; None
        where it takes more than that.

        Args:
            obs: where the chunk's observations go, `[T + 1, B, D]`.
            noise: what `noise` drew for it.
            kept: of `keeps`.
        """
        one = isinstance(obs, Tensor) and obs.dim() == 3 and obs.dtype == torch.float32
        if "act" in vars(self) or not {"act", "chunk_act"}.isdisjoint(vars(self.explorer)):
            return None  # somebody gave this one another way to act
        if not one or not isinstance(noise, Tensor) or noise.device.type != "cpu":
            return None
        find, columns = getattr(self.policy, "on_arrays", None), obs.shape[1]
        if find is None:  # policies of other families
            return None
        pick = self.explorer.on_arrays(self.policy, columns, noise) if kept is None else find(columns, kept)
        drawn = noise.numpy()
        return None if pick is None else lambda row, t: pick(row, drawn[t])

    def pick(
        self,
        obs: Tree,
        state: Tree | None,
        is_first: Tensor,
        deterministic: bool,
        generator: torch.Generator | None,
    ) -> tuple[Tree, Tree | None]:
        """One action `[B, ...]` outside of a sampler: the policy's mode, or the behaviour's with noise of its own.
        A warm-up is the sampler's alone.
        """
        with torch.inference_mode():
            if deterministic:
                return self.mode(obs, state, is_first)
            if generator is None:
                raise ValueError("a stochastic action needs a generator; give one, or deterministic=True.")
            noise = self.explorer.noise(self.policy, 1, len(is_first), generator)
            row = None if noise is None else tree_map(lambda leaf: leaf[0], noise)
            return self.explorer.act(self.policy, obs, state, is_first, row, generator)

    def mode(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tree, Tree | None]:
        """The policy's deterministic action and the next state."""
        return self.policy.mode(obs, state, is_first)

    def log_prob(
        self, rows: Batch, state: Tree | None = None, kept: list[Any] | None = None
    ) -> Tensor | None:
        """`[T, B]` log-probs of the recorded actions under the behaviour; None where they have no density.

        Args:
            state: recurrent state `[B, ...]` before row 0, for a policy with memory.
            kept: what `act` kept of each of these rows; None: a pass over them is made.
        """
        if kept is not None:
            return self.policy.kept_log_prob(kept, rows)
        if state is None or self.policy.initial_state(1) is None:
            return self.explorer.behaviour_log_prob(self.policy, rows)
        return self.explorer.behaviour_log_prob(self.policy, rows, state)

    def initial_state(self, count: int) -> Tree | None:
        """The recurrent state of `count` fresh columns; None without memory."""
        return self.policy.initial_state(count)


@contextmanager
def untouched(actor: Any) -> Iterator[None]:
    """What an actor is asked inside is no part of a run: its explorer's own state is put back afterwards."""
    explorer = getattr(actor, "explorer", None)
    state = None if explorer is None else copy.deepcopy(explorer.state_dict())
    try:
        yield
    finally:
        if explorer is not None:
            explorer.load_state_dict(state)
