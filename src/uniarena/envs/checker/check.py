"""`check_env`: from an id, a class, a function or an environment to the list of what is wrong."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from gymnasium import spaces
from gymnasium.vector import VectorEnv

from uniarena.config import ConfigError
from uniarena.envs import ids
from uniarena.envs.checker.batched import (
    BatchedView,
    check_batched,
    shared_instances,
    shared_problem,
    stack_samples,
)
from uniarena.envs.checker.declared import declared_space
from uniarena.envs.checker.problem import Findings, Problem, raised
from uniarena.envs.checker.single import SingleCheck, compare_runs, lacks
from uniarena.envs.checker.source import class_line, return_lines
from uniarena.envs.make import make_env
from uniarena.seeding import preserved_globals

BATCH = 4
"""Columns of a batched environment that is made here."""


def check_env(
    env: Any, *, steps: int = 100, seed: int = 0, kwargs: dict[str, Any] | None = None
) -> list[Problem]:
    """What is wrong with an environment, each finding with key, expected, got, fix and line.

    Stepped with random actions under `seed`, twice; the global random streams are left as they were. It
    never raises because of a faulty environment and does not stop at the first fault.

    Args:
        env: a Gymnasium id, `module:Class`, a class or function that makes one, an environment (single,
            Gymnasium vector, tensor simulator or UniArena's own), or a list of functions as vector
            environments take them. From an instance the second run is made with the same object.
        steps: environment steps of a run.
        seed: seed of the environment and of the actions.
        kwargs: arguments of the class, function or id.

    Returns:
        The problems found, in the order of their discovery; empty for a good environment.
    """
    findings = Findings()
    with preserved_globals(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what spaces warn of is told here, in full
        try:
            _check(env, findings, steps, seed, kwargs or {})
        except Exception as error:  # an attribute or a space that raises: told like all else
            findings.add(raised("check", error))
    return findings.problems


def _check(env: Any, findings: Findings, steps: int, seed: int, kwargs: dict[str, Any]) -> None:
    made: list[Any] = []
    try:
        instance, again = _open(env, findings, kwargs, made)
        if instance is None:
            return
        if (view := _batched_view(instance, findings)) is not None:
            check_batched(view, findings, steps, seed)
        else:
            _check_single(instance, again, findings, steps, seed)
    finally:
        for other in made:
            _close(other)


def _open(
    env: Any, findings: Findings, kwargs: dict[str, Any], made: list[Any]
) -> tuple[Any, Callable[[], Any] | None]:
    """(environment, function that makes another one); what was made here is noted in `made`."""

    def build(factory: Callable[[], Any]) -> Any:
        try:
            instance = factory()
        except ConfigError:
            raise  # a package that is missing, say: no fault of the environment
        except Exception as error:
            findings.add(raised("construction", error, "an environment"))
            return None
        if instance is None:
            findings.add(
                Problem(
                    "nothing returned",
                    "construction",
                    "an environment",
                    "None",
                    "end the function with `return env`",
                )
            )
            return None
        made.append(instance)
        return instance

    if isinstance(env, Sequence) and not isinstance(env, str):
        if not env:
            findings.add(
                Problem(
                    "missing", "envs", "functions that make environments", "an empty list", "give one or more"
                )
            )
        instances = [build(factory) for factory in env]
        present = [instance for instance in instances if instance is not None]
        if pairs := shared_instances(present):
            findings.add(shared_problem(pairs, class_line(present[0])))
        return (present[0] if present else None), None
    factory = _factory(env, kwargs)
    if factory is None:
        return env, None
    instance = build(factory)
    if instance is None:
        return None, None

    def again() -> Any:
        other = build(factory)
        if other is not None and (pairs := shared_instances([instance, other])):
            findings.add(shared_problem(pairs, class_line(instance)))
        return other

    return instance, again


def _factory(env: Any, kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """What makes the environment; None where `env` is one already."""
    if isinstance(env, str):
        return lambda: _by_id(env, kwargs)
    if isinstance(env, type) or (callable(env) and not hasattr(env, "step")):
        return lambda: _call(env, kwargs)
    return None


def _by_id(env_id: str, kwargs: dict[str, Any]) -> Any:
    known = ids.resolve(env_id)
    if known.make is None:
        return make_env(env_id, BATCH, kwargs=kwargs)
    return _call(known.make, {**known.kwargs, **kwargs})


def _call(make: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Call it; what has no number of environments by itself gets a small one."""
    try:
        columns = inspect.signature(make).parameters.get("num_envs")
    except (TypeError, ValueError):
        columns = None
    if columns is not None and columns.default is columns.empty:
        kwargs = {"num_envs": BATCH, **kwargs}
    return make(**kwargs)


def _check_single(
    env: Any, again: Callable[[], Any] | None, findings: Findings, steps: int, seed: int
) -> None:
    observation_space = declared_space(env, "observation_space", findings)
    action_space = declared_space(env, "action_space", findings)
    if lacks(env, "step"):
        findings.add(
            Problem(
                "missing",
                "step()",
                "a method step(self, action)",
                "no such method",
                "def step(self, action): …; return obs, reward, terminated, truncated, {}",
                class_line(env),
            )
        )
        return
    check = SingleCheck(findings, observation_space, action_space)
    first = check.run(env, steps, seed)
    other = env if again is None else again()
    if other is None:
        return
    actions = [moment.action for moment in first if moment.action is not None]
    second = check.run(other, len(actions), seed, actions)
    for problem in compare_runs(first, second, seed):
        method = "reset" if problem.key.startswith("reset") else "step"
        findings.add(problem, lambda method=method: return_lines(env, method))  # type: ignore[misc]


def _batched_view(env: Any, findings: Findings) -> BatchedView | None:
    """How to call a batched environment; None for a single one."""
    num_envs = getattr(env, "num_envs", None)
    if not isinstance(num_envs, int):
        return None
    if isinstance(env, VectorEnv) or hasattr(env, "single_observation_space"):
        space = declared_space(env, "observation_space", findings, "single_observation_space")
        declared_space(env, "action_space", findings, "single_action_space")
        env.action_space.seed(0)
        return BatchedView(
            env,
            num_envs,
            space,
            lambda seed: env.reset(seed=seed)[0],
            lambda action: env.step(action)[:4],
            env.action_space.sample,
        )
    space = declared_space(env, "observation_space", findings)
    own = getattr(env, "action_map", None)
    device = getattr(env, "device", "cpu") if getattr(env, "tensor", own is None) else None
    actions = declared_space(env, "action_space", findings) if own is None else own.policy_space
    if actions is None:
        return None
    actions.seed(0)
    sample = lambda: stack_samples(actions, num_envs, device)  # noqa: E731

    def shown(obs: Any) -> Any:
        plain = isinstance(obs, dict) and not isinstance(
            space, spaces.Dict
        )  # Isaac's groups: the policy's is the one
        return next((obs[key] for key in ("policy", "obs") if key in obs), obs) if plain else obs

    def step(action: Any) -> tuple[Any, Any, Any, Any]:
        result = env.step(action)
        if own is not None:
            return result.obs, result.reward, result.terminated, result.truncated
        if len(result) == 5:
            return shown(result[0]), *result[1:4]
        obs, reward, done, extras = result
        timeouts = extras.get("time_outs", done & False)
        return shown(obs), reward, done & ~timeouts, timeouts

    def reset(seed: int) -> Any:
        if own is not None:
            return env.reset(seed=seed)
        result = env.reset(seed=seed)
        return shown(result[0] if isinstance(result, tuple) else result)

    return BatchedView(env, num_envs, space, reset, step, sample)


def _close(env: Any) -> None:
    try:
        env.close()
    except Exception:  # a faulty environment may fail here too; there is nothing more to learn from it
        return
