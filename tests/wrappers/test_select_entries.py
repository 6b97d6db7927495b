"""Entries of a vector are kept, everywhere an observation is given, and nothing else of it is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.contracts.doors import Cue
from uniarena import make_env
from uniarena.config import ConfigError


def select(*entries: int, **more: Any) -> dict[str, Any]:
    return {"type": "select_entries", "entries": entries, **more}


def test_velocities_are_hidden() -> None:
    env = make_env("CartPole-v1", 2, wrappers=[select(0, 2)])
    full = make_env("CartPole-v1", 2)
    assert env.observation_space.shape == (2,)
    assert np.allclose(env.observation_space.high, full.observation_space.high[[0, 2]])
    assert np.array_equal(env.reset(seed=1), full.reset(seed=1)[:, [0, 2]])


def test_the_last_observation_is_cut_too() -> None:
    env = make_env(Cue, 1, wrappers=[select(1)])
    env.reset(seed=0)
    steps = [env.step(np.zeros(1, np.int64)) for _ in range(6)]
    assert steps[-1].final is not None and steps[-1].final.obs.tolist() == [[1.0]]
    assert steps[0].obs.tolist() == [[pytest.approx(1 / 6)]]


def test_one_leaf_of_a_nested_observation() -> None:
    class Nested(Cue):
        observation_space = spaces.Dict({"a": Cue.observation_space, "b": spaces.Discrete(2)})

        def _obs(self) -> Any:
            return {"a": super()._obs(), "b": 1}

    env = make_env(Nested, 1, wrappers=[select(0, key="a")])
    assert {key: leaf.shape for key, leaf in env.reset(seed=0).items()} == {"a": (1, 1), "b": (1,)}


@pytest.mark.parametrize(
    ("given", "path"),
    [(select(), "entries"), (select(4), "entries"), (select(-1), "entries"), (select(0, key="x"), "keys")],
)
def test_what_is_not_there_is_refused(given: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_env("CartPole-v1", 1, wrappers=[given])
    assert caught.value.path == f"environment.wrappers.select_entries.{path}"
