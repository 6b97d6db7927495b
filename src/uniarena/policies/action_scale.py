"""Box actions in units of their bounds: what critics see, and what noise is measured in."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from uniarena.batch import Tree
from uniarena.config import ConfigError
from uniarena.envs.spaces import describe
from uniarena.nets.leaves import Keys, dotted, leaf_at, leaves


class ActionScale(nn.Module):
    """An action tree of Boxes `[N, …]` ↔ one flat row `[N, D]`, every bounded number scaled to [−1, 1].

    Each dimension has its own bounds; one without finite bounds is left in its own units.

    Args:
        space: a Box, or Dict and Tuple of them, as the policy acts in.
        who: whoever needs it, for messages.
        where: its config path.

    Attributes:
        dims: D.
        log_half: Σ log of the half widths: what a log-density gains when the action is scaled.

    Raises:
        ConfigError: another kind of action, or a dimension that leaves no choice (low = high).
    """

    middle: Tensor
    half_width: Tensor
    limit: Tensor

    def __init__(self, space: Space[Any], who: str = "this learner", where: str = "learner.type") -> None:
        super().__init__()
        self.parts: list[tuple[Keys, tuple[int, ...]]] = []
        low, high = [], []
        for keys, leaf in leaves(space):
            if not isinstance(leaf, spaces.Box):
                raise ConfigError(
                    f"{who} is for continuous actions; the action space is {describe(space)}.",
                    path=where,
                    hint="use one for discrete actions; ppo and a2c, which explore by themselves, take every space, "
                    "and from data bc does.",
                )
            self.parts.append((keys, tuple(leaf.shape)))
            low.append(leaf.low.reshape(-1).astype(np.float32))
            high.append(leaf.high.reshape(-1).astype(np.float32))
        lows, highs = np.concatenate(low), np.concatenate(high)
        with np.errstate(over="ignore", invalid="ignore"):
            bounded = np.isfinite(highs - lows)
            half = np.where(bounded, (highs - lows) / 2, 1.0)
            middle = np.where(bounded, (highs + lows) / 2, 0.0)
        if not (half > 0).all():
            raise ConfigError(
                f"action dimension {self._name(space, int(np.flatnonzero(half <= 0)[0]))} has equal bounds: "
                "there is nothing to choose.",
                path="environment.id",
                hint="leave that dimension out of the action space.",
            )
        self.dims = len(half)
        self.unbounded = [int(i) for i in np.flatnonzero(~bounded)]
        self.identity = bool((half == 1.0).all() and (middle == 0.0).all())
        self.log_half = float(np.log(half).sum())
        self.register_buffer("middle", torch.as_tensor(middle, dtype=torch.float32), persistent=False)
        self.register_buffer("half_width", torch.as_tensor(half, dtype=torch.float32), persistent=False)
        limit = torch.as_tensor(np.where(bounded, 1.0, np.inf), dtype=torch.float32)
        self.register_buffer("limit", limit, persistent=False)
        self.space = space

    def forward(self, action: Tree) -> Tensor:
        """The action as the policy gives it → `[N, D]`."""
        flat = [leaf.reshape(len(leaf), -1) for leaf in (leaf_at(action, keys) for keys, _ in self.parts)]
        row = flat[0] if len(flat) == 1 else torch.cat(flat, dim=-1)
        if self.middle.device != row.device:  # an explorer's is no part of a model that was moved
            self.to(row.device)
        return row if self.identity else (row - self.middle) / self.half_width

    def inverse(self, row: Tensor) -> Tree:
        """`[N, D]` → the action as the policy gives it; within the bounds where the row is in [−1, 1]."""
        flat = row if self.identity else torch.addcmul(self.middle, self.half_width, row)
        if self.parts == [((), (self.dims,))]:
            return flat
        split = flat.split([int(np.prod(shape)) for _, shape in self.parts], dim=-1)
        found = {keys: x.reshape(-1, *shape) for (keys, shape), x in zip(self.parts, split, strict=True)}
        return _tree(self.space, found, ())

    def perturb(self, action: Tree, noise: Tensor) -> Tree:
        """`noise [N, D]`, in half widths of the bounds, added to an action and cut to the bounds."""
        row = self(action) + noise
        return self.inverse(torch.clamp(row, -self.limit, self.limit))

    def require_bounds(self, who: str) -> None:
        """Refuse a space with an unbounded dimension.

        Raises:
            ConfigError: there is one; it is named, with the way out.
        """
        if not self.unbounded:
            return
        first, more = self.unbounded[0], len(self.unbounded) - 1
        raise ConfigError(
            f"{who} needs finite bounds in every action dimension; dimension {self._name(self.space, first)}"
            f"{f' (and {more} more)' if more else ''} of {describe(self.space)} has none.",
            path="learner.type",
            hint="give the environment finite action bounds (a wrapper that declares and rescales them), or use "
            "ppo, or sac with agent.policy.distribution: gaussian and agent.explorer.warmup: 0. Data without an "
            "environment: say them with data.action_bounds: [low, high], or use iql, awac or bc.",
        )

    @staticmethod
    def _name(space: Space[Any], index: int) -> str:
        """How messages call the flat dimension `index`."""
        for keys, leaf in leaves(space):
            size = int(np.prod(leaf.shape or ()))
            if index < size:
                place = [int(i) for i in np.unravel_index(index, leaf.shape or (1,))]
                inside = str(place[0]) if len(place) == 1 else str(place)
                return f"{dotted(keys)} {inside}".strip()
            index -= size
        raise IndexError(index)


def _tree(space: Space[Any], found: dict[Keys, Tensor], keys: Keys) -> Tree:
    if isinstance(space, spaces.Dict):
        return {key: _tree(child, found, (*keys, key)) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_tree(child, found, (*keys, index)) for index, child in enumerate(space.spaces))
    return found[keys]
