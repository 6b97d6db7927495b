"""Environments that do not keep to what `reset`, `step` and `close` are to do: told by name, at the step itself."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.fakes.envs import CounterEnv, CounterVectorEnv, SpaceEnv
from uniarena.envs import make_env
from uniarena.envs.column import StepError
from uniarena.envs.notices import UniArenaNotice
from uniarena.envs.storage import ObservationError


def _actions(env: Any) -> np.ndarray:
    return np.zeros(env.num_envs, np.int64)


class _Odd(CounterEnv):
    """A counter that breaks one part of what `step` is to return, from its third step on."""

    part, value = 0, None

    def step(self, action: int) -> Any:
        result = list(super().step(action))
        if result[0][0] >= 3:
            result[self.part] = self.value
        return tuple(result)


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        (0, np.zeros(3, np.float32), "has shape .3,.; expected .1,."),
        (0, 0.5, "has shape ..; expected .1,."),
        (0, None, "has shape ..; expected .1,."),
        (0, ["a"], "not made of numbers"),
        (1, 10**400, "the reward is int; expected one number"),
        (2, "False", "terminated='False'; expected a bool"),
        (3, [False], r"truncated=\[False\]; expected a bool"),
        (2, np.array([True, False]), "not one bool"),
        (4, None, None),
    ],
)
def test_what_a_step_returns_is_held_against_the_contract_at_every_step(
    part: int, value: Any, said: str | None
) -> None:
    class Odd(_Odd):
        pass

    Odd.part, Odd.value = part, value
    env = make_env([lambda: CounterEnv(100), lambda: Odd(100)])
    env.reset()
    for _ in range(2):
        env.step(_actions(env))
    if said is None:  # an info that says nothing, in the middle of an episode
        env.step(_actions(env))
        return
    with pytest.raises((StepError, ObservationError), match=said) as caught:
        env.step(_actions(env))
    assert "in step() of environment 1 of" in "".join(caught.value.__notes__)


def test_the_info_of_an_end_must_be_a_dict() -> None:
    class NoInfo(CounterEnv):
        def step(self, action: int) -> Any:
            return *super().step(action)[:4], None

    env = make_env(NoInfo, 1, kwargs={"length": 1})
    env.reset()
    with pytest.raises(StepError, match="NoneType as its info; expected a dict"):
        env.step(_actions(env))


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Box(0, 10, (2,), np.int64), np.array([0.5, 2.0])),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([300, 2])),
        (spaces.MultiBinary(2), np.array([0.5, 1.0])),
    ],
)
def test_numbers_that_whole_numbers_would_round_are_refused(space: spaces.Space, value: Any) -> None:
    class Rounds(SpaceEnv):
        def reset(self, **kwargs: Any) -> Any:
            return value, super().reset(**kwargs)[1]

    env = make_env(Rounds, kwargs={"observation_space": space})
    with pytest.raises(ObservationError, match="cannot hold"):
        env.reset()


def test_one_environment_that_cannot_be_closed_keeps_none_from_it() -> None:
    closed = []

    class Stuck(CounterEnv):
        def close(self) -> None:
            closed.append(self)
            raise RuntimeError("no connection")

    env = make_env(Stuck, 2)
    with pytest.warns(UniArenaNotice, match="close.. of environment . of Stuck raised RuntimeError: no conn"):
        env.close()
    assert len(closed) == 2


class _OddVector(CounterVectorEnv):
    part, value = 0, None

    def step(self, actions: Any) -> Any:
        result = list(super().step(actions))
        result[self.part] = self.value
        return tuple(result)


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        (0, np.zeros(2, np.float32), r"observation has shape \(2,\); expected \(2, 1\), 2 of Box"),
        (0, np.zeros((1, 1), np.float32), r"observation has shape \(1, 1\); expected \(2, 1\)"),
        (1, np.zeros((2, 1)), r"rewards of shape \(2, 1\); expected \(2,\)"),
        (1, 1.0, r"rewards of shape \(\); expected \(2,\)"),
        (2, False, r"terminated of shape \(\)"),
        (3, np.zeros(3, bool), r"truncated of shape \(3,\)"),
        (4, None, "did not return the five values"),
    ],
)
def test_what_a_vector_environment_returns_is_held_against_the_contract(
    part: int, value: Any, said: str
) -> None:
    class Odd(_OddVector):
        pass

    Odd.part, Odd.value = part, value
    env = make_env(Odd(2))
    env.reset()
    with pytest.raises((StepError, ObservationError), match=said):
        env.step(_actions(env))


def test_a_vector_environment_that_cannot_be_closed_is_told_of() -> None:
    class Stuck(CounterVectorEnv):
        def close(self, **kwargs: Any) -> None:
            raise RuntimeError("no connection")

    with pytest.warns(UniArenaNotice, match="Stuck raised RuntimeError"):
        make_env(Stuck(2)).close()
