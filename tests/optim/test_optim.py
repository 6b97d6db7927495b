"""Optimisers, schedules and the one way to take a step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from uniarena.config import ConfigError
from uniarena.optim import (
    LearnStep,
    Minimize,
    NonFiniteError,
    Optimizer,
    OptimizerConfig,
    ScheduleConfig,
    build_optimizer,
    global_norm,
    make_schedule,
)


class Line(nn.Module):
    """y = w·x + b, both from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1))


def squares(model: Line) -> Any:
    """Loss 3·w₀ + 4·w₁ + 0·b: the gradient is (3, 4) and (0), its norm 5, whatever the parameters."""
    return lambda scale: (
        scale * (3 * model.w[0] + 4 * model.w[1] + 0 * model.b.sum()),
        {"scale": torch.tensor(scale)},
    )


def sgd(model: nn.Module, lr: float | ScheduleConfig = 0.1, **fields: Any) -> Optimizer:
    return build_optimizer(model.named_parameters(), OptimizerConfig(type="sgd", **fields), lr)


def test_schedules_by_hand() -> None:
    assert [make_schedule(0.3)(p) for p in (0.0, 0.5, 1.0)] == [0.3, 0.3, 0.3]
    line = make_schedule(ScheduleConfig(start=1.0, end=0.5))
    assert [line(p) for p in (0.0, 0.5, 1.0, 2.0)] == [1.0, 0.75, 0.5, 0.5]
    cosine = make_schedule(ScheduleConfig(type="cosine", start=1.0))
    # (1 + cos(π/3)) / 2 = 0.75, (1 + cos(π/2)) / 2 = 0.5
    assert [cosine(p) for p in (0.0, 1 / 3, 0.5, 1.0)] == pytest.approx([1.0, 0.75, 0.5, 0.0])
    assert make_schedule(ScheduleConfig(type="constant", start=2.0))(0.7) == 2.0


def test_a_step_by_hand() -> None:
    model = Line()
    optimizer = sgd(model)
    metrics = Minimize()(squares(model), 1.0, optimizer)
    # w − 0.1·(3, 4)
    assert model.w.tolist() == pytest.approx([0.7, 0.6])
    assert metrics["grad_norm"].item() == 5.0
    assert metrics["loss"].item() == 7.0
    assert metrics["scale"].item() == 1.0
    assert all(value.ndim == 0 and not value.requires_grad for value in metrics.values())


def test_global_norm_clipping_by_hand() -> None:
    model = Line()
    metrics = Minimize(max_grad_norm=0.5)(squares(model), 1.0, sgd(model))
    # (3, 4)·0.5/5 = (0.3, 0.4); the norm reported is the one before clipping
    assert model.w.tolist() == pytest.approx([0.97, 0.96])
    assert metrics["grad_norm"].item() == 5.0
    model = Line()
    Minimize(max_grad_norm=5.5)(squares(model), 1.0, sgd(model))
    assert model.w.tolist() == pytest.approx([0.7, 0.6])


def test_clipping_is_torch_s() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = {str(k): torch.randn(3, k + 1, generator=generator) for k in range(4)}
    parameters = [nn.Parameter(torch.zeros_like(g)) for g in gradients.values()]
    for parameter, gradient in zip(parameters, gradients.values(), strict=True):
        parameter.grad = gradient.clone()
    assert torch.equal(global_norm(gradients), nn.utils.clip_grad_norm_(parameters, 1.0))


def test_a_hook_clips_gradients_and_halves_the_learning_rate() -> None:
    model = Line()
    optimizer, minimize = sgd(model), Minimize(max_grad_norm=0.5)
    seen: list[LearnStep] = []

    def hook(step: LearnStep) -> None:
        seen.append(step)
        for gradient in step.gradients.values():
            gradient.clamp_(-1e-3, 1e-3)
        step.optimizer.scale(0.5)

    minimize.hook = hook
    minimize(squares(model), 1.0, optimizer)
    assert sorted(seen[0].gradients) == ["b", "w"]
    # 0.05·1e-3, and no clipping to 0.5 after that: the norm is measured again
    assert (1.0 - model.w).tolist() == pytest.approx([5e-5, 5e-5], rel=1e-2)
    assert optimizer.lr == pytest.approx(0.05)
    optimizer.set_progress(0.5)
    assert optimizer.lr == pytest.approx(0.05), "the factor outlives the schedule's next move"
    assert optimizer.groups[0]["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_before_the_step(bad: float) -> None:
    model = Line()
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig(), 0.1)
    Minimize()(squares(model), 1.0, optimizer)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(NonFiniteError, match="scale") as caught:
        Minimize()(squares(model), bad, optimizer)
    assert caught.value.where == "loss" and caught.value.names == ["scale"]
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_gradient_that_is_not_finite_is_named() -> None:
    model = Line()

    def loss(_: None) -> tuple[Tensor, dict[str, Tensor]]:
        return model.w.sum() + (model.b - 1.0).sqrt().sum(), {}  # √ at 0: value 0, slope ∞

    with pytest.raises(NonFiniteError, match=r"not finite in b;.*learning_rate") as caught:
        Minimize(0.5)(loss, None, sgd(model))
    assert caught.value.where == "gradient" and caught.value.names == ["b"]
    assert model.w.tolist() == [1.0, 1.0] and model.b.item() == 1.0


