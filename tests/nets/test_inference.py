"""The flat form: the module's numbers, on live parameters."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from uniarena.nets.encoders import EncoderConfig, build_encoder
from uniarena.nets.flat_image import flatten_image
from uniarena.nets.inference import FlatMLP, eval_mode, flatten
from uniarena.nets.mlp import ACTIVATIONS, MLP
from uniarena.nets.normalizer import ObservationNormalizer


def normalizer(width: int) -> ObservationNormalizer:
    norm = ObservationNormalizer(spaces.Box(-9.0, 9.0, (width,)), clip=2.0)
    norm.accumulate(3 + 2 * torch.randn(50, width), torch.ones(50, dtype=torch.bool))
    norm.merge()
    return norm


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("hidden", [(), (16,), (64, 32)])
@pytest.mark.parametrize("normalised", [False, True])
def test_the_flat_form_equals_the_module(activation, hidden, normalised):
    torch.manual_seed(0)
    module = MLP(5, hidden, activation, out_dim=3)
    norm = normalizer(5) if normalised else None
    flat = flatten(module, norm)
    assert flat is not None
    for rows in (8, 1, 33):
        x = 4 * torch.randn(rows, 5)
        keep = x.clone()
        expected = module(norm(x) if norm else x)
        with torch.inference_mode():
            inside = flat(x)
        with torch.no_grad():
            assert (flat(x) - expected).abs().max() < 1e-6 and (inside - expected).abs().max() < 1e-6
        assert torch.equal(x, keep), "the input is left alone"


def test_a_step_of_the_optimiser_and_of_the_statistics_is_seen():
    module, norm = MLP(4, (16,), out_dim=2), normalizer(4)
    flat, x = flatten(module, norm), torch.randn(8, 4)
    with torch.inference_mode():
        before = flat(x)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    module(x).sum().backward()
    optimizer.step()
    norm.accumulate(torch.randn(90, 4), torch.ones(90, dtype=torch.bool))
    norm.merge()
    with torch.inference_mode():
        after = flat(x)
        assert (after - module(norm(x))).abs().max() < 1e-6 and (after - before).abs().max() > 1e-2


def test_results_of_two_calls_do_not_share_memory():
    flat, x = flatten(MLP(3, (8,), out_dim=2)), torch.randn(4, 3)
    first = flat(x)
    kept = first.clone()
    flat(x + 1)
    assert torch.equal(first, kept)


def test_views_follow_when_the_parameters_storage_is_exchanged():
    module = MLP(3, (8,), out_dim=2)
    flat, x = flatten(module), torch.randn(4, 3)
    flat(x)
    for parameter in module.parameters():  # what module.to(device) does
        parameter.data = parameter.data.clone() + 1.0
    assert (flat(x) - module(x)).abs().max() < 1e-6


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_is_independent(clone):
    module = MLP(3, (8,), "silu", out_dim=2)
    flat, x = flatten(module, normalizer(3)), torch.randn(4, 3)
    twin = clone(flat)
    expected = flat(x).clone()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert torch.equal(twin(x), expected) and not torch.equal(flat(x), expected)


def test_what_is_not_a_plain_mlp_is_left_to_the_module():
    class Odd(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    hooked = nn.Sequential(nn.Linear(2, 2))
    hooked[0].register_forward_hook(lambda *_: None)
    for module in (
        Odd(2, 2),
        nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2)),
        nn.Linear(2, 2, bias=False),
        hooked,
    ):
        assert flatten(module) is None
    assert flatten(nn.Sequential(nn.Tanh())) is None and flatten(MLP(3, ())) is None
    assert flatten(nn.Linear(2, 2).double()) is None


def test_dropout_does_nothing_while_acting():
    module = nn.Sequential(
        nn.Linear(3, 8), nn.Dropout(0.9), nn.Tanh(), nn.Sequential(nn.Identity(), nn.Linear(8, 1))
    )
    flat, x = flatten(module), torch.randn(5, 3)
    assert isinstance(flat, FlatMLP) and (flat(x) - module.eval()(x)).abs().max() < 1e-6


def test_eval_mode_restores_every_submodule():
    module = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)))
    module[1].eval()
    with eval_mode(module):
        assert not any(part.training for part in module.modules())
    assert module.training and module[0].training and not module[1].training and not module[1][0].training


@pytest.mark.parametrize("seed", range(12))
def test_random_architectures(seed):
    """Widths, depths, activations, rows and normalisers at random: the flat form is the module's within 1e-6."""
    draw = random.Random(seed)
    activation, layers = draw.choice(list(ACTIVATIONS)), draw.randint(0, 3)
    width, hidden = draw.randint(1, 40), [draw.randint(1, 300) for _ in range(layers)]
    torch.manual_seed(seed)
    module = MLP(width, hidden, activation, draw.choice([None, 1, 7]) if layers else 3)
    own = normalizer(width) if draw.random() < 0.5 else None
    flat = flatten(module, own)
    assert flat is not None
    for rows in (draw.randint(1, 64), draw.choice([256, 1000])):
        x = torch.randn(rows, width)
        with torch.no_grad():
            expected = module(x if own is None else own(x))
            torch.testing.assert_close(flat(x), expected, rtol=1e-6, atol=1e-6)
        run = flat.arrays(rows)
        if run is not None:
            assert own is None and run(x.numpy()) == pytest.approx(expected.numpy(), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("network", ["nature_cnn", "minatar_cnn"])
@pytest.mark.parametrize("layout", ["hwc", "chw"])
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_a_standard_cnn_s_flat_form_equals_the_module(network, layout, kind):
    side = 44 if network == "nature_cnn" else 10
    shape = (side, side + 1, 3) if layout == "hwc" else (3, side, side + 1)
    space = spaces.Box(0, 255, shape, kind)
    torch.manual_seed(0)
    encoder = build_encoder(space, EncoderConfig(network=network, layout=layout))
    flat = flatten_image(encoder)
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (5, *shape)).astype(kind))
    given = x.clone()
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(flat(x), encoder(x), rtol=1e-6, atol=1e-6)
            encoder.parts[0].network.linear.bias.add_(0.5)  # a step of an optimiser
    assert torch.equal(x, given)
    encoder.parts[0].network.linear.weight.data = encoder.parts[0].network.linear.weight.data * 2.0
    with torch.no_grad():
        torch.testing.assert_close(flat(x), encoder(x), rtol=1e-6, atol=1e-6)
    seen = []
    encoder.parts[0].network.convolutions[0].register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        flat(x)
    assert seen == [1]


def test_other_encoders_are_left_to_the_module():
    image = spaces.Box(0, 255, (10, 10, 3), np.uint8)
    assert flatten_image(build_encoder(image, EncoderConfig(network="impala_cnn", layout="hwc"))) is None
    two = spaces.Dict({"a": image, "b": spaces.Box(-1, 1, (2,))})
    assert flatten_image(build_encoder(two, EncoderConfig(layout="hwc"))) is None
