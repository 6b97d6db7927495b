"""Checks of one environment with `reset` and `step`; the two forms of old gym are recognised."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import Space, spaces

from uniarena.batch import tree_paths
from uniarena.envs.checker.problem import Findings, Level, Problem, raised
from uniarena.envs.checker.source import class_line, def_line, return_lines
from uniarena.envs.checker.values import as_array, check_flag, check_info, check_reward, check_value
from uniarena.envs.legacy import is_legacy
from uniarena.envs.spaces import MASK, mask_size

MISSING = object()


class Moment(NamedTuple):
    """What one call gave, for the comparison of two runs. `action` is None for a reset."""

    call: str
    action: Any
    obs: list[tuple[str, Any]]
    reward: Any
    ended: tuple[Any, Any]


class SingleCheck:
    """Steps one environment with random actions and reports each fault once.

    It goes on after a fault wherever that makes sense: an exception in `step` ends the stepping, nothing
        else does.
    """

    def __init__(
        self, findings: Findings, observation_space: Space[Any] | None, action_space: Space[Any] | None
    ) -> None:
        self.findings = findings
        self.observation_space = observation_space
        self.action_space = action_space
        self._watched: list[tuple[str, Any, Any]] = []

    def run(self, env: Any, steps: int, seed: int, actions: list[Any] | None = None) -> list[Moment]:
        """Reset with `seed`, then up to `steps` steps; `actions` repeats an earlier run."""
        if self.action_space is not None:
            self.action_space.seed(seed)
        self._watched = []
        moments: list[Moment] = []
        obs, info = self._reset(env, seed)
        if obs is MISSING and info is MISSING:
            return moments
        moments.append(Moment("reset()", None, _leaves(obs), None, (None, None)))
        for k in range(steps):
            action = actions[k] if actions is not None and k < len(actions) else self._sample(obs, info)
            if action is MISSING:
                break
            result = self._call(env, "step", lambda a=action: env.step(a))
            if result is MISSING:
                break
            obs, reward, ended, info = self._read_step(env, result)
            moments.append(Moment(f"step {k + 1}", action, _leaves(obs), reward, ended))
            if any(as_array(flag) is not None and np.any(as_array(flag)) for flag in ended):
                obs, info = self._reset(env, None)
                if obs is MISSING and info is MISSING:
                    break
                moments.append(Moment(f"reset() after step {k + 1}", None, _leaves(obs), None, (None, None)))
        return moments

    # reset

    def _reset(self, env: Any, seed: int | None) -> tuple[Any, Any]:
        """(obs, info); MISSING for what did not come."""
        if lacks(env, "reset"):
            self.findings.add(
                Problem(
                    "missing",
                    "reset()",
                    "a method reset(self, *, seed=None, options=None)",
                    "no such method",
                    "def reset(self, *, seed=None, options=None): …; return obs, {}",
                    class_line(env),
                )
            )
            return MISSING, MISSING
        if seed is None or "seed" in self._refused:
            result = self._call(env, "reset", lambda: env.reset())
        else:
            result = self._seeded_reset(env, seed)
        if result is MISSING:
            return MISSING, MISSING
        obs, info = self._read_reset(env, result)
        if obs is not MISSING:
            self._check_obs(env, obs, "reset")
        return obs, info

    _refused: frozenset[str] = frozenset()

    def _seeded_reset(self, env: Any, seed: int) -> Any:
        try:
            return self._watch(lambda: env.reset(seed=seed), env, "reset")
        except TypeError as error:
            if "seed" not in str(error):
                return self._raised(env, "reset", error)
            self._refused = frozenset({"seed"})
            problem = Problem(
                "missing argument",
                "reset()",
                "reset(self, *, seed=None, options=None)",
                str(error),
                "take seed and options, and begin with super().reset(seed=seed)",
                def_line(env, "reset"),
                _old_style(env),
            )
            self._tell(env, problem, "reset")
            if callable(getattr(env, "seed", None)):
                self._call(env, "seed", lambda: env.seed(seed))
            return self._call(env, "reset", lambda: env.reset())
        except Exception as error:
            return self._raised(env, "reset", error)

    def _read_reset(self, env: Any, result: Any) -> tuple[Any, Any]:
        expected = "(obs, info)"
        if result is None:
            problem = Problem(
                "nothing returned", "reset()", expected, "None", "end reset with `return obs, {}`"
            )
            self._tell(env, problem, "reset")
            return MISSING, {}
        pair = isinstance(result, tuple) and len(result) == 2
        bare_tuple = isinstance(self.observation_space, spaces.Tuple) and not (
            pair and isinstance(result[1], dict)
        )
        if not pair or (bare_tuple and self.observation_space.contains(result)):  # type: ignore[union-attr]
            got = (
                f"a tuple of {len(result)}"
                if isinstance(result, tuple)
                else f"the observation alone ({_type(result)})"
            )
            problem = Problem(
                "wrong return", "reset()", expected, got, "return obs, {}", level=_old_style(env)
            )
            self._tell(env, problem, "reset")
            return (result[0] if isinstance(result, tuple) and not bare_tuple and result else result), {}
        for problem in check_info(result[1], "reset() info"):
            self._tell(env, problem, "reset")
        return result[0], result[1]

    # step

    def _read_step(self, env: Any, result: Any) -> tuple[Any, Any, tuple[Any, Any], Any]:
        """(obs, reward, (terminated, truncated), info) of whatever step returned."""
        expected = "(obs, reward, terminated, truncated, info)"
        fix = "return obs, reward, terminated, truncated, {}"
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            got = f"a tuple of {len(result)}" if isinstance(result, tuple) else _type(result)
            kind = "nothing returned" if result is None else "wrong return"
            self._tell(env, Problem(kind, "step()", expected, got, fix), "step")
            return MISSING, MISSING, (False, False), {}
        if len(result) == 4:
            obs, reward, done, info = result
            ended = (done, False)
            problem = Problem(
                "4-tuple",
                "step()",
                expected,
                "a tuple of 4, as in the old gym: (obs, reward, done, info)",
                "split done: terminated where the task is over, truncated at a time limit; "
                "return obs, reward, terminated, truncated, info",
                level=_old_style(env),
            )
            self._tell(env, problem, "step")
            flags = [(done, "step() done")]
        else:
            obs, reward, terminated, truncated, info = result
            ended = (terminated, truncated)
            flags = [(terminated, "step() terminated"), (truncated, "step() truncated")]
        self._check_obs(env, obs, "step")
        found = [*check_reward(reward), *check_info(info, "step() info")]
        for flag, key in flags:
            found.extend(check_flag(flag, key))
        for problem in found:
            self._tell(env, problem, "step")
        return obs, reward, ended, info

    def _sample(self, obs: Any, info: Any) -> Any:
        """A random action, a legal one where the environment gives a mask."""
        if self.action_space is None:
            return MISSING
        mask = obs.get(MASK) if isinstance(obs, dict) else None
        mask = info.get(MASK) if mask is None and isinstance(info, dict) else mask
        size = mask_size(self.action_space)
        if mask is None or size is None:
            return self.action_space.sample()
        flat = as_array(mask)
        if flat is None or flat.shape != (size,):
            self.findings.add(
                Problem(
                    "wrong shape",
                    MASK,
                    f"({size},), one entry per choice",
                    str(getattr(flat, "shape", None)),
                    "return one 0 or 1 for each choice; for MultiDiscrete those of all its parts in a row",
                )
            )
            return self.action_space.sample()
        nvec = getattr(self.action_space, "nvec", None)
        parts = [flat] if nvec is None else np.split(flat, np.cumsum(nvec)[:-1])
        if not all(part.any() for part in parts):
            self.findings.add(
                Problem(
                    "empty mask",
                    MASK,
                    "at least one allowed action while the episode goes on",
                    "all zero",
                    "end the episode where nothing can be done, or allow an action that does nothing",
                )
            )
            return self.action_space.sample()
        legal = tuple(part.astype(np.int8) for part in parts)
        return self.action_space.sample(mask=legal[0] if nvec is None else legal)

    # shared

    def _check_obs(self, env: Any, obs: Any, method: str) -> None:
        key = f"{method}() obs"
        if obs is None:
            problem = Problem(
                "nothing returned", key, str(self.observation_space), "None", "return the observation"
            )
            self._tell(env, problem, method)
            return
        if self.observation_space is not None:
            for problem in check_value(self.observation_space, obs, key):
                self._tell(env, problem, method)
        self._watched = [
            (f"{key}[{path!r}]" if path else key, leaf, leaf.copy())
            for path, leaf in tree_paths(obs)
            if isinstance(leaf, np.ndarray)
        ]

    def _call(self, env: Any, method: str, call: Any) -> Any:
        try:
            return self._watch(call, env, method)
        except Exception as error:
            return self._raised(env, method, error)

    def _watch(self, call: Any, env: Any, method: str) -> Any:
        """The call, and whether it wrote into the observations handed out before."""
        result = call()
        for key, leaf, copy in self._watched:
            if leaf.shape != copy.shape or not np.array_equal(leaf, copy, equal_nan=leaf.dtype.kind == "f"):
                problem = Problem(
                    "changed in place",
                    key.partition(" ")[2],
                    "a new array at every call",
                    f"{method}() wrote into the array that was returned before",
                    "return a copy: `obs.copy()`",
                )
                self._tell(env, problem, method)
        self._watched = []
        return result

    def _raised(self, env: Any, method: str, error: Exception) -> Any:
        self._tell(env, raised(f"{method}()", error), method)
        return MISSING

    def _tell(self, env: Any, problem: Problem, method: str) -> None:
        self.findings.add(problem, lambda: return_lines(env, method))


def _old_style(env: Any) -> Level:
    """Old-gym ways are adapted where `reset` is of the old form too, and are faults elsewhere."""
    return "warning" if is_legacy(env) else "error"


def lacks(env: Any, method: str) -> bool:
    """Whether nobody wrote `method`: it is absent, or the empty one of `gymnasium.Env`."""
    base = getattr(env, "unwrapped", env)
    own = getattr(type(base), method, None) or getattr(base, method, None)
    return not callable(own) or own is getattr(gymnasium.Env, method)


def compare_runs(first: list[Moment], second: list[Moment], seed: int) -> Iterable[Problem]:
    """The first difference between two runs with the same seed and actions."""
    for a, b in zip(first, second, strict=False):
        for key, x, y in _differences(a, b):
            yield Problem(
                "not repeatable",
                f"{a.call} {key}",
                f"the same as in another run with seed={seed}: {_short(x)}",
                _short(y),
                "draw all randomness from self.np_random, which super().reset(seed=seed) seeds",
            )
            return


def _differences(a: Moment, b: Moment) -> Iterable[tuple[str, Any, Any]]:
    if a.call != b.call:
        yield "end of the episode", a.call, b.call
        return
    for (path, x), (_, y) in zip(a.obs, b.obs, strict=False):
        if not _same(x, y):
            yield f"obs[{path!r}]" if path else "obs", x, y
    if not _same(a.reward, b.reward):
        yield "reward", a.reward, b.reward
    for name, x, y in zip(("terminated", "truncated"), a.ended, b.ended, strict=True):
        if not _same(x, y):
            yield name, x, y


def _same(x: Any, y: Any) -> bool:
    x, y = as_array(x), as_array(y)
    if x is None or y is None:
        return True
    return x.shape == y.shape and np.array_equal(x, y, equal_nan=x.dtype.kind == "f" and y.dtype.kind == "f")


def _leaves(obs: Any) -> list[tuple[str, Any]]:
    if obs is MISSING or obs is None:
        return []
    return [
        (path, None if (array := as_array(leaf)) is None else array.copy()) for path, leaf in tree_paths(obs)
    ]


def _type(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return (
        f"{type(value).__name__}{f' of shape {tuple(shape)}' if shape is not None else ''}"
        if value is not None
        else "None"
    )


def _short(value: Any) -> str:
    text = np.array2string(np.asarray(value), threshold=8, precision=6).replace("\n", " ")
    return text if len(text) <= 100 else text[:97] + "…"
