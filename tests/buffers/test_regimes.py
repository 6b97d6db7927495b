"""Buffers and learners that do not go together, and settings out of all bounds, are told before training."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.fakes.envs import CounterEnv, SpaceEnv
from uniarena import Agent, ConfigError
from uniarena.envs import make_env
from uniarena.nets.encoders import large_inputs
from uniarena.nets.normalizer import ObservationNormalizer


@pytest.mark.parametrize(
    ("learner", "buffer"), [("ppo", "replay"), ("a2c", "prioritized"), ("dqn", "rollout")]
)
def test_a_buffer_of_the_other_regime_is_refused(learner: str, buffer: str) -> None:
    with pytest.raises(ConfigError, match=f"and {learner} learns from") as caught:
        Agent.assemble(make_env(CounterEnv), learner, parts={"buffer": {"type": buffer}})
    assert caught.value.path == "agent.buffer.type"


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"type": "ppo", "clip_range": -0.1}, "learner.clip_range"),
        ({"type": "ppo", "clip_range": {"start": 0.2, "end": -0.1}}, "learner.clip_range.end"),
        ({"type": "ppo", "learning_rate": {"start": 1e-3, "end": -1e-3}}, "learner.learning_rate.end"),
        ({"type": "ppo", "learning_rate": float("inf")}, "learner.learning_rate"),
        ({"type": "ppo", "vf_coef": -1}, "learner.vf_coef"),
        ({"type": "dqn", "learning_rate": -1e-3}, "learner.learning_rate"),
        ({"type": "dqn", "optimizer": {"lr": {"start": -1e-3}}}, "learner.optimizer.lr.start"),
    ],
)
def test_numbers_and_both_ends_of_schedules_have_bounds(section: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError, match=r"at\s+least 0") as caught:
        Agent.assemble(make_env(CounterEnv), section)
    assert caught.value.path == path


def test_the_exponent_of_importance_weights_lies_between_0_and_1() -> None:
    buffer = {"type": "prioritized", "capacity": 100, "beta": {"start": 0.4, "end": 2.0}}
    with pytest.raises(ConfigError, match="at most 1; got 2") as caught:
        Agent.assemble(make_env(CounterEnv), "dqn", parts={"buffer": buffer})
    assert caught.value.path == "agent.buffer.beta.end"


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (0,)),
        spaces.Dict({"a": spaces.Dict({})}),
        spaces.Tuple((spaces.Box(-1, 1, (3, 0)),)),
    ],
)
def test_spaces_without_entries_are_refused_by_name(space: spaces.Space) -> None:
    with pytest.raises(ConfigError, match="nothing to choose"):
        make_env(SpaceEnv, kwargs={"observation_space": spaces.Discrete(2), "action_space": space})
    with pytest.raises(ConfigError, match="nothing to look at"):
        Agent.assemble(make_env(SpaceEnv, kwargs={"observation_space": space}))


def test_an_empty_part_beside_others_is_harmless() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (0,)), "b": spaces.Box(-9e9, 9e9, (2,))})
    obs = {"a": np.zeros((1, 0), np.float32), "b": np.full((1, 2), 5e3, np.float32)}
    assert large_inputs(space, obs) == {"b": 5e3}
    normalizer = ObservationNormalizer(space)
    assert normalizer.centre.shape == (2,)
    env = make_env(SpaceEnv, kwargs={"observation_space": space}, wrappers=["normalize_observation"])
    assert Agent.assemble(env).act(env.reset(seed=0)).shape == (1,)
