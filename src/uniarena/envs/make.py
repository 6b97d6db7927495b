"""make_env: from an id, a class, a function or an object to a batched environment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from uniarena.config import ConfigError, WorkersConfig, component
from uniarena.envs import ids
from uniarena.envs.envpool import EnvPoolVector, make_envpool
from uniarena.envs.masks import MaskObs
from uniarena.envs.protocol import Env
from uniarena.envs.serial import SerialEnvs, refuse_shared
from uniarena.envs.simulators import TENSOR_FORMS, tensor_form
from uniarena.envs.single import SingleMaker, Wrap, call_with, split_wrappers
from uniarena.envs.sync import sync_vector
from uniarena.envs.tensor import TensorEnvs, is_tensor_env
from uniarena.envs.vector import VectorEnvs
from uniarena.envs.workers import WorkerEnvs

_HOW = ("auto", "serial", "sync", "async", "native", "envpool", "tensor")


@dataclass(frozen=True)
class _Order:
    """What was asked for, beside the environment itself."""

    num_envs: int
    vectorization: str
    seed: int | None
    kwargs: Mapping[str, Any]
    max_episode_steps: int | None
    action_mask: str
    wraps: Sequence[Wrap] = ()
    workers: WorkersConfig | None = None


def make_env(
    spec: Any,
    num_envs: int = 1,
    *,
    wrappers: Sequence[Any] = (),
    vectorization: str | WorkersConfig = "auto",
    seed: int | None = None,
    kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    action_mask: str = "auto",
) -> Env:
    """A batched environment of `num_envs` columns.

    Args:
        spec: an id (`CartPole-v1`, `ALE/Pong-v5`, `dm_control/cartpole-swingup`, `envpool/Pong-v5`, …), an
            import path `package.module:Name`, a class, a function that returns an environment, a list of
            such functions, or an environment object (single, vector, EnvPool or tensor simulator).
        num_envs: columns; an object that is batched already keeps its own number.
        wrappers: from the innermost: names, maps `{"type": name, …}`, wrapper classes; gymnasium wrappers
            (classes, import paths, or functions env → env) go around each single environment and come first.
        vectorization: `serial` steps single environments in this process (the default), `async` in worker
            processes; a `WorkersConfig` is `async` with these settings. `sync` is gymnasium's own serial form,
            `native` its vector entry point, `envpool` EnvPool; `tensor` is for simulators, and for ids that have
            a tensor form here (`CartPole-v1`, `Pendulum-v1`).
        seed: for the first reset, where `reset` is given none.
        kwargs: arguments of the environment.
        max_episode_steps: time limit in steps.
        action_mask: `auto`, `info`, `none`, or the key of info or of the observation that holds the mask.

    Returns:
        The environment. Unless `spec` was an object, its `factory(num_envs, seed, wrappers, first)` makes another of
        the same pipeline, as evaluation needs one, or a part of it from column `first` of a list on.

    Raises:
        ConfigError: unknown ids, missing packages (with the extra to install), spaces or combinations that
            cannot work.
        TypeError: a class that lacks `reset`, `step` or spaces, with the lines to write.
        ValueError: the same object for several columns.
        WorkerError: a worker could not make its environments.
    """
    workers = vectorization if isinstance(vectorization, WorkersConfig) else None
    vectorization = "async" if isinstance(vectorization, WorkersConfig) else vectorization
    if vectorization not in _HOW:
        raise ConfigError(
            f"vectorization is {vectorization!r}; expected one of {', '.join(_HOW)}",
            path="environment.vectorization",
        )
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}; expected 1 or more", path="environment.num_envs")
    wrappers = [wrappers] if isinstance(wrappers, (str, Mapping)) else wrappers
    wraps, outer = split_wrappers(wrappers)
    order = _Order(
        num_envs, vectorization, seed, dict(kwargs or {}), max_episode_steps, action_mask, wraps, workers
    )
    env = _wrapped(_build(spec, order), outer)
    makers = spec if isinstance(spec, (list, tuple)) else [spec]
    if all(isinstance(maker, str) or _is_maker(maker) for maker in makers):
        env.factory = partial(_again, spec, tuple(wrappers), dict(kwargs or {}), order)  # type: ignore[attr-defined]
    return env


def _wrapped(env: Env, outer: Sequence[tuple[int, Any]]) -> Env:
    """Our wrappers around the batch, from the innermost; the environment is closed if one refuses."""
    try:
        for index, item in outer:
            wrapper, cfg = component("wrapper", item, f"environment.wrappers.{index}")
            env = wrapper(env, cfg)
    except Exception:
        env.close()
        raise
    return env


def _again(
    spec: Any,
    given: Sequence[Any],
    kwargs: dict[str, Any],
    order: _Order,
    num_envs: int,
    seed: int | None = None,
    wrappers: Sequence[Any] = (),
    first: int = 0,
) -> Env:
    """The same pipeline once more, with further wrappers around it; pictures are asked for where they are recorded."""
    if any(isinstance(item, Mapping) and item.get("type") == "record_video" for item in wrappers):
        kwargs = {"render_mode": "rgb_array", **kwargs}
    if isinstance(spec, (list, tuple)):
        spec = [spec[(first + column) % len(spec)] for column in range(num_envs)]
    options = {name: getattr(order, name) for name in ("max_episode_steps", "action_mask")}
    options["vectorization"] = order.workers or order.vectorization
    return make_env(spec, num_envs, wrappers=(*given, *wrappers), seed=seed, kwargs=kwargs, **options)


def _build(spec: Any, order: _Order) -> Env:
    if isinstance(spec, str):
        return _by_id(spec, order)
    if isinstance(spec, (list, tuple)):
        return _from_list(list(spec), order)
    if _is_maker(spec):
        return _from_factory(spec, getattr(spec, "__name__", type(spec).__name__), order)
    return _from_object(spec, type(spec).__name__, order)


def _by_id(env_id: str, order: _Order) -> Env:
    known = ids.resolve(env_id)
    order = replace(order, kwargs={**known.kwargs, **order.kwargs})
    if known.task is not None or order.vectorization == "envpool":
        return _pool(known.env_id, known.task or known.env_id.removeprefix("ALE/"), order)
    if known.make is None:
        raise ConfigError(
            f"{env_id!r} runs by EnvPool only", path="environment.vectorization", hint="set it to auto"
        )
    if known.spec is None:
        return _from_factory(known.make, known.env_id, order)
    if order.vectorization == "native":
        return _native(known, order)
    if order.vectorization == "tensor":
        return _tensor(known, order)
    if order.max_episode_steps is not None:  # gymnasium's own limit is replaced, not added to
        order = replace(
            order,
            kwargs={**order.kwargs, "max_episode_steps": order.max_episode_steps},
            max_episode_steps=None,
        )
    return _columns(known.make, known.env_id, order)


def _from_factory(make: Callable[..., Any], env_id: str, order: _Order) -> Env:
    """A class or function: batched if it takes `num_envs` or gives a batch, else a column per call."""
    if _takes(make, "num_envs"):
        extra = {"num_envs": order.num_envs}
        if order.max_episode_steps is not None and _takes(make, "max_episode_steps"):
            extra["max_episode_steps"] = order.max_episode_steps
            order = replace(order, max_episode_steps=None)
        return _from_object(call_with(make, {**order.kwargs, **extra}, env_id), env_id, order)
    if not isinstance(make, type):
        first = call_with(make, order.kwargs, env_id)
        if _is_batched(first):
            return _from_object(first, env_id, order)
        return _columns(make, env_id, order, first)
    return _columns(make, env_id, order)


def _from_list(entries: list[Any], order: _Order) -> Env:
    """One function or object per column."""
    if not entries:
        raise ConfigError("an empty list of environments was given", path="environment.id", hint="list some")
    if order.num_envs not in (1, len(entries)):
        raise ConfigError(
            f"num_envs is {order.num_envs}, but {len(entries)} environments are listed",
            path="environment.num_envs",
        )
    names = {getattr(entry, "__name__", type(entry).__name__) for entry in entries}
    env_id, order = ", ".join(sorted(names)), replace(order, num_envs=len(entries))
    makes = [entry if _is_maker(entry) else _Given(entry) for entry in entries]
    makers = [SingleMaker(make, env_id, order.kwargs, order.max_episode_steps, order.wraps) for make in makes]
    return _assemble(makers, env_id, order)


def _from_object(env: Any, env_id: str, order: _Order) -> Env:
    """An environment that exists already."""
    if isinstance(env, Env) and hasattr(env, "action_map"):
        return _accept(env, order, ("auto", order.vectorization))
    if isinstance(env, VectorEnv):
        if hasattr(env, "config") and "batch_size" in getattr(env, "config", ()):
            env = EnvPoolVector(env)
        kinds = ("auto", "native", "envpool" if isinstance(env, EnvPoolVector) else _kind(env))
        refuse_shared(getattr(env.unwrapped, "envs", ()), env_id)  # gymnasium's serial one
        return _accept(VectorEnvs(env, env_id, order.seed, order.action_mask), order, kinds)
    if _is_batched(env):
        return _accept(TensorEnvs(env, env_id, order.seed, order.action_mask), order, ("auto", "tensor"))
    if order.num_envs != 1:
        raise ConfigError(
            f"one {type(env).__name__} object cannot be {order.num_envs} environments: each column steps "
            "its own",
            path="environment.num_envs",
            hint="give the class, or a function that makes a new one at every call",
        )
    return _columns(_Given(env), env_id, order)


def _accept(env: Env, order: _Order, kinds: Sequence[str]) -> Env:
    """Refuse options that something batched cannot follow."""
    fault = ""
    if order.vectorization not in kinds:
        path, fault = "vectorization", f"vectorization: {order.vectorization} does not fit"
    elif order.num_envs not in (1, env.num_envs):
        path, fault = "num_envs", f"num_envs is {order.num_envs}, but it has {env.num_envs}"
    elif order.max_episode_steps is not None:
        path, fault = (
            "max_episode_steps",
            "max_episode_steps cannot be set from outside; it has a limit of its own",
        )
    elif order.wraps:
        path, fault = "wrappers", "gymnasium's single-environment wrappers cannot reach inside it"
    if fault:
        env.close()
        raise ConfigError(
            f"{env.env_id} is batched already: {fault}", path=f"environment.{path}", hint="remove the key"
        )
    return env


def _columns(make: Callable[..., Any], env_id: str, order: _Order, first: Any = None) -> Env:
    maker = SingleMaker(make, env_id, order.kwargs, order.max_episode_steps, order.wraps)
    return _assemble([maker] * order.num_envs, env_id, order, first)


def _assemble(makers: Sequence[SingleMaker], env_id: str, order: _Order, first: Any = None) -> Env:
    """Columns from makers, stepped as was chosen. `first`: an environment that was made already."""
    how = order.vectorization
    if how not in ("auto", "serial", "sync", "async"):
        raise ConfigError(
            f"{env_id!r} is a single environment; vectorization: {how} does not fit",
            path="environment.vectorization",
            hint="choose auto, serial, sync or async",
        )
    probe = makers[0]() if first is None else makers[0].finish(first)
    try:
        source = makers[0].find_mask(probe, order.action_mask)
        makers = [maker.at(column, source) for column, maker in enumerate(makers)]
        own = probe if source is None else MaskObs(probe, source)
        if how == "async":
            given = isinstance(makers[0].make, _Given)  # workers get copies of what was given
            if not given:
                probe.close()
            spaces = (own.observation_space, own.action_space)
            workers = WorkerEnvs(makers, spaces, env_id, order.seed, order.workers)
            if given:
                workers.example = own
            return workers
        envs = [own, *(maker() for maker in makers[1:])]
        refuse_shared(envs, env_id)
    except Exception:
        probe.close()
        raise
    if how == "sync":
        vector = sync_vector([_Given(env) for env in envs])
        return VectorEnvs(vector, env_id, order.seed, action_mask=None)
    return SerialEnvs(envs, env_id, order.seed)


def _native(known: ids.Known, order: _Order) -> Env:
    if known.spec is None or known.spec.vector_entry_point is None:
        raise ConfigError(
            f"{known.env_id!r} has no vector entry point",
            path="environment.vectorization",
            hint="choose serial, sync or async",
        )
    limit = {} if order.max_episode_steps is None else {"max_episode_steps": order.max_episode_steps}
    make = _VectorMaker(known.spec, order.num_envs)
    try:
        vector = call_with(make, {**order.kwargs, **limit}, known.env_id)
    except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise ids.missing_for(known.env_id, known.spec, error) from error
    order = replace(order, max_episode_steps=None)
    return _accept(VectorEnvs(vector, known.env_id, order.seed, order.action_mask), order, ("native",))


def _tensor(known: ids.Known, order: _Order) -> Env:
    """The tensor form of a gymnasium id: one of ours, or a simulator that registers ids, as Isaac Lab does."""
    form = tensor_form(known.env_id)
    if form is not None:
        return _from_factory(form, known.env_id, order)
    assert known.make is not None
    env = call_with(known.make, order.kwargs, known.env_id)
    if not _is_batched(env.unwrapped):
        env.close()
        raise ConfigError(
            f"{known.env_id!r} has no tensor form; there are those of {', '.join(TENSOR_FORMS)}, gymnax/… and your own",
            path="environment.vectorization",
            hint="set it to auto; a simulator of your own is package.module:Name (docs/environments.md)",
        )
    return _from_object(env.unwrapped, known.env_id, order)


def _pool(env_id: str, task: str, order: _Order) -> Env:
    limit = {} if order.max_episode_steps is None else {"max_episode_steps": order.max_episode_steps}
    try:
        vector = make_envpool(task, order.num_envs, order.seed, {**order.kwargs, **limit})
    except ModuleNotFoundError as error:
        raise ids.missing(env_id, "envpool", "envpool") from error
    order = replace(order, max_episode_steps=None)
    return _accept(VectorEnvs(vector, env_id, order.seed, order.action_mask), order, ("auto", "envpool"))


class _VectorMaker:
    """gymnasium.make_vec by the vector entry point."""

    def __init__(self, spec: Any, num_envs: int) -> None:
        self.spec, self.num_envs = ids.lean(spec), num_envs

    def __call__(self, **kwargs: Any) -> VectorEnv:
        return gym.make_vec(self.spec, self.num_envs, vectorization_mode="vector_entry_point", **kwargs)


class _Given:
    """A maker that always gives the object it holds; asked for two columns, the shared object is noticed."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __call__(self, **kwargs: Any) -> Any:
        if kwargs:
            raise ConfigError(
                f"a {type(self.env).__name__} object is made already; arguments {sorted(kwargs)} cannot "
                "reach it",
                path="environment.kwargs",
                hint="give its class instead",
            )
        return self.env


def _is_maker(spec: Any) -> bool:
    """A class or a function, as opposed to an environment (which may be callable too)."""
    return isinstance(spec, type) or (callable(spec) and not hasattr(spec, "step"))


def _is_batched(env: Any) -> bool:
    return (
        isinstance(env, VectorEnv)
        or is_tensor_env(env)
        or (hasattr(env, "action_map") and hasattr(env, "num_envs"))
    )


def _kind(vector: VectorEnv) -> str:
    base = vector.unwrapped
    return (
        "sync"
        if isinstance(base, SyncVectorEnv)
        else "async"
        if isinstance(base, AsyncVectorEnv)
        else "native"
    )


def _takes(make: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(make).parameters
    except (TypeError, ValueError):
        return False
