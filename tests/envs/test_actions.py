import json

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from uniarena.config import ConfigError
from uniarena.envs import ActionMap
from uniarena.envs.actions import ActionMap as Direct


def test_it_is_public() -> None:
    assert Direct is ActionMap


def test_discrete_starts_at_zero_for_the_policy() -> None:  # case B13
    act = ActionMap(spaces.Discrete(3, start=-1))
    assert act.policy_space == spaces.Discrete(3)
    assert act(np.array([0, 1, 2])).tolist() == [-1, 0, 1]
    assert act(torch.tensor([2, 0])).tolist() == [1, -1]
    assert act(2) == 1 and act(np.int64(0)) == -1 and act(torch.tensor(1)).item() == 0


def test_discrete_keeps_the_dtype_of_the_space() -> None:
    act = ActionMap(spaces.Discrete(3, dtype=np.int32))
    assert act(np.array([1])).dtype == np.int32 and act(torch.tensor([1])).dtype == torch.int32


def test_box_is_clipped_in_the_precision_of_the_environment() -> None:  # case B17
    space = spaces.Box(-0.1, 0.1, (2,), np.float64)  # 0.1 in float32 lies above 0.1 in float64
    act = ActionMap(space)
    assert act.policy_space.dtype == np.float32
    given_ = np.array([[0.1, -0.1], [9.0, -9.0]], np.float32)
    for action in (act(given_), act(torch.from_numpy(given_)).numpy()):
        assert action.dtype == np.float64
        assert all(space.contains(row) for row in action)
    assert given_[1, 0] == 9.0  # what the policy said stays


def test_infinite_bounds_pass_unclipped() -> None:  # case B15
    act = ActionMap(spaces.Box(-np.inf, np.inf, (2,), np.float32))
    assert act(np.array([1e30, -1e30], np.float32)).tolist() == pytest.approx([1e30, -1e30])
    half = ActionMap(spaces.Box(np.array([0.0, -np.inf]), np.array([np.inf, 1.0]), dtype=np.float64))
    assert half(np.array([-3.0, 3.0], np.float32)).tolist() == [0.0, 1.0]
    assert half(torch.tensor([-3.0, 3.0])).tolist() == [0.0, 1.0]


def test_rescale_stretches_to_the_bounds() -> None:
    act = ActionMap(spaces.Box(np.array([0.0, -4.0]), np.array([10.0, 4.0]), dtype=np.float64), rescale=True)
    assert act.policy_space == spaces.Box(-1, 1, (2,), np.float32)
    batch = np.array([[-1, -1], [0, 0], [1, 1], [5, -5]], np.float32)
    expected = [[0, -4], [5, 0], [10, 4], [10, -4]]
    assert act(batch).tolist() == expected and act(torch.from_numpy(batch)).tolist() == expected


def test_rescale_needs_bounds_and_names_the_dimension() -> None:
    with pytest.raises(ValueError, match=r"dimension\(s\) \[1\]"):
        ActionMap(spaces.Box(np.array([0.0, -np.inf]), np.array([1.0, 1.0]), dtype=np.float64), rescale=True)


def test_integer_boxes_are_rounded() -> None:
    act = ActionMap(spaces.Box(0, 5, (3,), np.int32))
    assert act(np.array([0.6, 2.4, 9.0], np.float32)).tolist() == [1, 2, 5]
    assert act(torch.tensor([0.6, 2.4, 9.0])).dtype == torch.int32


def test_scalar_boxes_work() -> None:
    act = ActionMap(spaces.Box(-1.0, 1.0, (), np.float64))
    assert act(np.float32(3.0)) == 1.0 and act(np.array([-3.0, 0.5], np.float32)).tolist() == [-1.0, 0.5]


def test_hybrid_actions_are_mapped_leaf_by_leaf() -> None:
    space = spaces.Dict(
        {
            "gear": spaces.Discrete(3, start=1),
            "rest": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3], start=[1, 5]))),
        }
    )
    act = ActionMap(space)
    batch = {"gear": np.array([0, 2]), "rest": (np.ones((2, 2), np.int8), np.array([[0, 0], [1, 2]]))}
    action = act(batch)
    assert action["gear"].tolist() == [1, 3] and action["rest"][1].tolist() == [[1, 5], [2, 7]]
    for b in range(2):
        one = {"gear": action["gear"][b], "rest": (action["rest"][0][b], action["rest"][1][b])}
        assert space.contains(one)
    assert act.policy_space["rest"][1] == spaces.MultiDiscrete([2, 3])


def test_json_round_trip() -> None:
    act = ActionMap(spaces.Box(-2.0, 2.0, (1,), np.float64), rescale=True)
    back = ActionMap.from_json(json.loads(json.dumps(act.to_json())))
    assert back.env_space == act.env_space and back.rescale and back(np.array([1.0])) == 2.0


def test_spaces_nobody_can_act_in_are_refused() -> None:
    with pytest.raises(ConfigError, match="Text"):
        ActionMap(spaces.Text(3))


@given(arrays(np.float32, (3, 2), elements=st.floats(width=32, allow_nan=False)))
def test_the_environment_never_sees_an_action_outside(action: np.ndarray) -> None:
    space = spaces.Box(np.array([-0.3, 0.0]), np.array([0.7, 1e-3]), dtype=np.float64)
    for rescale in (False, True):
        act = ActionMap(space, rescale)
        assert all(space.contains(row) for row in act(action))
        assert np.allclose(act(action), act(torch.from_numpy(action)).numpy(), rtol=1e-12, atol=0)
