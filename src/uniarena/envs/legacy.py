"""Environments of the old gym, and anything else with `reset` and `step`, as Gymnasium environments.

Nothing of gym is imported: calls are told apart by what they accept and return, spaces by their class names.
Known are

- the form before 0.26: `reset() -> obs`, `step(action) -> (obs, reward, done, info)`, `seed(seed)`, where a
  time limit says `info["TimeLimit.truncated"] = True`;
- the form of 0.26: `reset(seed=…, options=…) -> (obs, info)`, `step(action) -> (obs, reward, terminated,
  truncated, info)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space, spaces


class LegacyEnv(gym.Env):
    """The adapter: Gymnasium outside, the old object inside.

    Args:
        env: an object with `observation_space`, `action_space`, `reset` and `step`.

    Attributes:
        legacy_env: that object, without its own wrappers.

    Raises:
        TypeError: something is missing; the message has the lines to write.
    """

    def __init__(self, env: Any) -> None:
        refuse_incomplete(env)
        self._env = env
        self.legacy_env = getattr(env, "unwrapped", env)
        self.observation_space = convert_space(env.observation_space)
        self.action_space = convert_space(env.action_space)
        self.metadata = dict(getattr(env, "metadata", None) or {"render_modes": []})
        self.render_mode = getattr(env, "render_mode", None) or _old_render_mode(env)
        accepted = _parameters(env.reset)
        self._reset_takes = {name for name in ("seed", "options") if name in accepted or "**" in accepted}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Either form of reset → (observation, info)."""
        super().reset(seed=seed)
        given = {"seed": seed, "options": options}
        if (
            seed is not None
            and "seed" not in self._reset_takes
            and callable(getattr(self._env, "seed", None))
        ):
            self._env.seed(seed)
        result = self._env.reset(
            **{name: given[name] for name in self._reset_takes if given[name] is not None}
        )
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        if result is None:
            raise TypeError(f"reset() of {_title(self._env)} returned None; write `return observation`")
        return result, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Either form of step → (observation, reward, terminated, truncated, info)."""
        result = self._env.step(action)
        if len(result) == 5:
            return result
        if len(result) != 4:
            raise TypeError(
                f"step() of {_title(self._env)} returned {len(result)} values; expected (observation, "
                "reward, done, info) or "
                "(observation, reward, terminated, truncated, info)"
            )
        obs, reward, done, info = result
        truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        """A picture, by whichever form of `render` the object has."""
        render = getattr(self._env, "render", None)
        if render is None:
            return None
        return render(mode="rgb_array") if "mode" in _parameters(render) else render()

    def close(self) -> None:
        """Close the object, where it can be closed."""
        close = getattr(self._env, "close", None)
        if callable(close):
            close()


def is_legacy(env: Any) -> bool:
    """Whether an object needs `LegacyEnv`: it is not Gymnasium's, or its `reset` lacks `seed` or `options`."""
    if not isinstance(env, gym.Env):
        return True
    accepted = _parameters(env.unwrapped.reset)
    return "**" not in accepted and not {"seed", "options"} <= set(accepted)


def refuse_incomplete(env: Any) -> None:
    """Refuse an object that cannot be stepped, by the name of its class and with the lines to write.

    Raises:
        TypeError: `reset`, `step` or a space is missing.
    """
    base = getattr(env, "unwrapped", env)
    for name, lines in _LINES.items():
        own = getattr(type(base), name, None) or getattr(base, name, None)
        if own is None or own is getattr(gym.Env, name, _LINES):
            raise TypeError(f"{_title(base)} has no {name}; add to the class\n{lines}")


_LINES = {
    "reset": (
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)          # in a gymnasium.Env: seeds self.np_random\n"
        "        ...                               # put the environment at the start of an episode\n"
        "        return observation, {}"
    ),
    "step": (
        "    def step(self, action):\n"
        "        ...                               # advance by one step\n"
        "        return observation, reward, terminated, truncated, {}"
    ),
    "observation_space": "    observation_space = gymnasium.spaces.Box(low, high, shape)   # or set it in "
    "__init__",
    "action_space": "    action_space = gymnasium.spaces.Discrete(n)                  # or set it in "
    "__init__",
}


def convert_space(space: Any) -> Space[Any]:
    """A space of the old gym as the Gymnasium space of the same name; Gymnasium spaces pass.

    Raises:
        TypeError: no space that we know.
    """
    if isinstance(space, Space):
        return space
    for cls in type(space).__mro__:
        convert = _CONVERT.get(cls.__name__)
        if convert is not None:
            return convert(space)
    raise TypeError(
        f"{type(space).__module__}.{type(space).__name__} is no space; expected one of gymnasium.spaces: "
        f"{', '.join(_CONVERT)}"
    )


def _box(space: Any) -> Space[Any]:
    dtype: Any = np.dtype(space.dtype).type
    return spaces.Box(np.asarray(space.low, dtype), np.asarray(space.high, dtype), tuple(space.shape), dtype)


_CONVERT: dict[str, Callable[[Any], Space[Any]]] = {
    "Box": _box,
    "Discrete": lambda space: spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0))),
    "MultiDiscrete": lambda space: spaces.MultiDiscrete(np.asarray(space.nvec)),
    "MultiBinary": lambda space: spaces.MultiBinary(space.n if np.ndim(space.n) == 0 else list(space.n)),
    "Dict": lambda space: spaces.Dict([(key, convert_space(child)) for key, child in space.spaces.items()]),
    "Tuple": lambda space: spaces.Tuple([convert_space(child) for child in space.spaces]),
}


def _parameters(function: Any) -> set[str]:
    """Names that a callable takes by keyword; `**` where it takes any."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {"**" if p.kind is p.VAR_KEYWORD else p.name for p in found}


def _old_render_mode(env: Any) -> str | None:
    """Before 0.26 the mode was an argument of `render`: pictures are there for whoever asks."""
    render = getattr(env, "render", None)
    return "rgb_array" if render is not None and "mode" in _parameters(render) else None


def _title(env: Any) -> str:
    cls = type(env)
    return f"{cls.__module__}.{cls.__qualname__}"
