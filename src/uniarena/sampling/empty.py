"""The sampler of a run that learns from data: it has the environment's form, and steps none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from uniarena.batch import Batch, Rollout, Tree, tree_leaves, tree_map
from uniarena.envs.protocol import Env
from uniarena.envs.spaces import storage_space
from uniarena.envs.storage import allocate
from uniarena.explorers.actor import Actor
from uniarena.sampling.ahead import Ahead
from uniarena.seeding import Streams


class EmptySampler:
    """The contract of a sampler, with rollouts of no rows.

    Args:
        env: whose spaces and first observations it shows; it is closed with the sampler.
        streams: named seeds.
        records, device: as of `LocalSampler`; nothing is recorded.
    """

    ahead = 0
    native_state = True  # nothing runs that would have a state

    def __init__(
        self,
        env: Env,
        streams: Streams,
        records: Sequence[str] = (),
        device: torch.device | str | None = None,
    ) -> None:
        self.env, self.records = env, tuple(records)
        self.device = torch.device(env.device if device is None else device)
        self.last_obs: Tree = env.reset(seed=streams.seed_for("env"))

    @property
    def columns(self) -> int:
        """B: rows that one vector step would give."""
        return len(tree_leaves(self.last_obs)[0])

    def publish(self, actor: Actor, version: int) -> None:
        """Nobody acts."""

    def collect(self, steps: int = 0, boundary: bool = False, ahead: Ahead | None = None) -> Rollout:
        """A rollout `[0, B]`.

        Raises:
            ValueError: steps are wanted.
        """
        if steps:
            raise ValueError(f"collect({steps}): a run that learns from data steps no environment.")
        shape = (0, self.columns)
        obs, is_first = (
            tree_map(torch.as_tensor, self.last_obs),
            torch.ones(self.columns, dtype=torch.bool),
        )
        space = storage_space(self.env.action_map.policy_space)
        nothing = torch.zeros(shape, dtype=torch.bool)
        rows = Batch(
            shape,
            obs=tree_map(lambda leaf: leaf[None][:0], obs),
            action=tree_map(lambda leaf: torch.as_tensor(leaf)[None][:0], allocate(space, self.columns)),
            reward=torch.zeros(shape),
            terminated=nothing,
            truncated=nothing,
            is_first=nothing,
            valid=nothing,
        )
        start, last = Batch(shape[1:], is_first=is_first), Batch(shape[1:], obs=obs, is_first=is_first)
        return Rollout(rows, start, last).to(self.device)

    def set_attr(self, name: str, value: Any) -> None:
        """Set attribute `name` of every environment."""
        self.env.set_attr(name, value)

    def abandon(self) -> None:
        """No episode is running."""

    def close(self) -> None:
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        return {"env": {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to load."""
