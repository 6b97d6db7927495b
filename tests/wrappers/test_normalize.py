"""Normalisation is declared once, found by the assembly, and costs a pipeline nothing."""

from __future__ import annotations

import pytest

from tests.wrappers.columns import Columns, zeros
from uniarena.config import ConfigError
from uniarena.envs.wrappers.frame_stack import FrameStack, FrameStackConfig
from uniarena.envs.wrappers.normalize import (
    AlreadyNormalizedError,
    NormalizeObservation,
    NormalizeObservationConfig,
    NormalizeReward,
    NormalizeRewardConfig,
)


def test_declarations_are_seen_from_any_wrapper_further_out():
    declared = NormalizeObservation(Columns(), NormalizeObservationConfig(clip=5.0))
    observation = {"clip": 5.0, "epsilon": 1e-8, "skip": (), "statistics": "welford", "decay": 0.99}
    assert FrameStack(declared, FrameStackConfig()).normalization == {"observation": observation}
    both = NormalizeReward(FrameStack(declared, FrameStackConfig()), NormalizeRewardConfig(gamma=0.9))
    reward = {"clip": 10.0, "epsilon": 1e-8, "gamma": 0.9}
    assert both.normalization == {"observation": observation, "reward": reward}
    assert NormalizeReward(Columns(), NormalizeRewardConfig()).normalization["reward"].keys() == {
        "clip",
        "epsilon",
    }
    assert FrameStack(Columns(), FrameStackConfig()).normalization == {}


def test_values_pass_unchanged_and_without_another_call():
    inner = Columns()
    env = NormalizeReward(NormalizeObservation(inner, NormalizeObservationConfig()), NormalizeRewardConfig())
    assert env.step == inner.step and env.reset == inner.reset
    assert env.reset() is inner._memory
    step = env.step(zeros(env))
    assert step.obs is inner._memory and step.reward is inner._reward


@pytest.mark.parametrize(
    ("wrapper", "cfg"),
    [(NormalizeObservation, NormalizeObservationConfig), (NormalizeReward, NormalizeRewardConfig)],
)
def test_a_second_declaration_on_the_same_environment_is_refused_by_name(wrapper, cfg):  # case B55
    env = FrameStack(wrapper(Columns(), cfg()), FrameStackConfig())
    with pytest.raises(AlreadyNormalizedError, match=f"{wrapper.__name__} is declared twice on 'columns'"):
        wrapper(env, cfg())
    assert issubclass(AlreadyNormalizedError, ConfigError)
