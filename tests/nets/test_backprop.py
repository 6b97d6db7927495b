"""Gradients written down by hand are autograd's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from uniarena.nets.backprop import Backprop, backprop_of, ensemble_backprop_of
from uniarena.nets.ensemble import EnsembleMLP
from uniarena.nets.mlp import MLP


def of(module: nn.Module) -> Backprop:
    passes = backprop_of(module)
    assert passes is not None
    return passes


def gradients(module: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in module.parameters()]
    for parameter in module.parameters():
        parameter.grad = None
    return [gradient for gradient in found if gradient is not None]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("hidden", [(), (8,), (16, 12)])
def test_forward_and_gradients_are_autograd_s(activation: str, hidden: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = MLP(5, hidden, activation, 3)
    x, gradient = torch.randn(7, 5), torch.randn(7, 3)
    out = module(x)
    out.backward(gradient)
    expected = gradients(module)
    passes = of(module)
    assert torch.equal(passes.forward(x), out.detach())
    passes.backward(gradient)
    found = gradients(module)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_a_relu_s_gradient_by_hand() -> None:
    module = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        module[0].bias.zero_()
        module[2].weight.copy_(torch.tensor([[3.0, 5.0]]))
        module[2].bias.fill_(0.5)
    passes = of(module)
    assert passes.forward(torch.tensor([[2.0]])).item() == 6.5  # 3 · 2 + 5 · 0 + 0.5
    passes.backward(torch.tensor([[1.0]]))
    assert [g.flatten().tolist() for g in gradients(module)] == [[6.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0]]


def test_gradients_are_added_to_those_that_are_there() -> None:
    module = MLP(2, (4,), "relu", 1)
    passes, x, one = of(module), torch.randn(3, 2), torch.ones(3, 1)
    passes.forward(x)
    passes.backward(one)
    single = [g.clone() for g in gradients(module)]
    for _ in range(2):
        passes.forward(x)
        passes.backward(one)
    for a, b in zip(gradients(module), single, strict=True):
        torch.testing.assert_close(a, 2 * b)


def test_loaded_parameters_are_seen() -> None:
    module, other = MLP(2, (4,), "relu", 1), MLP(2, (4,), "relu", 1)
    passes, x = of(module), torch.randn(3, 2)
    module.load_state_dict(other.state_dict())
    assert torch.equal(passes.forward(x), other(x).detach())


def test_who_needs_the_graph_is_noticed() -> None:
    module = MLP(2, (4,), "relu", 1)
    passes = of(module)
    assert not passes.watched
    first, activation, last = module.layers
    for register, hook in (
        (activation.register_forward_hook, lambda *_: None),
        (first.register_full_backward_hook, lambda *_: None),
        (first.weight.register_hook, lambda gradient: gradient),
        (last.bias.register_post_accumulate_grad_hook, lambda parameter: None),
    ):
        handle = register(hook)
        assert passes.watched
        handle.remove()
        assert not passes.watched
    first.weight.requires_grad_(False)
    assert passes.watched


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 1)),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)),
        nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 1)),
        nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1)),
    ],
    ids=["gelu", "no last layer", "no activation", "norm", "no bias"],
)
def test_other_networks_are_left_to_autograd(module: nn.Module) -> None:
    assert backprop_of(module) is None


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_an_ensemble_s_gradients_are_autograd_s(activation: str, outputs: int) -> None:
    torch.manual_seed(0)
    module = EnsembleMLP(2, 5, outputs, (16, 12), activation)
    x, gradient = torch.randn(7, 5, requires_grad=True), torch.randn(2, 7, outputs)
    out = module(x)
    out.backward(gradient)
    expected = gradients(module)
    passes = ensemble_backprop_of(module)
    assert passes is not None and x.grad is not None
    torch.testing.assert_close(passes.forward(x.detach()), out.detach())
    passes.backward(gradient.clone())
    for a, b in zip(gradients(module), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    passes.forward(x.detach())
    torch.testing.assert_close(
        passes.input_gradient(gradient.clone(), 2), x.grad[:, 2:], rtol=1e-5, atol=1e-6
    )
    assert not gradients(module)


@pytest.mark.parametrize("options", [{"layer_norm": True}, {"dropout": 0.1}, {"activation": "gelu"}])
def test_other_ensembles_are_left_to_autograd(options: dict[str, Any]) -> None:
    assert ensemble_backprop_of(EnsembleMLP(2, 3, 1, (4,), **options)) is None
