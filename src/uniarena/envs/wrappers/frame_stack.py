"""Frame stacking: the last n observations as one, along a declared axis.

Final observations are stacked like all others: the n − 1 frames before the end, then the true last one.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from gymnasium import Space, spaces

from uniarena.batch import Tree
from uniarena.config import ConfigError, config
from uniarena.envs.protocol import Array, Env, Step
from uniarena.envs.wrappers.base import EnvWrapper
from uniarena.envs.wrappers.leaves import choose_leaves, get_leaf, replace_leaves, set_leaves

IMAGE_CHANNELS = (1, 2, 3, 4)


@config
class FrameStackConfig:
    """Settings of `FrameStack`."""

    n_frames: int = 4  # frames in a stack, the newest last
    axis: int | None = (
        None  # axis of one observation; None: the only axis of a vector, the channels of an image
    )
    new_axis: bool = False  # stack along a new axis at this position instead of joining along an existing one
    keys: tuple[str, ...] | None = None  # leaves to stack, e.g. ["sensors.cam"]; None: every Box
    padding: Literal["repeat", "zero"] = "repeat"  # what stands before the first frame of an episode

    def __post_init__(self) -> None:
        if self.n_frames < 1:
            raise ConfigError(f"n_frames is {self.n_frames}; expected 1 or more", path="n_frames")


class FrameStack(EnvWrapper):
    """Gives the last `n_frames` observations joined along one axis.

    A Box of shape `[s0, …, sk]` becomes `[…, n·s_axis, …]`, or `[…, n, …]` with `new_axis`. Other leaves
    pass.

    Raises:
        ConfigError: no leaf can be stacked, or the axis is not declared where it could be one of several.
    """

    Config = FrameStackConfig
    where = "environment.wrappers.frame_stack"

    def __init__(self, env: Env, cfg: FrameStackConfig) -> None:
        super().__init__(env, cfg)
        leaves = choose_leaves(
            env.observation_space,
            cfg.keys,
            lambda leaf: isinstance(leaf, spaces.Box) and leaf.shape != (),
            self.where,
            "a Box of at least one axis",
        )
        self._stacks = {path: _Stack(self, path, leaf) for path, leaf in leaves.items()}
        self.observation_space = replace_leaves(
            env.observation_space, {path: stack.space for path, stack in self._stacks.items()}
        )

    def _reset(self, obs: Tree, seed: int | None, mask: Any | None) -> Tree:
        return set_leaves(
            obs, {path: stack.fill(get_leaf(obs, path), mask) for path, stack in self._stacks.items()}
        )

    def _step(self, step: Step, action: Tree) -> Step:
        obs, final, dense = {}, {}, {}
        for path, stack in self._stacks.items():
            if step.final is not None:
                final[path] = stack.peek(get_leaf(step.final.obs, path), step.final.index)
            if step.next_obs is not None:
                dense[path] = stack.peek_all(get_leaf(step.next_obs, path))
            obs[path] = stack.push(get_leaf(step.obs, path), step.is_first)
        return step._replace(
            obs=set_leaves(step.obs, obs),
            final=None if step.final is None else step.final._replace(obs=set_leaves(step.final.obs, final)),
            next_obs=None if step.next_obs is None else set_leaves(step.next_obs, dense),
        )

    def _state(self) -> dict[str, Any]:
        return {"stacks": {path: stack.copy() for path, stack in self._stacks.items()}}

    def _load_state(self, state: dict[str, Any]) -> None:
        for path, stack in self._stacks.items():
            stack.load(state["stacks"][path])


class _Stack:
    """The frames of one leaf, `[B, …]`, in two buffers that take turns, so that pushing allocates nothing."""

    def __init__(self, wrapper: FrameStack, path: str, leaf: Space[Any]) -> None:
        assert isinstance(leaf, spaces.Box)
        cfg: FrameStackConfig = wrapper.cfg
        axis = _axis(leaf, cfg, path, wrapper.where)
        one = (lambda x: np.expand_dims(x, axis)) if cfg.new_axis else (lambda x: x)
        low, high = one(leaf.low), one(leaf.high)
        n = cfg.n_frames
        if cfg.padding == "zero":
            low, high = np.minimum(low, 0), np.maximum(high, 0)
        self.space = spaces.Box(
            np.concatenate([low] * n, axis).astype(leaf.dtype),
            np.concatenate([high] * n, axis).astype(leaf.dtype),
            dtype=leaf.dtype.type,
        )
        self.axis, self.n, self.width = axis + 1, n, low.shape[axis]
        self.new_axis, self.zero = cfg.new_axis, cfg.padding == "zero"
        shape = (wrapper.num_envs, *self.space.shape)
        self.buffers: list[Any] = [
            _empty(shape, leaf.dtype, wrapper.tensor, wrapper.device) for _ in range(3)
        ]

    def fill(self, frames: Array, mask: Any | None) -> Array:
        """Begin the stacks of the columns in `mask` `[B]` (None: all) with their first frame."""
        stack, frames = self.buffers[0], self._as_frames(frames)
        for k in range(self.n):
            slot = self._slot(stack, k)
            value = frames if k == self.n - 1 or not self.zero else 0 * frames
            if mask is None:
                slot[...] = value
            else:
                slot[mask] = value[mask]
        return stack

    def push(self, frames: Any, is_first: Any) -> Array:
        """Append a frame; columns with `is_first` `[B]` begin anew."""
        frames = self._as_frames(frames)
        old, new = self.buffers[0], self.buffers[1]
        self._join(old, frames, new)
        self.buffers[0], self.buffers[1] = new, old
        if isinstance(new, torch.Tensor):
            first = is_first.reshape(
                -1, *[1] * (new.ndim - 1)
            )  # no test for any(): it would wait for the device
            for k in range(self.n - 1):
                slot = self._slot(new, k)
                if self.zero:
                    slot.masked_fill_(first, 0)
                else:
                    torch.where(first, frames, slot, out=slot)
        elif is_first.any():
            columns = np.flatnonzero(is_first)
            for k in range(self.n - 1):
                self._slot(new, k)[columns] = 0 if self.zero else frames[columns]
        return new

    def peek(self, frames: Array, index: Array) -> Array:
        """What pushing `frames` `[K, …]` to the columns `index` `[K]` would give; changes nothing."""
        return self._join(self.buffers[0][index], self._as_frames(frames), None)

    def peek_all(self, frames: Array) -> Array:
        """`peek` for all columns, in a buffer that is valid until the next step."""
        return self._join(self.buffers[0], self._as_frames(frames), self.buffers[2])

    def copy(self) -> Array:
        stack = self.buffers[0]
        return stack.clone() if isinstance(stack, torch.Tensor) else stack.copy()

    def load(self, saved: Any) -> None:
        self.buffers[0][...] = saved

    def _as_frames(self, frames: Array) -> Array:
        if not self.new_axis:
            return frames
        return (
            frames.unsqueeze(self.axis)
            if isinstance(frames, torch.Tensor)
            else np.expand_dims(frames, self.axis)
        )

    def _slot(self, stack: Any, k: int) -> Any:
        return stack[(slice(None),) * self.axis + (slice(k * self.width, (k + 1) * self.width),)]

    def _join(self, old: Any, frames: Any, out: Any) -> Any:
        kept = old[(slice(None),) * self.axis + (slice(self.width, None),)]
        if isinstance(frames, torch.Tensor):
            return torch.cat((kept, frames), self.axis, out=out)
        return np.concatenate((kept, frames), self.axis, out=out)


def _empty(shape: tuple[int, ...], dtype: Any, tensor: bool, device: torch.device) -> Array:
    array = np.zeros(shape, dtype)
    return torch.from_numpy(array).to(device) if tensor else array


def _axis(leaf: spaces.Box, cfg: FrameStackConfig, path: str, where: str) -> int:
    """The axis to stack along, counted from 0, of one observation (or of the result, with `new_axis`)."""
    rank = len(leaf.shape) + cfg.new_axis
    name = f"the observation {path!r}" if path else "the observation"
    if cfg.axis is not None:
        if not -rank <= cfg.axis < rank:
            raise ConfigError(
                f"axis is {cfg.axis}, but {name} has shape {leaf.shape}; expected {-rank} … {rank - 1}",
                path=f"{where}.axis",
            )
        return cfg.axis % rank
    if cfg.new_axis or rank == 1:
        return 0
    channels = [axis for axis in (0, rank - 1) if leaf.shape[axis] in IMAGE_CHANNELS]
    if rank == 3 and leaf.dtype == np.uint8 and len(channels) == 1:
        return channels[0]
    raise ConfigError(
        f"{name} has shape {leaf.shape}, and more than one axis could be meant",
        path=f"{where}.axis",
        hint="set `axis` (0: first, -1: last), or `new_axis: true` for an axis of its own",
    )
