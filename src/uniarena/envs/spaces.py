"""Gymnasium spaces: what is supported, how values are stored, and a JSON form that rebuilds them.

Leaves are Box, Discrete, MultiDiscrete and MultiBinary; Dict and Tuple nest them. Other spaces (Text, Graph,
Sequence) are refused by name unless an encoder that turns their values into arrays was registered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from uniarena.config import ConfigError

MASK = "action_mask"
"""The reserved leaf of a dict observation that says which actions are allowed."""

LARGEST = 2**28
"""Numbers in a Box that is read from a file: of more, the bounds alone would fill the memory."""

LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class LeafEncoder(NamedTuple):
    """Turns values of an unsupported space into arrays.

    Attributes:
        space: the space → the Box, MultiDiscrete, … that encoded values lie in.
        encode: (space, value) → an array of that space.
    """

    space: Callable[[Space[Any]], Space[Any]]
    encode: Callable[[Space[Any], Any], np.ndarray]


_ENCODERS: dict[type[Space[Any]], LeafEncoder] = {}


def register_encoder(space_type: type[Space[Any]], encoder: LeafEncoder | None) -> None:
    """Encode every observation leaf of `space_type` (a tokeniser for `Text`, say); None: no longer."""
    if encoder is None:
        _ENCODERS.pop(space_type, None)
    else:
        _ENCODERS[space_type] = encoder


def encoder_for(space: Space[Any]) -> LeafEncoder | None:
    """The registered encoder of a leaf space, by its class or a base class of it."""
    return next((_ENCODERS[cls] for cls in type(space).__mro__ if cls in _ENCODERS), None)


def leaf_spaces(space: Space[Any], prefix: str = "") -> list[tuple[str, Space[Any]]]:
    """(dotted path, leaf space) in the order of `batch.tree_paths`; the path of a bare leaf is the prefix."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return [(prefix, space)]
    entries = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    return [
        p for key, child in entries for p in leaf_spaces(child, f"{prefix}.{key}" if prefix else str(key))
    ]


