from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tests.fakes.envs import (
    CounterEnv,
    LegacyBareEnv,
    LegacyBox,
    LegacyDiscrete,
    LegacyFiveEnv,
    LegacyNoResetEnv,
)
from tests.fakes.legacy import LegacyDict
from uniarena.envs import make_env
from uniarena.envs.legacy import convert_space


def test_spaces_are_converted_by_name() -> None:
    old = LegacyDict({"a": LegacyBox(-1, 1, (2,), np.float64), "b": LegacyDiscrete(3)})
    assert convert_space(old) == spaces.Dict(
        {"a": spaces.Box(-1, 1, (2,), np.float64), "b": spaces.Discrete(3)}
    )
    assert convert_space(spaces.MultiBinary(2)) == spaces.MultiBinary(2)
    with pytest.raises(TypeError, match="int is no space"):
        convert_space(3)


@pytest.mark.parametrize("end", ["termination", "truncation"])
@pytest.mark.parametrize("cls", [LegacyBareEnv, LegacyFiveEnv])
@pytest.mark.parametrize("how", ["serial", "async"])
def test_both_forms_of_the_old_gym(how: str, cls: Any, end: str) -> None:
    env = make_env(cls, 2, kwargs={"length": 2, "end": end}, vectorization=how)
    try:
        assert env.reset(seed=1).tolist() == [[0.0], [0.0]]
        seeds = [seeded[-1] for seeded in env.get_attr("seeded")]
        assert None not in seeds and len(set(seeds)) == 2
        env.step(np.zeros(2, np.int64))
        step = env.step(np.zeros(2, np.int64))
        assert step.terminated.tolist() == [end == "termination"] * 2
        assert step.truncated.tolist() == [end == "truncation"] * 2
        assert step.final is not None and step.final.obs.tolist() == [[2.0], [2.0]]
    finally:
        env.close()


def test_the_time_limit_goes_around_the_old_form_too() -> None:
    env = make_env(LegacyBareEnv, max_episode_steps=2)
    env.reset()
    env.step(np.zeros(1, np.int64))
    assert env.step(np.zeros(1, np.int64)).truncated.tolist() == [True]


def test_a_gymnasium_class_with_the_old_calls_is_understood() -> None:
    class Half(gym.Env):
        observation_space = spaces.Box(0, 9, (1,))
        action_space = spaces.Discrete(2)

        def reset(self) -> Any:  # type: ignore[override]
            return np.zeros(1, np.float32)

        def step(self, action: Any) -> Any:
            return np.ones(1, np.float32), 1.0, True, {}

    env = make_env(Half)
    assert env.reset(seed=0).tolist() == [[0.0]]
    assert env.step(np.zeros(1, np.int64)).terminated.tolist() == [True]


def test_a_class_without_reset_is_answered_by_name_with_the_lines_to_write() -> None:
    for cls in (
        LegacyNoResetEnv,
        type("Mine", (gym.Env,), {"step": CounterEnv.step, "action_space": spaces.Discrete(2)}),
    ):
        with pytest.raises(TypeError) as caught:
            make_env(cls)
        assert f"{cls.__name__} has no reset" in str(caught.value)
        assert "def reset(self, *, seed=None, options=None):" in str(caught.value)
        assert "return observation, {}" in str(caught.value)


@pytest.mark.parametrize("name", ["step", "observation_space", "action_space"])
def test_whatever_else_is_missing_is_named_too(name: str) -> None:
    parts = {
        "reset": lambda self, seed=None, options=None: (0, {}),
        "step": lambda self, action: (0, 0.0, False, False, {}),
        "observation_space": spaces.Discrete(2),
        "action_space": spaces.Discrete(2),
    }
    del parts[name]
    for base in (object, gym.Env):
        with pytest.raises(TypeError, match=f"Mine has no {name}"):
            make_env(type("Mine", (base,), dict(parts)))


def test_a_step_of_three_values_is_refused() -> None:
    class Three(LegacyBareEnv):
        def step(self, action: Any) -> Any:
            return np.zeros(1, np.float32), 0.0, False

    env = make_env(Three)
    env.reset()
    with pytest.raises(TypeError, match="returned 3 values"):
        env.step(np.zeros(1, np.int64))


def test_attributes_and_pictures_of_the_old_object() -> None:
    env = make_env(LegacyBareEnv, 2)
    env.set_attr("length", 7)
    assert env.get_attr("length") == [7, 7]
    assert env.render().shape == (4, 4, 3)  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.extra("legacy-gym")
def test_an_id_of_the_old_gym() -> None:
    env = make_env("gym/CartPole-v1", 2, max_episode_steps=3)
    env.reset(seed=0)
    steps = [env.step(np.zeros(2, np.int64)) for _ in range(3)]
    assert steps[-1].truncated.all() and env.observation_space.shape == (4,)
