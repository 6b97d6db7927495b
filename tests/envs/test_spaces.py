import json

import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import given
from hypothesis import strategies as st

from uniarena.config import ConfigError
from uniarena.envs.spaces import (
    LeafEncoder,
    describe,
    flat_dim,
    leaf_spaces,
    mask_size,
    refuse_unsupported,
    register_encoder,
    space_from_json,
    space_to_json,
    storage_space,
    with_mask_leaf,
)

SPACES = [
    spaces.Box(-1.0, 1.0, (3,), np.float32),
    spaces.Box(-np.inf, np.inf, (), np.float64),
    spaces.Box(0, 255, (4, 5, 3), np.uint8),
    spaces.Box(np.array([-np.inf, -0.1]), np.array([0.1, np.inf]), dtype=np.float64),
    spaces.Box(np.array([-4.8, -3.4e38], np.float32), np.array([4.8, 3.4e38], np.float32)),
    spaces.Box(-(2**62), 2**62, (2,), np.int64),
    spaces.Discrete(5),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [-2, 3]])),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.Tuple((spaces.Discrete(2), spaces.Box(0.0, 1.0, (1,)))),
    spaces.Dict(
        {"b": spaces.Discrete(2), "a": spaces.Dict({"z": spaces.MultiBinary(1), "c": spaces.Discrete(2)})}
    ),
    spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Discrete(3))]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_json_round_trip_is_exact(space: Space) -> None:
    text = json.dumps(space_to_json(space), allow_nan=False)
    back = space_from_json(json.loads(text))
    assert back == space and back.dtype == space.dtype
    assert [path for path, _ in leaf_spaces(back)] == [path for path, _ in leaf_spaces(space)]


@given(st.integers(1, 9), st.integers(-9, 9), st.lists(st.floats(width=32), min_size=1, max_size=4))
def test_any_discrete_and_box_round_trip(n: int, start: int, low: list[float]) -> None:
    bound = np.nan_to_num(np.array(low, np.float32), nan=0.0, posinf=1.0)
    box = spaces.Box(bound, np.full(len(low), np.inf, np.float32))
    for space in (spaces.Discrete(n, start=start), box):
        assert space_from_json(json.loads(json.dumps(space_to_json(space)))) == space


def test_descriptions_are_short() -> None:
    texts = [describe(SPACES[i]) for i in (0, 1, 2, 7, 9, 11)]
    assert texts == [
        "Box(3) float32",
        "Box(scalar) float64",
        "Box(4×5×3) uint8",
        "Discrete(3, start=-1)",
        "MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [-2, 3]])",
        "MultiBinary(2×3)",
    ]
    assert describe(SPACES[-1]) == "{z: Discrete(2), a: Discrete(3)}"


def test_flat_dim_counts_one_hot_and_leaves_the_mask_out() -> None:
    inner = spaces.Dict(
        {"x": spaces.Box(0, 1, (2, 3)), "d": spaces.Discrete(4), "m": spaces.MultiDiscrete([2, 3])}
    )
    assert flat_dim(inner) == 6 + 4 + 5
    assert flat_dim(with_mask_leaf(inner, 7)) == 15
    assert flat_dim(spaces.Box(0, 1, ())) == 1


def test_mask_size_and_leaf() -> None:
    assert mask_size(spaces.Discrete(4, start=2)) == 4 and mask_size(spaces.MultiDiscrete([2, 3])) == 5
    assert mask_size(spaces.Box(0, 1, (2,))) is None
    assert with_mask_leaf(spaces.Discrete(2), 3) == spaces.Dict(
        {"obs": spaces.Discrete(2), "action_mask": spaces.MultiBinary(3)}
    )


def test_floats_are_stored_as_float32_and_all_else_as_it_is() -> None:  # case B17
    space = spaces.Dict(
        {
            "double": spaces.Box(-1e300, 0.1, (2,), np.float64),
            "half": spaces.Box(-1, 1, (1,), np.float16),
            "image": spaces.Box(0, 255, (2, 2), np.uint8),
            "n": spaces.Discrete(3, start=1),
        }
    )
    stored = storage_space(space)
    assert [leaf.dtype for _, leaf in leaf_spaces(stored)] == [np.float32, np.float32, np.uint8, np.int64]
    assert stored["double"].low[0] == -np.inf and stored["n"] == space["n"]
    float32 = spaces.Box(0, 1, (2,), np.float32)
    assert storage_space(float32) is float32


@pytest.mark.parametrize(
    "leaf",
    [
        spaces.Text(40),
        spaces.Sequence(spaces.Discrete(3)),
        spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(2)),
        spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
    ],
    ids=lambda leaf: type(leaf).__name__,
)
def test_spaces_without_arrays_are_refused_by_name(leaf: Space) -> None:  # case B66, B97
    space = spaces.Dict({"grid": spaces.Box(0, 1, (7, 7)), "mission": leaf})
    with pytest.raises(ConfigError) as caught:
        refuse_unsupported(space, "observation space of 'X'", encodable=True)
    text = str(caught.value)
    assert type(leaf).__name__ in text and "'mission'" in text and "register_encoder" in text
    with pytest.raises(ConfigError, match="action space"):
        refuse_unsupported(leaf, "action space of 'X'")


def test_a_registered_encoder_lets_a_space_pass() -> None:  # case B97
    space = spaces.Dict({"mission": spaces.Text(40)})
    encoder = LeafEncoder(lambda _: spaces.MultiDiscrete([9] * 4), lambda _, text: np.zeros(4, np.int64))
    register_encoder(spaces.Text, encoder)
    try:
        refuse_unsupported(space, "observation space", encodable=True)
        with pytest.raises(ConfigError):
            refuse_unsupported(space, "observation space")
    finally:
        register_encoder(spaces.Text, None)
    with pytest.raises(ConfigError):
        refuse_unsupported(space, "observation space", encodable=True)
