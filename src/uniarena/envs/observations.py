"""Observations from outside, as the user holds them, checked against the space and brought into network form."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from uniarena.batch import Tree, tree_map, tree_paths
from uniarena.envs.spaces import MASK, describe, leaf_spaces, outside


def as_batch(space: Space[Any], obs: Tree, device: torch.device) -> tuple[Tree, bool]:
    """An observation of `space`, or a batch of them, as network input.

    Returns:
        tensors `[N, …]` on `device` (N = 1 for a single one), and whether it was a batch.

    Raises:
        ValueError: it does not fit the space, holds NaN or infinities, or a number that a Discrete part does not
            have; key by key.
    """
    if isinstance(obs, tuple) and not isinstance(space, (spaces.Dict, spaces.Tuple)):
        obs = np.asarray(obs)  # one array, written as a tuple of numbers
    shapes = {name: tuple(leaf.shape or ()) for name, leaf in leaf_spaces(space)}
    given = {name: tuple(np.shape(leaf)) for name, leaf in tree_paths(obs)}
    if shapes.keys() != given.keys():
        raise ValueError(_wrong_keys(list(shapes), list(given)))
    batched = any(len(given[name]) > len(shape) for name, shape in shapes.items())
    count: tuple[Any, ...] = next(iter(given.values()))[:1] if batched else ()
    for name, shape in shapes.items():
        if given[name] != (*count, *shape):
            raise ValueError(
                f"observation{f' {name!r}' if name else ''} has shape {given[name]}; expected {(*count, *shape)}"
                + (" like the rest of the batch." if batched else ", or a batch of such.")
            )

    parts = dict(leaf_spaces(space))
    for name, leaf in tree_paths(obs):
        _refuse_values(name, leaf, parts[name])

    def convert(leaf: Any) -> Tensor:
        tensor = torch.as_tensor(leaf if isinstance(leaf, Tensor) else _plain(leaf), device=device)
        tensor = tensor.float() if tensor.dtype == torch.float64 else tensor
        return tensor if batched else tensor.unsqueeze(0)

    return tree_map(convert, obs), batched


def _plain(leaf: Any) -> np.ndarray:
    """An array that torch takes: it has no negative strides (a flipped image) and may be written to."""
    array = np.asarray(leaf)
    return array if array.flags.writeable and all(step >= 0 for step in array.strides) else array.copy()


def _refuse_values(name: str, leaf: Any, space: Space[Any]) -> None:
    array = leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else np.asarray(leaf)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"observation{f' {name!r}' if name else ''} is of dtype {array.dtype}; expected numbers."
        )
    odd = outside(space, array)
    if odd is not None:
        raise ValueError(
            f"observation{f' {name!r}' if name else ''} holds {odd}, which {describe(space)} does not have."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(
            f"observation{f' {name!r}' if name else ''} holds {array[tuple(bad)]} at {bad}; expected finite numbers: "
            "no action follows from it."
        )


def _wrong_keys(expected: list[str], given: list[str]) -> str:
    lacks = [name for name in expected if name not in given]
    if MASK in given and MASK not in expected:
        return "the agent was trained without action masks: leave action_mask out."
    if MASK in lacks:
        return "the agent was trained with action masks: pass action_mask= beside the observation, 1 where legal."
    if expected == [""]:
        return f"the observation is a map of {given}; expected one array."
    if given == [""]:
        return f"the observation is one array; expected a map of {expected}."
    odd = [name for name in given if name not in expected]
    faults = [f"lacks {lacks}"] * bool(lacks) + [f"has {odd}, which the agent does not know"] * bool(odd)
    return f"the observation {' and '.join(faults)}."
