"""Observations given to an agent, and spaces with odd names: taken as meant, or refused by name."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.fakes.envs import SpaceEnv
from uniarena import ConfigError
from uniarena.envs import make_env
from uniarena.envs.observations import as_batch
from uniarena.envs.storage import ObservationError

CPU = torch.device("cpu")
BOX = spaces.Box(0.0, 9.0, (2, 3))


def test_a_flipped_image_and_one_that_cannot_be_written_to_are_taken() -> None:
    flipped = np.arange(6, dtype=np.float32).reshape(2, 3)[::-1]
    assert as_batch(BOX, flipped, CPU)[0].tolist() == [[[3.0, 4.0, 5.0], [0.0, 1.0, 2.0]]]
    fixed = np.broadcast_to(np.float32(2.0), (4, 2, 3))
    assert as_batch(BOX, fixed, CPU)[0].shape == (4, 2, 3)


def test_a_tuple_of_numbers_is_one_array() -> None:
    assert as_batch(spaces.Box(0, 1, (2,)), (0.5, 1.0), CPU)[0].tolist() == [[0.5, 1.0]]


@pytest.mark.parametrize(
    ("space", "obs", "said"),
    [
        (spaces.Discrete(3, start=-1), 2, "holds 2, which Discrete"),
        (spaces.Discrete(3, start=-1), np.array([0, 1, -2]), "holds -2, which"),
        (spaces.Discrete(3), 0.5, "holds 0.5, which"),
        (spaces.MultiDiscrete([2, 3]), [[0, 2], [2, 0]], "holds 2, which"),
        (spaces.Box(0, 1, (2,)), np.array([0.0, None]), "dtype object; expected numbers"),
        (spaces.Box(0, 1, (2,)), np.array([0.0, 1j]), "dtype complex128; expected numbers"),
        (spaces.Box(0, 1, (2,)), {"obs": np.zeros(2), "action_mask": [1]}, "trained without action masks"),
    ],
)
def test_what_the_space_does_not_have_is_named(space: spaces.Space, obs: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        as_batch(space, obs, CPU)


def test_a_first_observation_of_a_class_that_does_not_exist_is_refused() -> None:
    class Counts(SpaceEnv):
        def reset(self, **kwargs: Any) -> Any:
            return 3, super().reset(**kwargs)[1]

    env = make_env(Counts, kwargs={"observation_space": spaces.Discrete(3)})
    with pytest.raises(ObservationError, match=r"has 3, which Discrete\(3\) does not have"):
        env.reset()


BIT = spaces.Discrete(2)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Dict({"a.b": BIT, "a": spaces.Dict({"b": BIT})}), "two parts that are both called 'a.b'"),
        (spaces.Dict({1: BIT, "a": BIT}), "keys of several types"),
        (spaces.Tuple((spaces.Dict({1: BIT, "a": BIT}),)), "keys of several types"),
    ],
)
def test_parts_that_cannot_be_told_apart_are_refused(space: spaces.Space, said: str) -> None:
    for own in ({"observation_space": space}, {"observation_space": BIT, "action_space": space}):
        with pytest.raises(ConfigError, match=said) as caught:
            make_env(SpaceEnv, kwargs=own)
        assert caught.value.path == "environment.id"
