"""Spaces as Minari writes them in JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from uniarena.data.errors import DataError
from uniarena.envs.spaces import LARGEST, keep_order


def space_from(data: dict[str, Any]) -> Space[Any]:
    """The space that Minari's JSON stands for.

    Raises:
        ValueError: a type that is not supported.
    """
    match data["type"]:
        case "Box":
            shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
            if math.prod(shape) > LARGEST:
                raise ValueError(f"a Box of shape {shape} has more than {LARGEST:,} numbers")
            low, high = (np.broadcast_to(np.array(data[k]).astype(dtype), shape) for k in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(data["n"], start=data.get("start", 0))
        case "MultiDiscrete":
            start = data.get("start")
            return spaces.MultiDiscrete(
                np.array(data["nvec"]),
                start=np.zeros_like(data["nvec"]) if start is None else np.array(start),
            )
        case "MultiBinary":
            return spaces.MultiBinary(data["n"])
        case "Dict":
            return keep_order({key: space_from(child) for key, child in data["subspaces"].items()})
        case "Tuple":
            return spaces.Tuple([space_from(child) for child in data["subspaces"]])
    raise ValueError(f"{data['type']} spaces are not supported")


def space_to(space: Space[Any]) -> dict[str, Any]:
    """A space in Minari's JSON."""
    match space:
        case spaces.Box():
            bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
            return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), **bounds}
        case spaces.Discrete():
            return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
        case spaces.MultiDiscrete():
            nvec, start = space.nvec.tolist(), space.start.tolist()
            return {"type": "MultiDiscrete", "dtype": str(space.dtype), "nvec": nvec, "start": start}
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
        case spaces.Dict():
            return {
                "type": "Dict",
                "subspaces": {key: space_to(child) for key, child in space.spaces.items()},
            }
        case spaces.Tuple():
            return {"type": "Tuple", "subspaces": [space_to(child) for child in space.spaces]}
    raise DataError(f"{space} has no form in a Minari dataset; expected arrays")
