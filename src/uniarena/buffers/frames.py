"""Stacked observations kept once: a row stores its newest frame, and the stack is put together again when sampled.

An 84×84×4 stack then costs 84×84 bytes a step. A stack begins with its episode: frames from before it are the
first one repeated, or zeros, as the wrapper that stacked them says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space, spaces
from gymnasium.wrappers import FrameStackObservation

from uniarena.envs.inside import single_envs
from uniarena.envs.masks import MaskObs
from uniarena.envs.protocol import Env
from uniarena.envs.spaces import MASK, leaf_spaces
from uniarena.envs.wrappers.frame_stack import FrameStack


@dataclass(frozen=True)
class StackedLeaf:
    """A leaf of the observation that is a stack of frames, the newest last.

    Attributes:
        path: dotted path in the observation (`sensors.cam`); "" for an observation that is one array.
        frames: frames in a stack.
        axis: axis of one observation along which they are joined, counted from 0.
        zero_padding: zeros stand before an episode's first frame; False: the first frame repeated.
    """

    path: str
    frames: int
    axis: int
    zero_padding: bool = False


class Frames:
    """Takes stacks `[…, *shape]` apart into frames and puts frames together to stacks.

    Args:
        leaf: which leaf, and how it is stacked.
        index: its place among the leaves of the observation.
        shape: of one stack.
        dtype: of its numbers.

    Raises:
        ValueError: the axis cannot be cut into that many frames.
    """

    def __init__(self, leaf: StackedLeaf, index: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        if not 0 <= leaf.axis < len(shape) or shape[leaf.axis] % leaf.frames:
            raise ValueError(
                f"the observation {leaf.path!r} of shape {shape} is no stack of {leaf.frames} frames along axis "
                f"{leaf.axis}; give the axis along which its wrapper joins them."
            )
        self.leaf, self.index, self.shape, self.dtype = leaf, index, shape, dtype
        width = shape[leaf.axis] // leaf.frames
        self.frame_shape = (*shape[: leaf.axis], width, *shape[leaf.axis + 1 :])
        self._newest: Any = (..., slice(-width, None), *[slice(None)] * (len(shape) - leaf.axis - 1))

    @property
    def nbytes(self) -> int:
        """Bytes of one frame."""
        return int(np.prod(self.frame_shape, dtype=np.int64)) * self.dtype.itemsize

    def newest(self, stacks: np.ndarray) -> np.ndarray:
        """`[…, *shape]` → its newest frames `[…, *frame_shape]`, a view."""
        return stacks[self._newest]

    def assemble(self, frames: np.ndarray) -> np.ndarray:
        """`[N, frames, *frame_shape]`, oldest first → `[N, *shape]`, without a copy where the layout allows."""
        return np.moveaxis(frames, 1, self.leaf.axis + 1).reshape(len(frames), *self.shape)

    def steps_back(self, age: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Where the last `depth` frames up to each row lie, oldest first.

        Args:
            age: `[N]` rows since the start of the episode.
            depth: frames wanted.

        Returns:
            `[N, depth]` steps back from each row, never beyond its episode's first, and `[N, depth]` where zeros stand
            instead (None: nowhere).
        """
        back = np.arange(depth - 1, -1, -1)
        blank = back > age[:, None] if self.leaf.zero_padding else None
        return np.minimum(back, age[:, None]), blank


def find_stacks(env: Env) -> tuple[StackedLeaf, ...]:
    """The stacked leaves of an environment's observations: by our `frame_stack` wrapper, or by gymnasium's
    `FrameStackObservation` as the outermost wrapper of every single environment.

    A leaf that a later wrapper changed in shape is left out. Replay buffers compare the first rows that they store
    with what they would rebuild, so a later change of the values does not pass unseen either.
    """
    final = dict(leaf_spaces(env.observation_space))
    layer: Any = env
    while hasattr(layer, "env"):
        if isinstance(layer, FrameStack) and layer.cfg.n_frames > 1:
            found = _of_wrapper(layer)
            return tuple(leaf for leaf, space in found if _same(final.get(leaf.path), space))
        layer = layer.env
    singles, made = single_envs(env)
    stacks = [_of_gymnasium(one, final) for one in singles]
    if made:
        singles[0].close()
    return stacks[0] if stacks and all(each == stacks[0] for each in stacks) else ()


def _of_wrapper(layer: FrameStack) -> list[tuple[StackedLeaf, Space[Any]]]:
    inner, found = dict(leaf_spaces(layer.env.observation_space)), []
    cfg = layer.cfg
    for path, space in leaf_spaces(layer.observation_space):
        before, after = inner[path].shape, space.shape
        if before is None or after is None or before == after:
            continue
        axis = (
            (cfg.axis or 0) % len(after)
            if cfg.new_axis
            else next(k for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
        )
        found.append((StackedLeaf(path, cfg.n_frames, axis, cfg.padding == "zero"), space))
    return found


def _of_gymnasium(env: gym.Env[Any, Any], final: dict[str, Space[Any]]) -> tuple[StackedLeaf, ...]:
    """Of one base environment; wrappers around the stacking one may change anything but its observations."""
    layer: Any = env
    while isinstance(layer, gym.Wrapper) and not isinstance(layer, FrameStackObservation):
        changes = (
            isinstance(layer, gym.ObservationWrapper)
            or layer.observation_space != layer.env.observation_space
        )
        if changes and not isinstance(layer, MaskObs):
            return ()
        layer = layer.env
    if not isinstance(layer, FrameStackObservation) or layer.padding_type not in ("reset", "zero"):
        return ()
    leaves = leaf_spaces(layer.observation_space)
    masked = (
        len(leaves) == 1 and not leaves[0][0] and MASK in final
    )  # `[obs]` became `{"obs": obs, "action_mask": …}`
    found = []
    for path, space in leaves:
        path = "obs" if masked else path
        if isinstance(space, spaces.Box) and layer.stack_size > 1 and _same(final.get(path), space):
            found.append(StackedLeaf(path, layer.stack_size, 0, layer.padding_type == "zero"))
    return tuple(found)


def _same(one: Space[Any] | None, other: Space[Any]) -> bool:
    return one is not None and one.shape == other.shape
