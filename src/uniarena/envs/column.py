"""What all adapters do with one Gymnasium environment: seeds, attributes of the base environment, the reset
protocol.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import VectorWrapper

from uniarena.config.errors import text_of
from uniarena.envs.notices import notice
from uniarena.envs.spaces import describe

WRAPPERS = (gym.Wrapper, VectorWrapper)
_STRIDE = 0x9E3779B1  # odd, so that multiples of it are distinct modulo 2^31


class StepError(TypeError):
    """An environment that does not keep to what `reset` and `step` are to return."""


def env_seeds(seed: int | None, num_envs: int) -> list[int | None]:
    """A distinct 31-bit seed per column, derived from `seed`; it does not depend on `num_envs`."""
    if seed is None:
        return [None] * num_envs
    base = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return [(base + b * _STRIDE) % 2**31 for b in range(num_envs)]


def seed_spaces(env: gym.Env, seed: int) -> None:
    """Seed what the spaces' `sample()` draws, on every layer of a wrapper chain."""
    layer: Any = env
    while True:
        layer.action_space.seed(seed)
        layer.observation_space.seed(seed)
        if not isinstance(layer, gym.Wrapper):
            return
        layer = layer.env


def begin(env: gym.Env, seed: int | None, options: dict[str, Any] | None) -> Any:
    """Reset, with the spaces' own sampling seeded too where there is a seed → the first observation."""
    if seed is not None:
        seed_spaces(env, seed)
    return unpack_reset(env.reset(seed=seed, options=options), env)[0]


def unpack_reset(result: Any, env: gym.Env) -> tuple[Any, dict[str, Any]]:
    """The (observation, info) of `reset`.

    Raises:
        StepError: it returned something else.
    """
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result
    raise StepError(
        f"reset() of {type(env.unwrapped).__name__} returned {_shape_of(result)}; expected (observation, "
        "info dict): "
        "write `return observation, {}`"
    )


def explain_step(env: gym.Env, error: Exception) -> Exception:
    """The error of a step, put in words where what came back was no 5-tuple, or its flags have no truth."""
    traceback = error.__traceback__
    ours = (
        traceback is not None and traceback.tb_next is None
    )  # raised by our own unpacking, not inside the environment
    name = type(env.unwrapped).__name__
    if ours and "unpack" in str(error):
        return StepError(
            f"step() of {name} did not return the five values (observation, reward, terminated, truncated, "
            f"info): {error}. Split `done`: terminated = the task is over, truncated = it was only cut off"
        )
    if ours and "ambiguous" in str(error):  # the truth of an array, of a tensor
        return StepError(
            f"step() of {name} returned terminated or truncated that is not one bool ({error}): return bools"
        )
    return error


def episode_end(
    env: gym.Env, terminated: Any, truncated: Any, info: Any
) -> tuple[bool, bool, dict[str, Any]]:
    """The flags and the info that an episode ended with.

    Raises:
        StepError: a flag is no bool (texts and lists are true whatever they say), or the info no dict.
    """
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if isinstance(value, (str, bytes, list, tuple, dict)):
            raise StepError(
                f"step() of {type(env.unwrapped).__name__} returned {name}={value!r}; expected a bool"
            )
    if not isinstance(info, Mapping):
        raise StepError(
            f"step() of {type(env.unwrapped).__name__} returned {_shape_of(info)} as its info; expected a dict: "
            "return {} where there is nothing to say"
        )
    return bool(terminated), bool(truncated), dict(info)


def refuse_none(env: gym.Env, terminated: Any, truncated: Any) -> None:
    """Refuse flags of a step that say nothing, and would be taken for False.

    Raises:
        StepError: always, naming the one.
    """
    name = "terminated" if terminated is None else "truncated"
    raise StepError(f"step() of {type(env.unwrapped).__name__} returned {name}=None; expected a bool")


def scalar_reward(value: Any) -> float:
    """A reward of any scalar kind as a float: numbers, bools, 0-d and one-element arrays and tensors.

    Raises:
        StepError: anything else, named.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "buif":
        raise StepError(f"the reward is {_shape_of(value)}; expected one number: return a float")
    return float(array.reshape(()))


def layers(env: Any) -> list[Any]:
    """The environment's wrappers from the outermost to the base environment."""
    chain: list[Any] = [env]
    while isinstance(chain[-1], WRAPPERS):
        chain.append(chain[-1].env)
    return chain


def _owner(env: Any, name: str) -> Any:
    """The outermost layer that really has the attribute; the base environment where none has.

    Wrappers that forward unknown names (`__getattr__`) do not count: setting on them would not reach the
    base.
    """
    chain = layers(env)
    missing = object()
    return next(
        (layer for layer in chain if inspect.getattr_static(layer, name, missing) is not missing),
        _base(chain),
    )


def _base(chain: list[Any]) -> Any:
    """The innermost object: legacy environments are held by an adapter."""
    return getattr(chain[-1], "legacy_env", chain[-1])


def base_get(env: Any, name: str) -> Any:
    """Attribute `name` of the layer that has it.

    Raises:
        AttributeError: no layer has it.
    """
    return getattr(_owner(env, name), name)


def base_set(env: Any, name: str, value: Any) -> None:
    """Call `set_<name>(value)` where a layer has it, else set attribute `name` where it is; a new one goes to the base
    environment.
    """
    setter = getattr(_owner(env, f"set_{name}"), f"set_{name}", None)
    if callable(setter):
        setter(value)
    else:
        setattr(_owner(env, name), name, value)


def base_call(env: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call method `name` of the layer that has it."""
    return base_get(env, name)(*args, **kwargs)


def close_quietly(env: Any, name: str) -> None:
    """Close an environment; one that raises at it is told of, for what was done with it is whole."""
    try:
        env.close()
    except Exception as error:
        notice(f"close() of {name} raised {type(error).__name__}: {text_of(error)}; nothing else is affected")


def refuse_misfit(env: Any, b: int, env_id: str, spaces: tuple[Any, Any]) -> None:
    """Refuse column `b` where its spaces are not those (observation, action) of the first.

    Raises:
        ValueError: they differ.
    """
    for name, expected in zip(("observation_space", "action_space"), spaces, strict=True):
        given = getattr(env, name)
        if given != expected:
            raise ValueError(
                f"environment {b} of {env_id} has {name} {describe(given)}; environment 0 has "
                f"{describe(expected)}: columns need equal spaces"
            )


def frame_of(picture: Any) -> np.ndarray | None:
    """One RGB frame from what `render` gave (an array, a list of frames, None)."""
    if isinstance(picture, (list, tuple)):
        picture = picture[-1] if picture else None
    return picture if isinstance(picture, np.ndarray) and picture.ndim == 3 else None


def _shape_of(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}{'' if shape is None else f' of shape {tuple(shape)}'}"
