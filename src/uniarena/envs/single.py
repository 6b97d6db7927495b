"""SingleMaker: makes one column's environment, from whatever it is, as a Gymnasium environment with arrays
only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from uniarena import registry
from uniarena.config import ConfigError, canonical_name
from uniarena.envs.column import unpack_reset
from uniarena.envs.encoded import EncodedLeaves, has_encoded_leaves
from uniarena.envs.legacy import LegacyEnv, is_legacy, refuse_incomplete
from uniarena.envs.masks import MaskObs, MaskSource, find_source
from uniarena.envs.spaces import mask_size, refuse_unsupported

Wrap = Callable[[gym.Env], gym.Env]


@dataclass(frozen=True)
class SingleMaker:
    """Callable without arguments; cloudpickle can send it to a worker.

    Attributes:
        make: keyword arguments → an environment of any supported form.
        env_id: name for messages.
        kwargs: the arguments.
        max_episode_steps: time limit to add, unless `make` took it.
        wraps: gymnasium wrappers, from the innermost.
        mask: where masks come from, once known.
        column: index of the column.
    """

    make: Callable[..., Any]
    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    wraps: Sequence[Wrap] = ()
    mask: MaskSource | None = None
    column: int = 0

    def __call__(self) -> gym.Env:
        """One environment.

        Raises:
            ConfigError: arguments it does not take, or spaces that are not supported.
            TypeError: a class without `reset`, `step` or spaces.
        """
        return self.finish(call_with(self.make, self.kwargs, self.env_id))

    def finish(self, env: Any) -> gym.Env:
        """The same for an object that was made already."""
        if is_legacy(env):
            env = LegacyEnv(env)
        else:
            refuse_incomplete(env)
        if self.max_episode_steps is not None:
            env = TimeLimit(env, self.max_episode_steps)
        for wrap in self.wraps:
            env = wrap(env)
        if has_encoded_leaves(env.observation_space):
            env = EncodedLeaves(env)
        refuse_unsupported(env.observation_space, f"observation space of {self.env_id!r}", encodable=True)
        refuse_unsupported(env.action_space, f"action space of {self.env_id!r}")
        return env if self.mask is None else MaskObs(env, self.mask, self.column)

    def at(self, column: int, mask: MaskSource | None) -> SingleMaker:
        """The maker of another column."""
        return replace(self, column=column, mask=mask)

    def find_mask(self, env: gym.Env, mode: str) -> MaskSource | None:
        """Where the masks of this environment come from; resets it once where only that can tell."""
        looks = mode != "none" and mask_size(env.action_space) is not None
        info = unpack_reset(env.reset(), env)[1] if looks else {}
        return find_source(mode, env.observation_space, env.action_space, info)


def call_with(make: Callable[..., Any], kwargs: Mapping[str, Any], env_id: str) -> Any:
    """Call it, and say which config key is at fault where it does not take an argument.

    Raises:
        ConfigError: an argument that it does not take.
    """
    try:
        return make(**kwargs)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        name = str(error).partition("argument")[2].strip().split()[0].strip("'\"")
        raise ConfigError(
            f"{env_id!r} takes no argument {name!r}",
            path=f"environment.kwargs.{name}",
            hint="remove it, or correct its name",
        ) from error


def split_wrappers(wrappers: Sequence[Any]) -> tuple[list[Wrap], list[tuple[int, Any]]]:
    """Gymnasium's wrappers, for each single environment, and ours, with their place in the list."""
    inner: list[Wrap] = []
    outer: list[tuple[int, Any]] = []
    for index, item in enumerate(wrappers):
        wrap = _single_wrapper(item)
        if wrap is None:
            outer.append((index, item))
        elif outer:
            raise ConfigError(
                f"wrapper {index} is a gymnasium wrapper and goes around each single environment, but "
                "stands after "
                f"wrapper {outer[0][0]}, which works on the whole batch",
                path=f"environment.wrappers.{index}",
                hint="list gymnasium wrappers first",
            )
        else:
            inner.append(wrap)
    return inner, outer


def _single_wrapper(item: Any) -> Wrap | None:
    """The wrapper as env → env, if it is one of gymnasium's kind."""
    fields = {key: value for key, value in item.items() if key != "type"} if isinstance(item, Mapping) else {}
    target = item.get("type") if isinstance(item, Mapping) else item
    if isinstance(target, str):
        name = canonical_name("wrapper", target)
        if ":" not in name and name in registry.BUILT_IN["wrapper"]:
            return None
        try:
            target = registry.lookup("wrapper", name)
        except registry.RegistryError:
            return None  # `component` says what is wrong, and where
    if isinstance(target, type):
        return _Wrapped(target, fields) if issubclass(target, gym.Wrapper) else None
    return target if callable(target) and not hasattr(target, "Config") else None


class _Wrapped:
    """A gymnasium wrapper class with its arguments."""

    def __init__(self, wrapper: type[gym.Wrapper], fields: Mapping[str, Any]) -> None:
        self.wrapper, self.fields = wrapper, fields

    def __call__(self, env: gym.Env) -> gym.Env:
        return self.wrapper(env, **self.fields)
