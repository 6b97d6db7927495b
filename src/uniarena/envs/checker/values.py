"""Is this value of that space? Observations, rewards, flags and infos: one finding per fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from uniarena.envs.checker.problem import Level, Problem

HUGE = 1e6
"""From this size on, unscaled values keep a network from learning."""

_ERROR: Level = "error"
_WARNING: Level = "warning"


def check_value(space: Space[Any], value: Any, key: str, path: str = "") -> Iterator[Problem]:
    """Findings about one observation (or a leaf of it).

    Args:
        key: what the value is, e.g. `step() obs`.
        path: dotted path inside it.
    """
    name = f"{key}[{path!r}]" if path else key
    if isinstance(space, spaces.Dict):
        yield from _check_dict(space, value, key, path, name)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            yield Problem(
                "wrong structure",
                name,
                f"a tuple of {len(space.spaces)}",
                _show(value),
                "return one entry per sub-space",
            )
            return
        for i, (child, part) in enumerate(zip(space.spaces, value, strict=True)):
            yield from check_value(child, part, key, f"{path}.{i}" if path else str(i))
    elif isinstance(space, spaces.Box):
        yield from _check_box(space, value, name)
    elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        yield from _check_integers(space, value, name)


def check_reward(reward: Any, key: str = "step() reward") -> Iterator[Problem]:
    """Findings about one reward: any real scalar will do, also a 0-d array or tensor."""
    array = as_array(reward)
    if array is None or array.dtype.kind not in "biuf":
        yield Problem("wrong type", key, "a number", _show(reward), "return float(reward)")
        return
    if array.shape != ():
        one = array.size == 1  # which is taken as the number it holds
        fix = "return float(reward[0])" if one else "return one number, e.g. float(np.sum(reward))"
        got, level = f"shape {array.shape}: {_show(reward)}", _WARNING if one else _ERROR
        yield Problem("wrong shape", key, "a number, shape ()", got, fix, level=level)
        if not one:
            return
    number = float(array.reshape(()))
    if not np.isfinite(number):
        yield Problem(
            "not finite",
            key,
            "a finite number",
            str(number),
            "find the 0/0, log(0) or overflow in the reward",
        )
    elif abs(number) >= HUGE:
        yield Problem(
            "huge value",
            key,
            f"a size below {HUGE:.0e}",
            f"{number:.3g}",
            "scale it in the environment, or add the wrapper `normalize_reward` or `scale_reward`",
            level="warning",
        )


def check_flag(flag: Any, key: str) -> Iterator[Problem]:
    """Findings about `terminated` or `truncated`."""
    array = as_array(flag)
    if array is None or array.shape != () or array.dtype.kind not in "biu":
        yield Problem("wrong type", key, "a bool", _show(flag), "return True or False")
    elif array.dtype.kind != "b":
        yield Problem(
            "wrong type", key, "a bool", _show(flag), f"return bool({key.split()[-1]})", level="warning"
        )


def check_info(info: Any, key: str) -> Iterator[Problem]:
    """Findings about an info."""
    if not isinstance(info, dict):
        yield Problem("wrong type", key, "a dict", _show(info), "return {} where there is nothing to tell")


def as_array(value: Any) -> np.ndarray | None:
    """Numbers, also of a torch tensor, as a NumPy array; None where they are no rectangular array."""
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except Exception:
        return None
    return array if array.dtype.kind in "biuf" else None


def _check_dict(space: spaces.Dict, value: Any, key: str, path: str, name: str) -> Iterator[Problem]:
    if not isinstance(value, dict):
        keys = ", ".join(map(repr, space.spaces))
        yield Problem("wrong structure", name, f"a dict with the keys {keys}", _show(value), "return a dict")
        return
    for missing in space.spaces.keys() - value.keys():
        yield Problem(
            "missing key",
            name,
            f"the key {missing!r}: {space.spaces[missing]}",
            f"keys {list(value)}",
            f"add {missing!r} to the observation, or take it out of observation_space",
        )
    for extra in value.keys() - space.spaces.keys():
        yield Problem(
            "extra key",
            name,
            f"only the keys {list(space.spaces)}",
            f"the key {extra!r} too",
            f"add {extra!r} to observation_space, or leave it out of the observation",
        )
    for child in space.spaces:
        if child in value:
            yield from check_value(
                space.spaces[child], value[child], key, f"{path}.{child}" if path else str(child)
            )


def _check_box(space: spaces.Box, value: Any, name: str) -> Iterator[Problem]:
    array = as_array(value)
    wanted = f"an array, {space.dtype} of shape {space.shape}"
    if array is None:
        yield Problem("wrong type", name, wanted, _show(value), f"return np.array(…, np.{space.dtype})")
        return
    if not hasattr(value, "dtype"):  # a list of numbers, which can be read
        fix = f"return np.array(…, np.{space.dtype})"
        yield Problem("wrong type", name, wanted, _show(value), fix, level="warning")
    elif array.dtype != space.dtype:
        fix = f"return obs.astype(np.{space.dtype}), or declare the space with dtype=np.{array.dtype}"
        level = _WARNING if array.dtype.kind == space.dtype.kind == "f" else _ERROR
        yield Problem("wrong dtype", name, str(space.dtype), str(array.dtype), fix, level=level)
    if array.shape != space.shape:
        fix = f"return an array of shape {space.shape}, or declare the space with shape={array.shape}"
        yield Problem("wrong shape", name, str(space.shape), str(array.shape), fix)
        return
    yield from _check_numbers(space, array, name)


def _check_numbers(space: spaces.Box, array: np.ndarray, name: str) -> Iterator[Problem]:
    finite = np.isfinite(array)
    if not finite.all():
        at = _first(~finite)
        fix = "find the 0/0, sqrt(<0) or overflow behind it"
        yield Problem("not finite", name, "finite numbers", f"{array[at]} {_at(at)}", fix)
    outside = finite & ((array < space.low) | (array > space.high))
    if outside.any():
        at = _first(outside)
        bounds = f"{space.low[at]} … {space.high[at]} {_at(at)}"
        fix = "np.clip the observation, or widen low and high of the space"
        yield Problem("out of bounds", name, bounds, f"{array[at]} {_at(at)}", fix)
    huge = finite & (np.abs(array, where=finite, out=np.zeros_like(array)) >= HUGE)
    if space.dtype.kind == "f" and huge.any():
        at = _first(huge)
        fix = "scale it in the environment, or add the wrapper `normalize_observation`"
        got = f"{array[at]:.3g} {_at(at)}"
        yield Problem("huge value", name, f"a size below {HUGE:.0e}", got, fix, level="warning")


def _check_integers(space: Space[Any], value: Any, name: str) -> Iterator[Problem]:
    array = as_array(value)
    shape = space.shape or ()
    if array is None or array.dtype.kind not in "biu":
        yield Problem(
            "wrong type", name, f"integers of {space}", _show(value), "return int(…) or an integer array"
        )
    elif array.shape != shape:
        fix = f"return integers of shape {shape}" if shape else "return int(…)"
        yield Problem("wrong shape", name, str(shape), str(array.shape), fix)
    elif not _in_range(space, array):
        yield Problem(
            "out of bounds", name, str(space), _show(value), "return a value of the space, or widen the space"
        )


def _in_range(space: Space[Any], array: np.ndarray) -> bool:
    if isinstance(space, spaces.MultiBinary):
        return bool(np.isin(array, (0, 1)).all())
    count = space.n if isinstance(space, spaces.Discrete) else space.nvec  # type: ignore[attr-defined]
    start = space.start  # type: ignore[attr-defined]
    return bool(((array >= start) & (array < start + count)).all())


def _first(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])


def _at(index: tuple[int, ...]) -> str:
    return f"at index {index[0] if len(index) == 1 else index}" if index else ""


def _show(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return (
        f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '…'}"
        if value is not None
        else "None"
    )
