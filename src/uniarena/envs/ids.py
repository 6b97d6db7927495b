"""Environment ids: which package an id belongs to, what it becomes, and what to install where that is
missing.
"""

from __future__ import annotations

import copy
import functools
import importlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from uniarena import registry
from uniarena.config import ConfigError
from uniarena.config.environments import is_multi_agent, modern_id
from uniarena.config.errors import closest
from uniarena.envs.native_mujoco import tell_once
from uniarena.envs.notices import notice

_PATH = "environment.id"


class Known(NamedTuple):
    """What an id stands for.

    Attributes:
        env_id: today's id.
        make: keyword arguments → one environment (or what a class or factory gives); None for an EnvPool
            task.
        spec: the gymnasium spec, where it is a gymnasium id.
        task: the EnvPool task, where it is one.
        kwargs: options that the id itself implies.
    """

    env_id: str
    make: Callable[..., Any] | None = None
    spec: EnvSpec | None = None
    task: str | None = None
    kwargs: dict[str, Any] = {}  # noqa: RUF012  (never written to)


class _Provider(NamedTuple):
    """A package whose import registers ids."""

    pattern: str
    module: str
    extra: str


_PROVIDERS = (
    _Provider(r"ALE/", "ale_py", "atari"),
    _Provider(r"MinAtar/", "minatar", "minatar"),
    _Provider(r"(MiniGrid|BabyAI)-", "minigrid", "minigrid"),
    _Provider(r"Meta-World/", "metaworld", "metaworld"),
)

# What gymnasium's own environments need, by a word of the entry point's module path.
_NEEDS = {
    "box2d": ("Box2D", "box2d"),
    "mujoco": ("mujoco", "mujoco"),
    "phys2d": ("jax", "jax"),
    "tabular": ("jax", "jax"),
}


def resolve(env_id: str) -> Known:
    """What an id stands for; packages are imported only for ids of theirs.

    Raises:
        ConfigError: unknown ids with the nearest one, ids of several agents, missing packages with the extra
            to install.
    """
    env_id = env_id.strip()
    if registry.known("env", env_id):
        return Known(env_id, registry.lookup("env", env_id))
    prefix, _, rest = env_id.partition("/")
    special = _SPECIAL.get(prefix.lower())
    if special is not None and rest:
        return special(env_id, rest)
    procgen = re.fullmatch(r"(?:procgen:)?procgen-([a-z]+)-v0", env_id)
    if procgen:
        return _procgen(env_id, procgen[1])
    if is_multi_agent(env_id):
        raise ConfigError(
            f"{env_id!r} is an environment of several agents; multi-agent training comes with a later "
            "version",
            path=_PATH,
            hint="choose an environment of one agent; `uniarena list envs` shows some",
        )
    if ":" in env_id:
        return _by_import_path(env_id)
    _import_provider(env_id)
    return _gymnasium(env_id)


def missing(env_id: str, package: str, extra: str, error: Exception | None = None) -> ConfigError:
    """The error for a package that is not installed."""
    said = f" ({_first_line(error)})" if error is not None else ""
    return ConfigError(
        f"{env_id!r} needs the package {package}, which is not installed{said}",
        path=_PATH,
        hint=f'pip install "uniarena[{extra}]"',
    )


def missing_for(env_id: str, spec: EnvSpec | None, error: Exception) -> ConfigError:
    """The error for a dependency that showed as missing only when the environment was made."""
    entry = str(spec.entry_point) if spec is not None else ""
    for word, (package, extra) in _NEEDS.items():
        if f".{word}." in entry or f".{word}:" in entry:
            return missing(env_id, package, extra, error)
    return ConfigError(
        f"{env_id!r} cannot be made: {error}", path=_PATH, hint="install what the message names"
    )


def suggestion(env_id: str) -> str:
    """The nearest registered id as a hint."""
    near = closest(env_id, gym.registry)
    return (
        f"did you mean {near}?"
        if near
        else "`uniarena list envs` shows ids; your own class is package.module:Name"
    )


def _gymnasium(env_id: str) -> Known:
    modern = modern_id(env_id)
    if modern is not None:
        new, change = modern
        notice(f"{env_id} is an old id; {new} is used in its place{'; ' + change if change else ''}")
        env_id = new
    try:
        spec = gym.spec(env_id)
    except gym.error.Error as error:
        raise ConfigError(
            f"there is no environment {env_id!r}: {_first_line(error)}", path=_PATH, hint=suggestion(env_id)
        ) from error
    return Known(env_id, functools.partial(make_spec, lean(spec), env_id), spec)


