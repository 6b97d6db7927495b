"""Values in normalised units: the moments, outputs that stay, and where the scale goes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from uniarena.config import ConfigError
from uniarena.nets.return_scale import ScaledLinear, scale_values
from uniarena.seeding import Streams
from uniarena.values.model import build_model

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)


def layer(preserve: bool, decay: float = 0.5) -> ScaledLinear:
    linear = nn.Linear(3, 1)
    nn.init.constant_(linear.weight, 0.5)
    nn.init.constant_(linear.bias, 0.25)
    return ScaledLinear(linear, preserve, decay)


def test_moments_by_hand() -> None:
    scaled = layer(preserve=False)
    scaled.update(torch.tensor([[1.0, 3.0], [100.0, 100.0]]), torch.tensor([[True, True], [False, False]]))
    assert (scaled.mean.item(), scaled.std.item()) == (2.0, 1.0)  # corrected for the start: no share of 0
    scaled.update(torch.tensor([5.0, 9.0]))
    # weights ¼ and ½ of ¾: mean (2 + 2·7)/3 = 16/3, of squares (5 + 2·53)/3 = 37, variance 37 − 256/9 = 77/9
    assert scaled.mean.item() == pytest.approx(16 / 3)
    assert scaled.std.item() == pytest.approx((77 / 9) ** 0.5)
    assert scaled(torch.ones(2, 3)).flatten().tolist() == pytest.approx([1.75 * (77 / 9) ** 0.5 + 16 / 3] * 2)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e6])
def test_outputs_stay_when_the_moments_move(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    scaled, x = layer(preserve=True), torch.randn(50, 3, generator=generator)
    scaled.update(scale * torch.randn(64, generator=generator))
    for shift in (0.0, 3.0, -50.0):
        before = scaled(x)
        weight = scaled.weight.detach().clone()
        scaled.update(scale * (shift + 5.0 * torch.randn(64, generator=generator)))
        assert not torch.allclose(weight, scaled.weight), "the parameters moved"
        torch.testing.assert_close(scaled(x), before, rtol=1e-5, atol=1e-5 * float(scaled.std))


def test_outputs_stay_exactly_but_for_rounding() -> None:
    scaled = layer(preserve=True).double()
    x = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    scaled.update(torch.tensor([1.0, 2.0]))
    before = scaled(x)
    scaled.update(torch.tensor([7.0, 11.0, 1e3]))
    torch.testing.assert_close(scaled(x), before, rtol=1e-12, atol=1e-12)


def test_returns_that_do_not_differ_are_not_blown_up() -> None:
    scaled = layer(preserve=True)
    scaled.update(torch.full((8,), 40.0))
    assert scaled.std.item() == pytest.approx(0.04)
    scaled.update(torch.zeros(8), torch.zeros(8, dtype=torch.bool))
    assert scaled.mean.item() == pytest.approx(40.0), "no valid row, no change"


@pytest.mark.parametrize("shared", [True, False])
def test_the_scale_goes_on_the_last_layer_of_the_value(shared: bool) -> None:
    policy = {"hidden_sizes": [8], "share_encoder": shared}
    model = build_model(OBS, spaces.Discrete(2), policy, {}, None, Streams(0))
    names = set(model.state_dict())
    x = torch.randn(5, 3)
    before, logits = model.value(x), model(x).dist.logits
    scaled = scale_values(model, preserve=True)
    assert torch.equal(model.value(x), before) and names < set(model.state_dict())
    scaled.update(torch.tensor([100.0, 300.0]))  # the first moments: mean 200, deviation 100
    first = model.value(x)
    torch.testing.assert_close(first, 100.0 * before + 200.0)
    scaled.update(torch.tensor([500.0, 900.0]))
    torch.testing.assert_close(model.value(x), first, rtol=1e-4, atol=1e-3)
    assert torch.equal(model(x).dist.logits, logits)


def test_a_value_that_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be told apart among 0, 1") as caught:
        scale_values(nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1)), preserve=True)
    assert caught.value.path == "learner.normalize_return"
