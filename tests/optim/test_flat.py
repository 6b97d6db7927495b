"""Parameters side by side: the same steps, names, shapes and checkpoints, and only where it is allowed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from uniarena.optim import Minimize, OptimizerConfig, build_optimizer, global_norm
from uniarena.optim.flat import Flat, Gradients


def net() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def build(module: nn.Module, **fields: Any) -> Any:
    return build_optimizer(module.named_parameters(), OptimizerConfig(**fields), 0.05)


def loss_of(module: nn.Module) -> Any:
    def loss(batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return (module(batch) - 1.0).square().mean(), {}

    return loss


def test_steps_are_those_of_torch() -> None:
    ours, theirs = net(), net()
    optimizer = build(ours, weight_decay=0.01)
    assert optimizer._flat is not None
    plain = torch.optim.Adam(theirs.parameters(), lr=0.05, eps=1e-5, weight_decay=0.01)
    minimize = Minimize(0.1)
    for step in range(6):
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        minimize(loss_of(ours), x, optimizer)
        plain.zero_grad()
        loss_of(theirs)(x)[0].backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        plain.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    saved, other = optimizer.state_dict()["torch"], plain.state_dict()
    for mine, its in zip(saved["state"].values(), other["state"].values(), strict=True):
        assert mine["exp_avg"].shape == its["exp_avg"].shape and float(mine["step"]) == 6.0
        torch.testing.assert_close(mine["exp_avg_sq"], its["exp_avg_sq"], rtol=1e-4, atol=1e-8)


def test_a_resumed_optimiser_takes_the_same_steps_bit_for_bit() -> None:
    first = net()
    optimizer, minimize = build(first), Minimize(0.5)
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        minimize(loss_of(first), x, optimizer)
    second = net()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    resumed = build(second)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for module, own in ((first, optimizer), (second, resumed)):
        for _ in range(3):
            minimize(loss_of(module), x, own)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_a_state_that_somebody_exchanged_is_taken_up() -> None:
    module = net()
    optimizer, minimize, x = build(module), Minimize(), torch.ones(4, 3)
    for _ in range(3):
        minimize(loss_of(module), x, optimizer)
    parameter = optimizer.parameters[2]
    optimizer.torch.state[parameter]["exp_avg"] = torch.full_like(parameter, 7.0)
    minimize(loss_of(module), x, optimizer)
    kept = optimizer.torch.state[parameter]["exp_avg"]
    assert float((kept - 6.3).abs().max()) < 0.2  # 0.9 · 7 + 0.1 · a small gradient
    optimizer.torch.state.pop(parameter)  # as the guard does with a bad one
    minimize(loss_of(module), x, optimizer)
    minimize(loss_of(module), x, optimizer)
    assert float(optimizer.torch.state[parameter]["step"]) == 2.0


def test_gradients_are_parts_of_one_and_writing_into_them_counts() -> None:
    module = net()
    optimizer = build(module)
    optimizer.backward(loss_of(module)(torch.ones(2, 3))[0])
    gradients = optimizer.gradients()
    assert isinstance(gradients, Gradients) and list(gradients) == [
        name for name, _ in module.named_parameters()
    ]
    assert float(global_norm(gradients)) == pytest.approx(float(global_norm(dict(gradients))), rel=1e-6)
    for gradient in gradients.values():
        gradient.zero_()
    assert float(gradients.whole.abs().sum()) == 0.0
    assert all(p.grad is g for p, g in zip(module.parameters(), gradients.values(), strict=True))


def test_a_parameter_without_a_gradient_or_frozen_is_not_moved() -> None:
    module = net()
    optimizer, minimize, x = build(module), Minimize(0.5), torch.ones(4, 3)
    minimize(loss_of(module), x, optimizer)
    minimize(loss_of(module), x, optimizer)
    module[0].weight.requires_grad_(False)
    before = module[0].weight.detach().clone()
    minimize(loss_of(module), x, optimizer)
    assert torch.equal(module[0].weight, before) and not isinstance(optimizer.gradients(), Gradients)
    module[0].weight.requires_grad_(True)
    minimize(loss_of(module), x, optimizer)
    assert not torch.equal(module[0].weight, before)


def test_new_memory_of_a_parameter_ends_it() -> None:
    module = net()
    optimizer, minimize, x = build(module), Minimize(0.5), torch.ones(4, 3)
    minimize(loss_of(module), x, optimizer)
    module[2].weight.data = module[2].weight.data.clone()
    before = module[2].weight.detach().clone()
    for _ in range(2):
        minimize(loss_of(module), x, optimizer)
    assert not torch.equal(module[2].weight, before) and not isinstance(optimizer.gradients(), Gradients)


def test_where_it_does_not_fit() -> None:
    module = net()
    assert Flat.fits(list(module.parameters()))
    assert not Flat.fits(list(net().double().parameters()))
    assert not Flat.fits(list(nn.Linear(1024, 1025).parameters()))
    assert build(module, type="sgd")._flat is None
    moved = copy.deepcopy(module)
    build(module)
    assert moved[0].weight.data_ptr() != module[0].weight.data_ptr()