def lean(spec: EnvSpec) -> EnvSpec:
    """The spec without gymnasium's passive checker and order check: `uniarena check-env` does more, once."""
    spec = copy.deepcopy(spec)
    spec.order_enforce, spec.disable_env_checker = False, True
    return spec


def make_spec(spec: EnvSpec, env_id: str, **kwargs: Any) -> gym.Env:
    """One environment of a gymnasium spec. The spec travels to worker processes, where its id may be unknown.

    Raises:
        ConfigError: a missing dependency, with the extra.
    """
    if ".mujoco" in str(spec.entry_point):
        tell_once()
    try:
        env = gym.make(spec, disable_env_checker=True, **kwargs)
    except gym.error.DependencyNotInstalled as error:
        raise missing_for(env_id, spec, error) from error
    except ModuleNotFoundError as error:
        raise missing_for(env_id, spec, error) from error
    if env_id.startswith(("MiniGrid-", "BabyAI-")):
        from uniarena.envs.minigrid import without_fixed_mission

        return without_fixed_mission(env, env_id)
    return env


def _by_import_path(env_id: str) -> Known:
    """`package.module:Name`: a class or factory of the user, or a gymnasium id that the module registers."""
    module, _, name = env_id.partition(":")
    try:
        return Known(env_id, registry.import_object(env_id))
    except registry.UnknownNameError as error:
        try:
            importlib.import_module(module)
            known = _gymnasium(name)
        except (ImportError, TypeError, ConfigError):  # a TypeError: a relative path
            raise ConfigError(str(error.args[0]), path=_PATH, hint=error.hint) from error
        return known._replace(env_id=env_id)
    except registry.RegistryError as error:
        raise ConfigError(str(error.args[0]), path=_PATH, hint=error.hint) from error


def _import_provider(env_id: str) -> None:
    for provider in _PROVIDERS:
        if re.match(provider.pattern, env_id):
            module = _import(env_id, provider.module, provider.extra)
            if provider.module == "minatar":
                if not any(name.startswith("MinAtar/") for name in gym.registry):
                    importlib.import_module("minatar.gym").register_envs()
            else:
                gym.register_envs(module)


def _import(env_id: str, module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing(env_id, error.name or module, extra) from error


def _envpool(env_id: str, rest: str) -> Known:
    _import(env_id, "envpool", "envpool")
    return Known(env_id, task=rest)


def _procgen(env_id: str, rest: str) -> Known:
    """`procgen/coinrun[-easy]`: EnvPool's port. Without a suffix it is Procgen's default, hard."""
    _import(env_id, "envpool", "envpool")
    name, _, mode = rest.partition("-")
    return Known(env_id, task=f"{name.capitalize()}{(mode or 'hard').capitalize()}-v0")


def _dm_control(env_id: str, rest: str) -> Known:
    _import(env_id, "dm_control", "dm-control")
    from uniarena.envs.dm_control import DMControl

    return Known(env_id, functools.partial(DMControl, rest))


def _metaworld(env_id: str, rest: str) -> Known:
    gym.register_envs(_import(env_id, "metaworld", "metaworld"))
    return _gymnasium("Meta-World/MT1")._replace(env_id=env_id, kwargs={"env_name": rest})


def _gymnax(env_id: str, rest: str) -> Known:
    for module in ("jax", "gymnax"):
        _import(env_id, module, "gymnax")
    from uniarena.envs.gymnax import GymnaxSimulator

    return Known(env_id, functools.partial(GymnaxSimulator, rest))


def _old_gym(env_id: str, rest: str) -> Known:
    """`gym/CartPole-v1`: the old gym's own registry."""
    old = _import(env_id, "gym", "legacy-gym")
    return Known(env_id, functools.partial(old.make, rest))


_SPECIAL: dict[str, Callable[[str, str], Known]] = {
    "envpool": _envpool,
    "procgen": _procgen,
    "dm_control": _dm_control,
    "metaworld": _metaworld,
    "gym": _old_gym,
    "gymnax": _gymnax,
}


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
