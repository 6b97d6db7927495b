"""Uniformly random actions of a policy's space that respect masks; their noise is drawn for a whole chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from uniarena.batch import Tree
from uniarena.config import ConfigError
from uniarena.envs.spaces import describe


class UniformActions:
    """Uniform over a policy's space: Discrete, MultiDiscrete (masked or not), MultiBinary, Box with finite
    bounds, Dict and Tuple of them.

    Args:
        space: the actions as the policy gives them.
        where: config path of what asks for them, for messages.

    Raises:
        ConfigError: a Box without finite bounds, by dimension.
    """

    def __init__(self, space: Space[Any], where: str) -> None:
        self.space = space
        _check_bounds(space, where)

    def noise(self, steps: int, columns: int, generator: torch.Generator) -> Tree:
        """Numbers in [0, 1), a tree `[T, B, *leaf shape]` like the action."""
        return _noise(self.space, (steps, columns), generator)

    def act(self, noise: Tree, mask: Tensor | None = None) -> Tree:
        """The actions `[B, ...]` of one step's noise.

        Args:
            mask: `[B, M]` legal choices of a Discrete or MultiDiscrete space, side by side.
        """
        return _act(self.space, noise, mask)


def legal_choice(uniform: Tensor, count: int, mask: Tensor | None) -> Tensor:
    """Uniform `[B]` in [0, 1) → a choice `[B]` int64 among `count`, or among the true entries of `mask
    [B, count]`; a row of the mask without a true entry allows all.
    """
    if mask is None:
        return (uniform * count).long()
    legal = mask.bool()
    legal = legal | ~legal.any(-1, keepdim=True)
    order = legal.cumsum(-1)
    rank = (uniform * order[..., -1]).long()
    return (order <= rank.unsqueeze(-1)).sum(-1)


def _noise(space: Space[Any], lead: tuple[int, int], generator: torch.Generator) -> Tree:
    if isinstance(space, spaces.Dict):
        return {key: _noise(child, lead, generator) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_noise(child, lead, generator) for child in space.spaces)
    return torch.rand((*lead, *(space.shape or ())), generator=generator, device=generator.device)


def _act(space: Space[Any], noise: Tree, mask: Tensor | None) -> Tree:
    if isinstance(space, spaces.Dict):
        return {key: _act(child, noise[key], None) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_act(child, part, None) for child, part in zip(space.spaces, noise, strict=True))
    if isinstance(space, spaces.Discrete):
        return legal_choice(noise, int(space.n), mask)
    if isinstance(space, spaces.MultiDiscrete):
        return _multi_discrete(space, noise, mask)
    if isinstance(space, spaces.MultiBinary):
        return (noise < 0.5).to(torch.int8)
    assert isinstance(space, spaces.Box)
    low, high = (
        torch.as_tensor(bound, dtype=noise.dtype, device=noise.device) for bound in (space.low, space.high)
    )
    return torch.minimum(torch.lerp(low, high, noise), high)


def _multi_discrete(space: spaces.MultiDiscrete, noise: Tensor, mask: Tensor | None) -> Tensor:
    counts = space.nvec.reshape(-1).tolist()
    flat = noise.reshape(len(noise), -1)
    masks = [None] * len(counts) if mask is None else mask.split(counts, dim=-1)
    choices = [legal_choice(flat[:, k], n, own) for k, (n, own) in enumerate(zip(counts, masks, strict=True))]
    return torch.stack(choices, dim=-1).reshape(noise.shape)


def _check_bounds(space: Space[Any], where: str) -> None:
    inner = getattr(space, "spaces", None)
    if inner is not None:
        for child in inner.values() if isinstance(inner, dict) else inner:
            _check_bounds(child, where)
    if not isinstance(space, spaces.Box):
        return
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(space.high - space.low)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ConfigError(
            f"random actions need finite bounds; dimension {list(index)} of {describe(space)} has "
            f"[{space.low[index]}, {space.high[index]}].",
            path=where,
            hint=f"set {where}: 0, so that the policy itself acts from the first step, or give the environment's "
            "actions finite bounds.",
        )
