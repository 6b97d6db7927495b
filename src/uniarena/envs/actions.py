"""ActionMap: from the policy's own action to the one that an environment takes.

The policy counts Discrete from 0 and gives Box in float32, unclipped. The map adds `start`, stretches [-1,
1] to the bounds where rescaling was asked for, clips to the bounds and takes the environment's dtype. It
works on NumPy arrays and torch tensors, single or with any leading dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from uniarena.batch import Tree
from uniarena.config import ConfigError
from uniarena.envs.spaces import (
    describe,
    leaf_spaces,
    map_space,
    refuse_unsupported,
    space_from_json,
    space_to_json,
)


class ActionMap:
    """Callable: the policy's action tree → the environment's.

    Args:
        space: the environment's action space (of one column).
        rescale: the policy acts in [-1, 1] on every Box leaf, which is stretched to the leaf's bounds.

    Attributes:
        env_space: the space given.
        policy_space: what the policy acts in: Discrete and MultiDiscrete from 0, Box in float32.
        rescale: as given.

    Raises:
        ConfigError: a space that no policy can act in (Text, Graph, Sequence, or one without entries).
        ValueError: `rescale` with infinite bounds.
    """

    def __init__(self, space: Space[Any], rescale: bool = False) -> None:
        refuse_unsupported(space, "action space")
        if not any(np.prod(leaf.shape or ()) for _, leaf in leaf_spaces(space)):
            raise ConfigError(
                f"the action space has nothing to choose: it is {describe(space)}",
                path="environment.id",
                hint="give it at least one action; Discrete(1) for an environment that only runs",
            )
        self.env_space = space
        self.rescale = rescale
        self.policy_space = map_space(self._policy_leaf, space)
        self._apply = _build(space, rescale)

    def __call__(self, action: Tree) -> Tree:
        """`[…, *shape]` in the policy's space → the same in the environment's space and dtype."""
        return self._apply(action)

    def to_json(self) -> dict[str, Any]:
        """Plain data for `from_json`."""
        return {"space": space_to_json(self.env_space), "rescale": self.rescale}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ActionMap:
        """The map that `to_json` wrote."""
        return cls(space_from_json(data["space"]), data["rescale"])

    def __repr__(self) -> str:
        return f"ActionMap({self.policy_space} → {self.env_space})"

    def _policy_leaf(self, space: Space[Any]) -> Space[Any]:
        if isinstance(space, spaces.Discrete):
            return spaces.Discrete(int(space.n))
        if isinstance(space, spaces.MultiDiscrete):
            return spaces.MultiDiscrete(space.nvec)
        if isinstance(space, spaces.Box):
            if self.rescale:
                return spaces.Box(-1.0, 1.0, space.shape, np.float32)
            low, high = _float_bounds(space, np.dtype(np.float32))
            return spaces.Box(low, high, space.shape, np.float32)
        return space


def _build(space: Space[Any], rescale: bool) -> Callable[[Tree], Tree]:
    if isinstance(space, spaces.Dict):
        members = {key: _build(child, rescale) for key, child in space.spaces.items()}
        return lambda action: {key: apply(action[key]) for key, apply in members.items()}
    if isinstance(space, spaces.Tuple):
        parts = tuple(_build(child, rescale) for child in space.spaces)
        return lambda action: tuple(apply(leaf) for apply, leaf in zip(parts, action, strict=True))
    if isinstance(space, spaces.Box):
        return _Bounds(space, rescale)
    start = getattr(space, "start", None)
    return _Shift(np.dtype(space.dtype), np.asarray(0 if start is None else start))


class _Shift:
    """Discrete, MultiDiscrete, MultiBinary: add `start`, take the dtype."""

    def __init__(self, dtype: np.dtype[Any], start: np.ndarray) -> None:
        self.dtype = dtype
        self.torch_dtype = _torch_dtype(dtype)
        self.start = start.astype(dtype) if start.any() else None
        self._on: dict[torch.device, Tensor] = {}

    def __call__(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            leaf = leaf.to(self.torch_dtype)
            if self.start is None:
                return leaf
            start = self._on.get(leaf.device)
            if start is None:
                start = self._on[leaf.device] = torch.as_tensor(self.start, device=leaf.device)
            return leaf + start
        leaf = np.asarray(leaf)
        if leaf.dtype != self.dtype:
            leaf = leaf.astype(self.dtype)
        return leaf if self.start is None else leaf + self.start


class _Bounds:
    """Box: stretch, clip, dtype; done in the environment's own precision, so that no bound is missed."""

    def __init__(self, space: spaces.Box, rescale: bool) -> None:
        self.dtype = np.dtype(space.dtype)
        self.integer = not np.issubdtype(self.dtype, np.floating)
        self.work = np.dtype(np.float64) if self.integer else self.dtype
        self.low, self.high = _float_bounds(space, self.work)
        loose = ~(np.isfinite(self.low) & np.isfinite(self.high))
        if rescale and loose.any():
            raise ValueError(
                f"cannot rescale actions to {space}: no finite bounds in dimension(s) "
                f"{np.flatnonzero(loose.ravel()).tolist()[:10]}; give finite bounds or do not rescale"
            )
        self.clip_low, self.clip_high = bool(np.isfinite(self.low).any()), bool(np.isfinite(self.high).any())
        self.half = (self.high - self.low) / 2 if rescale else None
        self.torch_dtype, self.torch_work = _torch_dtype(self.dtype), _torch_dtype(self.work)
        self._on: dict[torch.device, tuple[Tensor, Tensor, Tensor | None]] = {}

    def __call__(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return self._tensor(leaf)
        value = np.array(leaf, dtype=self.work)  # a copy: the environment may keep or change what it gets
        if self.half is not None:
            value += 1
            value *= self.half
            value += self.low
        if self.integer:
            np.rint(value, out=value)
        if self.clip_low:
            np.maximum(value, self.low, out=value)
        if self.clip_high:
            np.minimum(value, self.high, out=value)
        return value.astype(self.dtype) if self.integer else value

    def _tensor(self, leaf: Tensor) -> Tensor:
        bounds = self._on.get(leaf.device)
        if bounds is None:
            low, high = (torch.as_tensor(b, device=leaf.device) for b in (self.low, self.high))
            half = None if self.half is None else torch.as_tensor(self.half, device=leaf.device)
            bounds = self._on[leaf.device] = (low, high, half)
        low, high, half = bounds
        value = leaf.to(self.torch_work)
        if half is not None:
            value = (value + 1) * half + low
        if self.integer:
            value = value.round()
        if self.clip_low or self.clip_high:
            value = value.clamp(low, high)
        return value.to(self.torch_dtype)


def _float_bounds(space: spaces.Box, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore"):  # float64 bounds beyond float32 become infinite
        return space.low.astype(dtype), space.high.astype(dtype)


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
