"""Checks of batched environments: Gymnasium vector envs, tensor simulators, UniArena's own `Env`.

A fault of the batch is told as one; a fault of a single environment in it is told as that of its column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from uniarena.batch import Tree, tree_map, tree_paths
from uniarena.envs.checker.problem import Findings, Problem, raised
from uniarena.envs.checker.single import Moment, compare_runs
from uniarena.envs.checker.source import class_line, return_lines
from uniarena.envs.checker.values import as_array, check_value

COLUMNS = 4
"""Columns whose observations are looked at one by one."""


@dataclass
class BatchedView:
    """One way of calling all kinds of batched environments.

    Attributes:
        reset: seed → obs.
        step: batched action → (obs, reward, terminated, truncated).
        sample: () → batched random action.
    """

    env: Any
    num_envs: int
    observation_space: Space[Any] | None
    reset: Callable[[int], Any]
    step: Callable[[Any], tuple[Any, Any, Any, Any]]
    sample: Callable[[], Any]


def check_batched(view: BatchedView, findings: Findings, steps: int, seed: int) -> None:
    """Run twice with the same seed and actions; check shapes, columns, shared instances and repeatability."""
    _check_shared(view.env, findings)
    actions: list[Any] = []
    first = _run(view, findings, steps, seed, actions)
    second = _run(view, findings, len(actions), seed, list(actions))
    for problem in compare_runs(first, second, seed):
        findings.add(problem, lambda: return_lines(view.env, "step"))


def shared_instances(envs: list[Any]) -> list[tuple[int, int]]:
    """Pairs of positions that hold one and the same environment object."""
    seen: dict[int, int] = {}
    pairs = []
    for i, env in enumerate(envs):
        base = getattr(env, "unwrapped", env)
        if id(base) in seen:
            pairs.append((seen[id(base)], i))
        seen.setdefault(id(base), i)
    return pairs


def shared_problem(pairs: list[tuple[int, int]], line: str) -> Problem:
    """What is said about environments that are one object."""
    return Problem(
        "shared instance",
        "envs",
        "one object per environment",
        f"environments {pairs[0][0]} and {pairs[0][1]} are the same",
        "construct inside the function: `lambda: MyEnv()`, not `env = MyEnv(); lambda: env`",
        line,
    )


def _check_shared(env: Any, findings: Findings) -> None:
    envs = getattr(getattr(env, "unwrapped", env), "envs", None)
    if isinstance(envs, (list, tuple)) and (pairs := shared_instances(list(envs))):
        findings.add(shared_problem(pairs, class_line(envs[0])))


def _run(view: BatchedView, findings: Findings, steps: int, seed: int, actions: list[Any]) -> list[Moment]:
    replay = list(actions)
    try:
        obs = view.reset(seed)
    except Exception as error:
        findings.add(raised("reset()", error))
        return []
    _check_obs(view, obs, "reset", findings)
    moments = [Moment("reset()", None, _copies(obs), None, (None, None))]
    for k in range(steps):
        try:
            action = replay[k] if k < len(replay) else view.sample()
            obs, reward, terminated, truncated = view.step(action)
        except Exception as error:
            findings.add(raised("step()", error))
            break
        if k >= len(replay):
            actions.append(action)
        _check_obs(view, obs, "step", findings)
        _check_rows(view, "reward", reward, "iuf", "a number per environment", findings)
        _check_rows(view, "terminated", terminated, "b", "a bool per environment", findings)
        _check_rows(view, "truncated", truncated, "b", "a bool per environment", findings)
        ended = (_copy(terminated), _copy(truncated))
        moments.append(Moment(f"step {k + 1}", action, _copies(obs), _copy(reward), ended))
    return moments


def _check_obs(view: BatchedView, obs: Tree, method: str, findings: Findings) -> None:
    key = f"{method}() obs"
    for path, leaf in tree_paths(obs):
        name = f"{key}[{path!r}]" if path else key
        shape = getattr(leaf, "shape", None)
        if shape is None or len(shape) == 0 or shape[0] != view.num_envs:
            got = f"shape {tuple(shape)}" if shape is not None else type(leaf).__name__
            findings.add(
                Problem(
                    "wrong shape",
                    name,
                    f"first axis {view.num_envs}, one row per environment",
                    got,
                    "return the observations of all environments in one array",
                ),
                lambda: return_lines(view.env, method),
            )
            return
    if view.observation_space is None:
        return
    for column in range(min(COLUMNS, view.num_envs)):
        row = tree_map(lambda leaf, b=column: leaf[b], obs)
        for problem in check_value(view.observation_space, row, key):
            told = replace(problem, got=f"{problem.got} (environment {column})")
            findings.add(told, lambda: return_lines(view.env, method))


def _check_rows(view: BatchedView, name: str, rows: Any, kinds: str, wanted: str, findings: Findings) -> None:
    array = as_array(rows)
    key, shape = f"step() {name}", (view.num_envs,)
    if array is None or array.dtype.kind not in kinds:
        got = type(rows).__name__ if array is None else f"{array.dtype} of shape {array.shape}"
        problem = Problem("wrong type", key, wanted, got, f"return an array of shape {shape}")
    elif array.shape != shape:
        problem = Problem("wrong shape", key, f"{shape}, {wanted}", str(array.shape), f"reshape to {shape}")
    elif not np.isfinite(array).all():
        column = int(np.argmin(np.isfinite(array)))
        problem = Problem(
            "not finite",
            key,
            "finite numbers",
            f"{array[column]} (environment {column})",
            "find the 0/0, log(0) or overflow behind it",
        )
    else:
        return
    findings.add(problem, lambda: return_lines(view.env, "step"))


def _copies(obs: Tree) -> list[tuple[str, Any]]:
    return [(path, _copy(leaf)) for path, leaf in tree_paths(obs)]


def _copy(leaf: Any) -> np.ndarray | None:
    array = as_array(leaf)
    return None if array is None else array.copy()


def stack_samples(space: Space[Any], count: int, device: Any = None) -> Tree:
    """`count` samples of a space, `[B, …]`: NumPy, or torch on `device` where one is given."""
    samples = [space.sample() for _ in range(count)]
    stacked = tree_map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *samples)
    return stacked if device is None else tree_map(lambda leaf: torch.as_tensor(leaf, device=device), stacked)