def test_parameters_without_gradient_are_left_alone() -> None:
    model = Line()
    Minimize(0.5)(lambda _: (model.w.sum(), {}), None, sgd(model, weight_decay=0.1))
    assert model.b.item() == 1.0


def test_a_shared_parameter_is_stepped_once_and_frozen_ones_never() -> None:
    model = Line()
    model.b.requires_grad_(False)
    pairs = [*model.named_parameters(), ("again", model.w)]
    optimizer = build_optimizer(pairs, OptimizerConfig(type="sgd"), 0.1)
    assert optimizer.names == ["w"]
    with pytest.raises(ValueError, match="no trainable parameter"):
        build_optimizer([("b", model.b)], OptimizerConfig(), 0.1)


def test_types_and_their_hyper_parameters() -> None:
    model = Line()
    pairs = list(model.named_parameters())
    adam = build_optimizer(pairs, OptimizerConfig(), 3e-4)
    assert isinstance(adam.torch, torch.optim.Adam) and adam.groups[0]["fused"] is True
    assert (adam.groups[0]["eps"], adam.groups[0]["lr"]) == (1e-5, 3e-4)
    adamw = build_optimizer(
        pairs, OptimizerConfig(type="adamw", weight_decay=0.1, betas=(0.8, 0.9), lr=0.5), 3e-4
    )
    assert isinstance(adamw.torch, torch.optim.AdamW)
    assert (adamw.groups[0]["weight_decay"], adamw.groups[0]["betas"], adamw.lr) == (0.1, (0.8, 0.9), 0.5)
    rms = build_optimizer(pairs, OptimizerConfig(type="rmsprop", alpha=0.9, momentum=0.1, eps=1e-3), 3e-4)
    assert isinstance(rms.torch, torch.optim.RMSprop)
    assert (rms.groups[0]["alpha"], rms.groups[0]["momentum"], rms.groups[0]["eps"]) == (0.9, 0.1, 1e-3)
    own = build_optimizer(pairs, OptimizerConfig(type="torch.optim:NAdam"), 3e-4)
    assert isinstance(own.torch, torch.optim.NAdam)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"type": "sgd", "betas": (0.9, 0.99)}, "learner.optimizer.betas"),
        ({"type": "sgd", "eps": 1e-8}, "learner.optimizer.eps"),
        ({"type": "adam", "momentum": 0.9}, "learner.optimizer.momentum"),
    ],
)
def test_a_hyper_parameter_that_the_type_lacks_is_an_error(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError, match=r"has no .*it has") as caught:
        build_optimizer(Line().named_parameters(), OptimizerConfig(**fields), 0.1)
    assert caught.value.path == path


def test_learning_rate_is_schedule_times_factor() -> None:
    optimizer = sgd(Line(), ScheduleConfig(start=1.0, end=0.0))
    optimizer.set_progress(0.25)
    assert optimizer.lr == 0.75
    optimizer.scale(0.5)
    optimizer.scale(0.5)
    assert optimizer.lr == 0.1875
    optimizer.set_progress(0.5)
    assert optimizer.lr == optimizer.groups[0]["lr"] == 0.125


@pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop", "sgd"])
def test_saved_state_continues_bit_for_bit(kind: str) -> None:
    def run(model: Line, optimizer: Optimizer, first: int, last: int) -> None:
        for k in range(first, last):
            optimizer.set_progress(k / 10)
            loss = (model.w.square().sum() * (k + 1.0) + model.b.exp().sum(),)
            Minimize(0.5)(lambda _, loss=loss: (loss[0], {}), None, optimizer)
            if k == 2:
                optimizer.scale(0.3)

    cfg, lr = OptimizerConfig(type=kind), ScheduleConfig(start=0.1, end=0.01)
    through, broken = Line(), Line()
    run(through, build_optimizer(through.named_parameters(), cfg, lr), 0, 10)
    first = build_optimizer(broken.named_parameters(), cfg, lr)
    run(broken, first, 0, 5)
    fresh = Line()
    fresh.load_state_dict(broken.state_dict())
    second = build_optimizer(fresh.named_parameters(), cfg, lr)
    second.load_state_dict(first.state_dict())
    assert second.lr == first.lr == second.groups[0]["lr"]
    run(broken, first, 5, 7)  # the original may go on: nothing is shared
    run(fresh, second, 5, 10)
    assert torch.equal(fresh.w, through.w) and torch.equal(fresh.b, through.b)
