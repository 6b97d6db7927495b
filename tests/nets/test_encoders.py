"""Encoders: every space, nothing guessed, stable order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from uniarena.config import ConfigError
from uniarena.nets.encoders import EncoderConfig, build_encoder, image_leaves, large_inputs

IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
NESTED = spaces.Dict(
    {
        "task": spaces.Discrete(4),
        "sensors": spaces.Dict({"pos": spaces.Box(-1.0, 1.0, (3,)), "cam": IMAGE}),
    }
)


def encode(space: spaces.Space, *rows: object, **options: object) -> torch.Tensor:
    return build_encoder(space, **options)(torch.as_tensor(np.stack([np.asarray(row) for row in rows])))


def test_discrete_is_one_hot_from_its_start():  # case B13
    space = spaces.Discrete(3, start=-1)
    assert encode(space, -1, 1, 0).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_multi_discrete_is_one_hot_per_choice_from_its_starts():
    space = spaces.MultiDiscrete([2, 3], start=[1, 5])
    assert encode(space, [2, 5], [1, 7]).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    grid = spaces.MultiDiscrete([[2, 2], [2, 2]])
    assert build_encoder(grid)(torch.ones(5, 7, 2, 2, dtype=torch.int64)).shape == (5, 7, 8)


@pytest.mark.parametrize(
    ("space", "width"),
    [
        (spaces.Box(-1.0, 1.0, ()), 1),
        (spaces.Box(-1.0, 1.0, (4,), np.float64), 4),
        (spaces.Box(-np.inf, np.inf, (2, 5)), 10),
        (spaces.Box(0, 10, (7, 7, 3), np.int32), 147),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), 147),  # too small to be taken for an image
        (spaces.Box(0, 1, (84, 84, 3), np.uint8), 84 * 84 * 3),  # not the bounds of an image
        (spaces.Box(0.0, 1.0, (84, 84, 3)), 84 * 84 * 3),  # a float image has to be declared
        (spaces.MultiBinary([2, 3]), 6),
    ],
)
def test_boxes_and_bits_are_flattened(space, width):
    encoder = build_encoder(space)
    sample = torch.as_tensor(np.stack([space.sample() for _ in range(3)]))
    out = encoder(sample)
    assert out.shape == (3, width) and out.dtype == torch.float32 and encoder.out_dim == width
    assert encoder(sample.unsqueeze(0)).shape == (1, 3, width)
    torch.testing.assert_close(out, sample.reshape(3, -1).float())


def test_bytes_in_a_row_are_neither_an_image_nor_scaled():  # case B26
    space = spaces.Box(0, 255, (8,), np.uint8)
    assert encode(space, np.full(8, 255, np.uint8)).tolist() == [[255.0] * 8]
    assert not build_encoder(space).has_images


def test_infinite_bounds_do_not_make_an_image_and_large_values_are_named():  # case B26
    space = spaces.Dict({"far": spaces.Box(-np.inf, np.inf, (2, 5)), "near": spaces.Box(-1.0, 1.0, (2,))})
    obs = {"far": torch.full((3, 2, 5), -1e6), "near": torch.ones(3, 2)}
    assert not build_encoder(space).has_images
    assert build_encoder(space)(obs)[0, 0] == -1e6
    assert large_inputs(space, obs) == {"far": 1e6}


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((84, 84, 1), "hwc"), ((4, 84, 84), "chw"), ((3, 64, 48), "chw"), ((64, 48, 4), "hwc")],
)
def test_images_whose_layout_can_be_told(shape, layout):
    space = spaces.Box(0, 255, shape, np.uint8)
    encoder = build_encoder(space)
    assert encoder.has_images and encoder.out_dim == 512 and image_leaves(space) == [""]
    pixels = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    declared = build_encoder(space, EncoderConfig(layout=layout))
    declared.load_state_dict(encoder.state_dict())
    assert torch.equal(encoder(pixels), declared(pixels))


def test_both_layouts_see_the_same_picture_scaled_to_one():
    last, first = spaces.Box(0, 255, (40, 44, 3), np.uint8), spaces.Box(0, 255, (3, 40, 44), np.uint8)
    a, b = build_encoder(last), build_encoder(first)
    b.load_state_dict(a.state_dict())
    pixels = torch.randint(0, 256, (2, 40, 44, 3), dtype=torch.uint8)
    torch.testing.assert_close(a(pixels), b(pixels.permute(0, 3, 1, 2)))
    network = a.parts[0].network
    torch.testing.assert_close(a(pixels), network(pixels.permute(0, 3, 1, 2) / 255.0))


@pytest.mark.parametrize("shape", [(84, 84, 12), (3, 84, 4), (84, 84, 84)])
def test_images_of_unclear_layout_ask_for_it(shape):
    space = spaces.Box(0, 255, shape, np.uint8)
    if sorted(shape)[1] >= 32:
        with pytest.raises(ConfigError, match="first or the last axis") as error:
            build_encoder(space)
        assert error.value.path == "agent.policy.layout" and "hwc" in error.value.hint
    assert build_encoder(space, EncoderConfig(layout="flat")).out_dim == np.prod(shape)


def test_declared_layouts_make_images_of_floats_and_small_grids():
    grid = spaces.Box(0.0, 1.0, (10, 10, 6), bool)
    encoder = build_encoder(grid, EncoderConfig(layout="hwc"))
    assert encoder.has_images and encoder.out_dim == 128
    assert encoder(torch.ones(3, 5, 10, 10, 6, dtype=torch.bool)).shape == (3, 5, 128)
    impala = build_encoder(grid, EncoderConfig(layout="hwc", network="impala_cnn"))
    assert impala.out_dim == 256 and impala(torch.ones(2, 10, 10, 6, dtype=torch.bool)).shape == (2, 256)
    floats = build_encoder(spaces.Box(0.0, 255.0, (3, 36, 36)), EncoderConfig(layout="chw"))
    assert floats.parts[0].scale == pytest.approx(1 / 255)


def test_networks_that_do_not_fit_the_image_are_named():
    with pytest.raises(ConfigError, match="at least 36×36") as error:
        build_encoder(spaces.Box(0, 255, (32, 32, 3), np.uint8), EncoderConfig(network="nature_cnn"))
    assert error.value.path == "agent.policy.network"


def test_nested_spaces_are_encoded_key_by_key_in_sorted_order():  # case B20
    encoder = build_encoder(NESTED)
    assert [".".join(map(str, keys)) for keys in encoder.keys] == ["sensors.cam", "sensors.pos", "task"]
    assert encoder.out_dim == 512 + 3 + 4
    obs = {
        "task": torch.tensor([2, 0]),
        "sensors": {
            "pos": torch.tensor([[0.1, 0.2, 0.3], [0.0, 0.0, 0.0]]),
            "cam": torch.zeros(2, 36, 36, 3, dtype=torch.uint8),
        },
    }
    out = encoder(obs)
    torch.testing.assert_close(out[0, 512:], torch.tensor([0.1, 0.2, 0.3, 0, 0, 1, 0]))
    shuffled = {"sensors": {"cam": obs["sensors"]["cam"], "pos": obs["sensors"]["pos"]}, "task": obs["task"]}
    assert torch.equal(out, encoder(shuffled))
    ordered = spaces.Dict([("task", NESTED["task"]), ("sensors", NESTED["sensors"])])
    assert build_encoder(ordered).keys == encoder.keys


def test_tuples_keep_their_positions_and_keys_may_hold_dots():
    space = spaces.Dict({"a.b": spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Discrete(2)))})
    out = build_encoder(space)({"a.b": (torch.tensor([[0.5]]), torch.tensor([1]))})
    assert out.tolist() == [[0.5, 0.0, 1.0]]


def test_each_key_may_have_its_own_encoder():
    per_key = {
        "sensors.cam": EncoderConfig(network="impala_cnn"),
        "sensors.pos": EncoderConfig(layout="flat"),
    }
    assert build_encoder(NESTED, per_key=per_key).out_dim == 256 + 3 + 4
    with pytest.raises(ConfigError, match="no leaf") as error:
        build_encoder(NESTED, per_key={"cam": EncoderConfig()})
    assert "sensors.cam" in str(error.value)
    with pytest.raises(ConfigError, match="three dimensions"):
        build_encoder(NESTED, per_key={"sensors.pos": EncoderConfig(layout="hwc")})


def test_the_action_mask_is_never_an_input():
    box = spaces.Box(-1.0, 1.0, (3,))
    masked = spaces.Dict({"obs": box, "action_mask": spaces.MultiBinary(5)})
    encoder = build_encoder(masked)
    assert encoder.out_dim == 3 and encoder.identity
    with pytest.raises(ConfigError, match="nothing to look at"):
        build_encoder(spaces.Dict({"action_mask": spaces.MultiBinary(5)}))


def test_a_space_without_an_encoder_is_refused_by_name():
    with pytest.raises(ConfigError, match="'note' is a Text space"):
        build_encoder(spaces.Dict({"note": spaces.Text(5), "x": spaces.Box(-1, 1, (1,))}))
