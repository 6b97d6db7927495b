"""What differs between the spaces that an agent was made for and others, key by key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from uniarena.agent import Agent
from uniarena.envs import make_env
from uniarena.envs.actions import ActionMap
from uniarena.envs.fit import changed_bounds, compare_saved, misfit
from uniarena.envs.notices import UniArenaNotice
from uniarena.envs.spaces import space_to_json
from uniarena.sampling.evaluation import refuse_misfit


def box(*shape: int, low: float = -1.0, high: float = 1.0, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


@pytest.mark.parametrize(
    ("made_for", "given", "told"),
    [
        (box(3), box(4), "expected Box(3) float32, got Box(4) float32"),
        (box(3), box(3, low=0, high=255, dtype=np.uint8), "expected Box(3) float32, got Box(3) uint8"),
        (spaces.Discrete(4), spaces.Discrete(5), "expected Discrete(4), got Discrete(5)"),
        (spaces.Discrete(4), spaces.Discrete(4, start=1), "expected Discrete(4), got Discrete(4, start=1)"),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 4]), "expected MultiDiscrete([2, 3]), got"),
        (box(3), spaces.Discrete(3), "expected Box(3) float32, got Discrete(3)"),
    ],
)
def test_what_differs_is_told(made_for: Any, given: Any, told: str) -> None:
    assert told in str(misfit(made_for, given))


def test_every_key_that_differs_is_told() -> None:
    made_for = spaces.Dict({"pos": box(3), "task": spaces.Discrete(4), "gone": box(2), "same": box(1)})
    given = spaces.Dict({"pos": box(4), "task": spaces.Discrete(4, start=2), "new": box(1), "same": box(1)})
    assert str(misfit(made_for, given)).split("; ") == [
        "'gone': expected Box(2) float32, got nothing",
        "'pos': expected Box(3) float32, got Box(4) float32",
        "'task': expected Discrete(4), got Discrete(4, start=2)",
        "'new': expected nothing, got Box(1) float32",
    ]


def test_a_great_many_differences_are_cut() -> None:
    made_for = spaces.Dict({f"k{i:02d}": box(1) for i in range(40)})
    assert str(misfit(made_for, box(1))).endswith("and 29 more")


def test_order_of_keys_and_precision_do_not_matter() -> None:
    one = spaces.Dict([("b", box(2)), ("a", spaces.Discrete(3))])
    other = spaces.Dict([("a", spaces.Discrete(3)), ("b", box(2, dtype=np.float64))])
    assert misfit(one, other) is None and changed_bounds(one, other) is None


def test_bounds_alone_fit_and_are_told() -> None:
    one = spaces.Dict({"a": box(2), "b": box(2)})
    other = spaces.Dict({"a": box(2, high=5.0), "b": box(2)})
    assert misfit(one, other) is None
    assert changed_bounds(one, other) == "'a': from [-1, 1] to [-1, 5]"
    assert "…" in str(
        changed_bounds(box(20), spaces.Box(np.arange(20, dtype=np.float32), np.full(20, np.inf, np.float32)))
    )


def test_saved_spaces_are_compared() -> None:
    def spec(obs: Any, action: Any) -> dict[str, Any]:
        return {"observation_space": space_to_json(obs), "action_map": ActionMap(action).to_json()}

    saved, now = spec(box(3), spaces.Discrete(2)), spec(box(3, high=2.0), spaces.Discrete(2, start=1))
    faults, bounds = compare_saved(saved, now)
    assert faults == ["actions: expected Discrete(2), got Discrete(2, start=1)"]
    assert bounds == ["observations: from [-1, 1] to [-1, 2]"]
    assert compare_saved(saved, saved) == ([], [])


class Spaces:
    """As much of an environment as the check looks at."""

    env_id = "Other-v0"

    def __init__(self, observation_space: Any, action_map: ActionMap) -> None:
        self.observation_space, self.action_map = observation_space, action_map


def test_an_environment_with_other_bounds_is_a_notice_and_with_other_spaces_an_error() -> None:
    env = make_env("Pendulum-v1", 1)
    agent = Agent.assemble(env, learner={"type": "ppo"}, policy={"hidden_sizes": [4]})
    refuse_misfit(agent, env)
    wider = Spaces(box(3, low=-9.0, high=9.0), env.action_map)
    with pytest.warns(UniArenaNotice, match=r"bounds of the observations of Other-v0 .* to \[-9, 9\]"):
        refuse_misfit(agent, wider)  # type: ignore[arg-type]
    stronger = Spaces(env.observation_space, ActionMap(box(1, low=-3.0, high=3.0)))
    with pytest.warns(UniArenaNotice, match=r"bounds of the actions .*from \[-2, 2\] to \[-3, 3\]"):
        refuse_misfit(agent, stronger)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"the actions of Other-v0 do not fit the agent: expected Box\(1\)"):
        refuse_misfit(agent, Spaces(env.observation_space, ActionMap(spaces.Discrete(2))))  # type: ignore[arg-type]
    env.close()
