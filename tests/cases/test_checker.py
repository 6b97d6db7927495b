"""More environments that are wrong in one place each: the checker names the place, and the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from uniarena import Agent, Trainer, make_env
from uniarena.envs.checker import check_env, report

ZEROS = np.zeros(3, np.float32)


class Right(gym.Env[Any, Any]):
    """Nothing is wrong here: five steps of zeros. What subclasses replace is."""

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space: Any = spaces.Discrete(2)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return ZEROS.copy(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return ZEROS.copy(), 1.0, self.t >= 5, False, {}


def returning(place: int, value: Any) -> type[Right]:
    """An environment whose step gives `value` (or what it makes of the environment) in one place of its five."""

    class Wrong(Right):
        def step(self, action: Any) -> Any:
            result = list(super().step(action))
            result[place] = value(self) if isinstance(value, Callable) else value  # type: ignore[arg-type]
            return tuple(result)

    return Wrong


def with_step(step: Callable[[Right, Any], Any]) -> type[Right]:
    return type("Wrong", (Right,), {"step": step})


def with_reset(reset: Callable[..., Any]) -> type[Right]:
    return type("Wrong", (Right,), {"reset": reset})


def with_space(name: str, space: Any) -> type[Right]:
    def init(self: Right) -> None:
        Right.__init__(self)
        setattr(self, name, space)

    return type("Wrong", (Right,), {"__init__": init})


def symbols(value: Any) -> type[Right]:
    """A dict observation whose `symbol` is `value`."""

    class Wrong(Right):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Dict({"x": self.observation_space, "symbol": spaces.Discrete(3)})

        def reset(self, **options: Any) -> Any:
            return {"x": super().reset(**options)[0], "symbol": 0}, {}

        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return {"x": obs, "symbol": value}, *rest

    return Wrong


WRONG: dict[str, tuple[type[Right], str, str, str]] = {
    # name: class, level, kind and key of its one problem
    "no observation": (returning(0, None), "error", "nothing returned", "step() obs"),
    "infinite": (returning(0, lambda env: ZEROS + np.float32(np.inf)), "error", "not finite", "step() obs"),
    "a list": (returning(0, lambda env: [0.0] * 3), "warning", "wrong type", "step() obs"),
    "float64": (returning(0, lambda env: np.zeros(3)), "warning", "wrong dtype", "step() obs"),
    "objects": (returning(0, lambda env: np.array([0, None, 0])), "error", "wrong type", "step() obs"),
    "no shape": (returning(0, lambda env: np.float32(0)), "error", "wrong shape", "step() obs"),
    "no reward": (returning(1, None), "error", "wrong type", "step() reward"),
    "reward as text": (returning(1, "1"), "error", "wrong type", "step() reward"),
    "reward NaN": (returning(1, float("nan")), "error", "not finite", "step() reward"),
    "terminated as number": (returning(2, 0), "warning", "wrong type", "step() terminated"),
    "terminated as array": (
        returning(2, lambda env: np.array([False])),
        "error",
        "wrong type",
        "step() terminated",
    ),
    "truncated as text": (returning(3, "no"), "error", "wrong type", "step() truncated"),
    "info as list": (returning(4, lambda env: []), "error", "wrong type", "step() info"),
    "mask of wrong length": (
        returning(4, lambda env: {"action_mask": np.ones(5, np.int8)}),
        *("error", "wrong shape", "action_mask"),
    ),
    "list for a tuple": (
        with_step(lambda self, a: list(Right.step(self, a))),
        "error",
        "wrong return",
        "step()",
    ),
    "six values": (with_step(lambda self, a: (*Right.step(self, a), 1)), "error", "wrong return", "step()"),
    "nothing from step": (with_step(lambda self, a: None), "error", "nothing returned", "step()"),
    "old reset": (
        with_reset(lambda self, *, seed=None, options=None: Right.reset(self, seed=seed)[0]),
        *("error", "wrong return", "reset()"),
    ),
    "three from reset": (
        with_reset(lambda self, *, seed=None, options=None: (*Right.reset(self, seed=seed), 1)),
        *("error", "wrong return", "reset()"),
    ),
    "reset without seed": (
        with_reset(lambda self: Right.reset(self)),
        "warning",
        "missing argument",
        "reset()",
    ),
    "actions as list": (with_space("action_space", [0, 1]), "error", "wrong type", "action_space"),
    "no action space": (with_space("action_space", None), "error", "missing", "action_space"),
    "symbol beyond its space": (symbols(3), "error", "out of bounds", "step() obs['symbol']"),
    "symbol as float": (symbols(1.0), "error", "wrong type", "step() obs['symbol']"),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_found_where_it_is(name: str):  # case B77
    env, level, kind, key = WRONG[name]
    problems = check_env(env, steps=30)
    assert [(p.level, p.kind, p.key) for p in problems] == [(level, kind, key)], report(name, problems)
    assert problems[0].expected and problems[0].got and problems[0].fix


def test_what_is_right_gives_nothing_and_trains():
    assert check_env(Right, steps=30) == []


FORGIVEN = ("a list", "float64", "terminated as number", "reset without seed")


@pytest.mark.parametrize("name", FORGIVEN)
def test_what_is_only_warned_of_trains(name: str):  # case B77
    env = make_env(WRONG[name][0], 2)
    trainer = Trainer(Agent.assemble(env, {"type": "ppo", "n_steps": 8, "batch_size": 16}), env)
    trainer.fit(16)
    trainer.close()


def test_a_reset_without_options_is_called_without():
    env = make_env(with_reset(lambda self, *, seed=None: Right.reset(self, seed=seed)), 2)
    env.reset(seed=3)
    env.step(np.zeros(2, np.int64))
    env.close()


FATAL = [name for name in WRONG if WRONG[name][1] == "error"]


@pytest.mark.parametrize("name", FATAL)
def test_what_is_an_error_never_trains_in_silence(name: str):
    """Either the run ends with an error, or what was learned from was numbers after all."""
    try:
        env = make_env(WRONG[name][0], 2)
        agent = Agent.assemble(env, {"type": "ppo", "n_steps": 8, "batch_size": 16})
        trainer = Trainer(agent, env)
        trainer.fit(16)
    except Exception as error:
        assert str(error)
        return
    assert all(bool(p.isfinite().all()) for p in agent.model.parameters())
