"""Leaves of observation spaces in one stable order, and examples of them: shared by encoders, normalisers and
models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from uniarena.batch import Tree
from uniarena.envs.spaces import MASK

Keys = tuple[str | int, ...]
"""The way to a leaf: dict keys and tuple positions."""


def leaves(space: Space[Any], keys: Keys = ()) -> Iterator[tuple[Keys, Space[Any]]]:
    """(keys, leaf space) of a nested space, dicts by sorted key, action masks left out."""
    if isinstance(space, spaces.Dict):
        for key in sorted(space.spaces):
            if key != MASK:
                yield from leaves(space.spaces[key], (*keys, key))
    elif isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from leaves(child, (*keys, index))
    else:
        yield keys, space


def leaf_at(tree: Tree, keys: Keys) -> Any:
    """The leaf at the end of `keys`."""
    for key in keys:
        tree = tree[key]
    return tree


def dotted(keys: Keys) -> str:
    """How configs and messages name a leaf: `sensors.cam`."""
    return ".".join(str(key) for key in keys)


def example(space: Space[Any], count: int) -> Tree:
    """`count` equal, legal observations of a space as tensors `[count, …]`: zeros where zero is legal, else
    the bound.
    """
    if isinstance(space, spaces.Dict):
        return {key: example(child, count) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(example(child, count) for child in space.spaces)
    if isinstance(space, spaces.Box):
        value = np.clip(np.zeros(space.shape), space.low, space.high).astype(space.dtype)
    else:  # Discrete and MultiDiscrete begin at `start`, MultiBinary at 0
        value = np.zeros(space.shape or (), space.dtype) + np.asarray(getattr(space, "start", 0), space.dtype)
    one = torch.as_tensor(value)
    one = one.float() if one.is_floating_point() else one
    return one.expand(count, *one.shape).clone()
