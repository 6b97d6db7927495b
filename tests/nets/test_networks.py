"""MLP, convolutional networks, initialisation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from uniarena.nets.cnn import ImpalaCNN, MinAtarCNN, NatureCNN
from uniarena.nets.initialization import HIDDEN_GAIN, orthogonal_
from uniarena.nets.mlp import MLP


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_mlp_shapes():
    assert MLP(4, (8, 6)).out_dim == 6 and MLP(4, ()).out_dim == 4 and MLP(4, (8,), out_dim=3).out_dim == 3
    assert MLP(4, (8,), out_dim=3)(torch.zeros(2, 5, 4)).shape == (2, 5, 3)
    assert count(MLP(4, (64, 64), out_dim=2)) == 4 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2


def test_mlp_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="expected one of tanh"):
        MLP(4, (8,), "tahn")
    with pytest.raises(ValueError, match="at least 1"):
        MLP(4, (8, 0))


def test_nature_cnn_has_the_papers_layers():
    net = NatureCNN(4, 84, 84)
    assert net.linear.in_features == 64 * 7 * 7
    assert count(net) == (4 * 64 * 32 + 32) + (32 * 16 * 64 + 64) + (64 * 9 * 64 + 64) + (3136 * 512 + 512)
    assert net(torch.zeros(2, 4, 84, 84)).shape == (2, 512)
    assert NatureCNN(3, 36, 36).linear.in_features == 64
    with pytest.raises(ValueError, match="36×36"):
        NatureCNN(3, 35, 84)


def test_impala_cnn_has_fifteen_convolutions_and_takes_any_size():
    net = ImpalaCNN(3, 64, 64)
    assert sum(isinstance(layer, nn.Conv2d) for layer in net.modules()) == 15
    assert net.linear.in_features == 32 * 8 * 8
    assert ImpalaCNN(1, 7, 9)(torch.zeros(2, 1, 7, 9)).shape == (2, 256)


def test_minatar_cnn():
    net = MinAtarCNN(6, 10, 10)
    assert net.linear.in_features == 16 * 8 * 8 and net(torch.zeros(2, 6, 10, 10)).shape == (2, 128)
    with pytest.raises(ValueError, match="3×3"):
        MinAtarCNN(1, 2, 10)


def test_orthogonal_weights_have_the_gain_and_biases_are_zero():
    module = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Conv2d(2, 3, 3))
    orthogonal_(module, HIDDEN_GAIN)
    weight = module[0].weight.detach()
    torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(4))
    kernel = module[2].weight.detach().flatten(1)
    torch.testing.assert_close(kernel @ kernel.T, 2.0 * torch.eye(3), atol=1e-5, rtol=0)
    assert (module[0].bias == 0).all() and (module[2].bias == 0).all()
    assert math.isclose(HIDDEN_GAIN, math.sqrt(2))