def map_space(fn: Callable[[Space[Any]], Space[Any]], space: Space[Any]) -> Space[Any]:
    """The same nesting with `fn` applied to every leaf space."""
    if isinstance(space, spaces.Dict):
        return keep_order({key: map_space(fn, child) for key, child in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(tuple(map_space(fn, child) for child in space.spaces))
    return fn(space)


def keep_order(members: dict[str, Space[Any]]) -> spaces.Dict:
    """A Dict with its keys in the order given; gymnasium would sort those of a plain dict."""
    return spaces.Dict(list(members.items()))


def refuse_unsupported(space: Space[Any], where: str, encodable: bool = False) -> None:
    """Accept Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple; refuse anything else by name.

    Args:
        space: an observation or action space.
        where: what it is, for the message, such as `observation space of 'BabyAI-GoToObj-v0'`.
        encodable: leaves with a registered encoder pass too.

    Raises:
        ConfigError: an unsupported leaf, with the way out.
    """
    paths = [path for path, _ in leaf_spaces(space)]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None or not _one_kind_of_keys(space):
        said = (
            "has keys of several types" if twice is None else f"has two parts that are both called {twice!r}"
        )
        raise ConfigError(
            f"the {where} {said}: it is {describe(space)}",
            path="environment.id",
            hint="give its parts names that are text, and differ also where dots stand between nested ones",
        )
    for path, leaf in leaf_spaces(space):
        if isinstance(leaf, LEAVES) or (encodable and encoder_for(leaf) is not None):
            continue
        name = type(leaf).__name__
        at = f"its part {path!r} is" if path else "it is"
        hint = "wrap it into arrays"
        if path:
            hint = f"leave {path!r} out of the observation with a gymnasium wrapper"
        if path == "mission":  # MiniGrid's name for its instruction
            hint += " (environment.wrappers: [minigrid.wrappers:ImgObsWrapper])"
        if encodable:
            hint = (
                f"register what turns its values into arrays (a tokeniser for Text): "
                f"uniarena.envs.register_encoder({name}, LeafEncoder(space=…, encode=…)); or {hint}"
            )
        raise ConfigError(
            f"the {where} is not supported: {at} {leaf}; expected Box, Discrete, MultiDiscrete or "
            "MultiBinary, "
            "or a Dict or Tuple of them",
            path="environment.id",
            hint=hint,
        )


def _one_kind_of_keys(space: Space[Any]) -> bool:
    """Whether the keys of every Dict are all of one type, so that they have an order."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return True
    inner = list(space.spaces.values()) if isinstance(space, spaces.Dict) else list(space.spaces)
    kinds = {type(key) for key in space.spaces} if isinstance(space, spaces.Dict) else set()
    return len(kinds) <= 1 and all(_one_kind_of_keys(child) for child in inner)


def outside(space: Space[Any], values: np.ndarray) -> Any | None:
    """The first of some values `[…, *shape]` that a Discrete or MultiDiscrete space does not have; None: it has all.

    Other spaces have bounds that many environments overstep, which is for the checker to tell.
    """
    if isinstance(space, spaces.Discrete):
        low, count = space.start, space.n
    elif isinstance(space, spaces.MultiDiscrete):
        low, count = space.start, space.nvec
    else:
        return None
    bad = (values < low) | (values >= low + count) | (values != np.floor(values))
    return values[bad].flat[0] if bad.any() else None


def storage_space(space: Space[Any]) -> Space[Any]:
    """The space of values as we store them: floats become float32, all else stays."""

    def stored(leaf: Space[Any]) -> Space[Any]:
        if (
            isinstance(leaf, spaces.Box)
            and leaf.dtype != np.float32
            and np.issubdtype(leaf.dtype, np.floating)
        ):
            with np.errstate(over="ignore"):  # bounds beyond float32 become infinite, which is what they mean
                return spaces.Box(
                    leaf.low.astype(np.float32), leaf.high.astype(np.float32), leaf.shape, np.float32
                )
        return leaf

    return map_space(stored, space) if storage_differs(space) else space


def storage_differs(space: Space[Any]) -> bool:
    """Whether `storage_space` changes anything."""
    return any(
        isinstance(leaf, spaces.Box) and leaf.dtype != np.float32 and np.issubdtype(leaf.dtype, np.floating)
        for _, leaf in leaf_spaces(space)
    )


def flat_dim(space: Space[Any]) -> int:
    """Length of a value as a flat vector: Discrete and MultiDiscrete one-hot, the mask left out."""
    total = 0
    for path, leaf in leaf_spaces(space):
        if path.rpartition(".")[2] == MASK:
            continue
        if isinstance(leaf, spaces.Discrete):
            total += int(leaf.n)
        elif isinstance(leaf, spaces.MultiDiscrete):
            total += int(leaf.nvec.sum())
        else:
            total += int(np.prod(leaf.shape or (), dtype=np.int64))
    return total


def mask_size(action_space: Space[Any]) -> int | None:
    """Entries of an action mask: n, or the sum of nvec; None: such actions have no mask."""
    if isinstance(action_space, spaces.Discrete):
        return int(action_space.n)
    if isinstance(action_space, spaces.MultiDiscrete):
        return int(action_space.nvec.sum())
    return None


def with_mask_leaf(space: Space[Any], size: int) -> spaces.Dict:
    """The observation space with the reserved leaf; what is no Dict becomes the part `obs` of one."""
    inner = dict(space.spaces) if isinstance(space, spaces.Dict) else {"obs": space}
    inner.pop(MASK, None)
    return keep_order({**inner, MASK: spaces.MultiBinary(size)})


def describe(space: Space[Any]) -> str:
    """A short name for people: `Box(4) float32`, `{pos: Box(3) float32, task: Discrete(4)}`."""
    if isinstance(space, spaces.Dict):
        return "{" + ", ".join(f"{key}: {describe(child)}" for key, child in space.spaces.items()) + "}"
    if isinstance(space, spaces.Tuple):
        return "(" + ", ".join(describe(child) for child in space.spaces) + ")"
    if isinstance(space, spaces.Box):
        return f"Box({'×'.join(map(str, space.shape)) or 'scalar'}) {space.dtype}"
    if isinstance(space, spaces.Discrete):
        return f"Discrete({space.n}{f', start={space.start}' if space.start else ''})"
    if isinstance(space, spaces.MultiDiscrete):
        start = f", start={space.start.tolist()}" if space.start.any() else ""
        return f"MultiDiscrete({space.nvec.tolist()}{start})"
    if isinstance(space, spaces.MultiBinary):
        return f"MultiBinary({'×'.join(map(str, space.shape))})"
    return " ".join(str(space).split())


def space_to_json(space: Space[Any]) -> dict[str, Any]:
    """Plain data that `space_from_json` turns back into an equal space. Infinite bounds become strings.

    Raises:
        TypeError: a space that is not supported.
    """
    match space:
        case spaces.Dict():
            return {
                "type": "Dict",
                "spaces": [[key, space_to_json(child)] for key, child in space.spaces.items()],
            }
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [space_to_json(child) for child in space.spaces]}
        case spaces.Box():
            low, high = _bound_to_json(space.low), _bound_to_json(space.high)
            return {
                "type": "Box",
                "shape": list(space.shape),
                "dtype": space.dtype.name,
                "low": low,
                "high": high,
            }
        case spaces.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": _dtype(space)}
        case spaces.MultiDiscrete():
            nvec, start = space.nvec.tolist(), space.start.tolist()
            return {"type": "MultiDiscrete", "nvec": nvec, "start": start, "dtype": _dtype(space)}
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "shape": list(space.shape)}
    raise TypeError(
        f"{space} has no JSON form; expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    )


def space_from_json(data: dict[str, Any]) -> Space[Any]:
    """The space that `space_to_json` wrote.

    Raises:
        ValueError: an unknown type, or a Box larger than any observation.
    """
    match data["type"]:
        case "Dict":  # pairs given as a list of tuples keep their order
            return spaces.Dict([(key, space_from_json(child)) for key, child in data["spaces"]])
        case "Tuple":
            return spaces.Tuple([space_from_json(child) for child in data["spaces"]])
        case "Box":
            shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
            if math.prod(shape) > LARGEST:
                raise ValueError(f"a Box of shape {shape} has more than {LARGEST:,} numbers")
            low, high = (_bound_from_json(data[key], shape, dtype) for key in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(data["n"], start=data["start"], dtype=np.dtype(data["dtype"]).type)
        case "MultiDiscrete":
            dtype = np.dtype(data["dtype"])
            nvec, start = np.array(data["nvec"], dtype), np.array(data["start"], dtype)
            return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
        case "MultiBinary":
            return spaces.MultiBinary(data["shape"] if len(data["shape"]) != 1 else data["shape"][0])
    raise ValueError(f"unknown space type {data['type']!r} in JSON; was it written by a newer version?")


def _dtype(space: Space[Any]) -> str:
    return np.dtype(space.dtype).name


def _bound_to_json(bound: np.ndarray) -> Any:
    """One number where all are equal, else nested lists; ±inf as strings, which strict JSON can carry."""
    flat = bound.ravel()
    if flat.size and (flat == flat[0]).all():
        return _number(flat[0].item())
    return _numbers(bound.tolist())


def _numbers(values: Any) -> Any:
    return [_numbers(value) for value in values] if isinstance(values, list) else _number(values)


def _number(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def _bound_from_json(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    floating = np.issubdtype(dtype, np.floating)
    parsed = np.array(
        value, dtype=np.float64 if floating else None
    )  # float64 reads "inf" and holds float32 exactly
    return np.broadcast_to(parsed.astype(dtype), shape).copy()
