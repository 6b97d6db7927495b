"""Passes in kept memory, with NumPy's tanh, give autograd's gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from uniarena.nets.array_backprop import ArrayBackprop, array_backprop_of
from uniarena.nets.mlp import MLP


def of(module: nn.Module) -> ArrayBackprop:
    passes = array_backprop_of(module)
    assert passes is not None
    return passes


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("hidden", [(), (8,), (16, 12)])
def test_forward_and_gradients_are_autograd_s(activation: str, hidden: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = MLP(5, hidden, activation, 3)
    passes = of(module)
    for rows in (7, 4, 7):  # memory is kept, and taken again
        x, gradient = torch.randn(rows, 5), torch.randn(rows, 3)
        out = module(x)
        expected = torch.autograd.grad(out, list(module.parameters()), gradient)
        torch.testing.assert_close(
            torch.from_numpy(passes.forward_arrays(x)), out.detach(), rtol=1e-6, atol=1e-6
        )
        passes.gradient[:] = gradient.numpy()
        passes.backward_arrays()
        for parameter, wanted in zip(module.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, wanted, rtol=1e-5, atol=1e-6)
            parameter.grad = None


def test_gradients_are_added_to_those_that_are_there() -> None:
    module = nn.Sequential(nn.Linear(1, 1))
    with torch.no_grad():
        module[0].weight.fill_(2.0)
        module[0].bias.fill_(1.0)
    passes = of(module)
    assert passes.forward_arrays(torch.tensor([[3.0], [4.0]])).tolist() == [[7.0], [9.0]]
    for _ in range(2):
        passes.gradient[:] = 1.0
        passes.backward_arrays()
    assert module[0].weight.grad.tolist() == [[14.0]] and module[0].bias.grad.tolist() == [4.0]


def test_new_memory_of_a_parameter_is_noticed() -> None:
    module = MLP(2, (3,), "tanh", 1)
    passes, x = of(module), torch.ones(2, 2)
    before = passes.forward_arrays(x).copy()
    last = module.layers[2]
    assert isinstance(last, nn.Linear)
    last.bias.data = last.bias.data + 1.0
    assert passes.forward_arrays(x) == pytest.approx(before + 1.0)


def test_whoever_watches_has_autograd() -> None:
    module = MLP(2, (3,), "tanh", 1)
    passes = of(module)
    assert passes.able
    handle = module.layers[1].register_forward_hook(lambda *_: None)
    assert not passes.able
    handle.remove()
    next(module.parameters()).requires_grad_(False)
    assert not passes.able
    assert array_backprop_of(MLP(2, (3,), "silu", 1)) is None


def test_a_copy_of_the_module_has_passes_of_its_own() -> None:
    module = MLP(2, (3,), "tanh", 1)
    other = copy.deepcopy(module)
    of(other).forward_arrays(torch.ones(1, 2))
    passes = of(module)
    passes.forward_arrays(torch.ones(1, 2))
    passes.gradient[:] = 1.0
    passes.backward_arrays()
    assert all(p.grad is None for p in other.parameters())
