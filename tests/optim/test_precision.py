"""Losses in 16 bits: what stays in 32, and the scale of float16 losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from uniarena.config import ConfigError
from uniarena.nets.backprop import backprop_of
from uniarena.nets.precision import as_target, autocasting, widened
from uniarena.optim import (
    Derived,
    Minimize,
    NonFiniteError,
    OptimizerConfig,
    build_optimizer,
    build_precision,
)
from uniarena.optim import precision as module
from uniarena.optim.precision import FIRST_SCALE, GROWTH_INTERVAL, Precision


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))


def parts(kind: Any = "fp16", **optimizer: Any) -> tuple[Minimize, Weight, Any]:
    model = Weight()
    steps = build_optimizer(model.named_parameters(), OptimizerConfig(type="sgd", **optimizer), 0.125)
    return Minimize(None, build_precision(kind, "cpu")), model, steps


def slope(model: Weight, gradient: float) -> Any:
    """A loss of 1 whose gradient is `gradient`; infinite where the scale makes it more than 65,504, as in float16."""

    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 0.0 + 1.0

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return (grads[0] * gradient).half().float()

    return lambda batch: (Half.apply(model.w).sum(), {"seen": torch.tensor(float(batch))})


# -- the scale -----------------------------------------------------------------------------------------------
def test_an_overflow_leaves_the_step_out_and_halves_the_scale() -> None:
    minimize, model, optimizer = parts()
    minimize.react = lambda *_: pytest.fail("the guard has nothing to do with it")
    # 3 × 2^16 and 3 × 2^15 are beyond float16's 65,504; 3 × 2^14 = 49,152 is not
    kept = [minimize(slope(model, 3.0), k, optimizer) for k in range(3)]
    assert [float(m["overflow_share"]) for m in kept] == [1.0, 1.0, 0.0]
    assert model.w.grad is not None
    assert [float(m["loss_scale"]) for m in kept] == [FIRST_SCALE / 2, FIRST_SCALE / 4, FIRST_SCALE / 4]
    assert ["grad_norm" in m for m in kept] == [False, False, True] and float(kept[2]["grad_norm"]) == 3.0
    assert model.w.item() == 1.0 - 0.125 * 3.0, "one step, of the unscaled gradient"
    assert minimize.precision is not None and minimize.precision.scale is not None
    assert minimize.precision.scale.skipped == 2


def test_a_small_gradient_survives_through_the_scale() -> None:
    minimize, model, optimizer = parts()
    tiny = 2.0**-30  # float16 knows nothing below 2^-24
    minimize(slope(model, tiny), 0, optimizer)
    assert optimizer.gradients()["w"].item() == tiny


def test_the_scale_grows_again() -> None:
    minimize, model, optimizer = parts()
    scale = minimize.precision.scale  # type: ignore[union-attr]
    scale.value = 8.0
    for _ in range(GROWTH_INTERVAL):
        scale.stepped()
    assert scale.value == 16.0
    minimize(slope(model, 1.0), 0, optimizer)
    assert scale.value == 16.0


def test_what_no_scale_can_help_is_a_fault() -> None:
    minimize, model, optimizer = parts()
    minimize.precision.scale.value = 1.0  # type: ignore[union-attr]
    with pytest.raises(NonFiniteError, match="gradient"):
        minimize(slope(model, float("inf")), 0, optimizer)
    minimize, model, optimizer = parts()
    with pytest.raises(NonFiniteError, match="loss"):
        minimize(lambda _: (model.w.sum() * float("nan"), {}), 0, optimizer)
    assert minimize.precision.scale.skipped == 0  # type: ignore[union-attr]
    assert model.w.item() == 1.0


def test_the_scale_is_saved() -> None:
    minimize, model, optimizer = parts()
    minimize(slope(model, 3.0), 0, optimizer)
    other = parts()[0]
    other.load_state_dict(minimize.state_dict())
    assert other.state_dict() == minimize.state_dict()
    assert minimize.state_dict()["scale"] == {"value": FIRST_SCALE / 2, "skipped": 1, "good": 0}
    parts("bf16")[0].load_state_dict(minimize.state_dict())  # another precision: nothing to take over
    parts()[0].load_state_dict({})  # a checkpoint of before


def test_sharpness_overflow_of_the_second_pass_puts_the_parameters_back() -> None:
    minimize, model, optimizer = parts("fp16", momentum=None)
    model = Weight()
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig(type="sam", base="sgd"), 0.125)
    calls = []

    def loss(batch: Any) -> Any:
        calls.append(model.w.item())
        return slope(model, 0.5 if len(calls) == 1 else 3.0)(batch)

    metrics = minimize(loss, 0, optimizer)
    assert float(metrics["overflow_share"]) == 1.0 and model.w.item() == 1.0 and calls[1] != 1.0


def test_a_loss_with_derivatives_by_hand_is_not_scaled() -> None:
    minimize, model, optimizer = parts()

    def backward() -> None:
        model.w.grad = torch.full((1,), 2.0)

    metrics = minimize(lambda _: (Derived(torch.tensor(1.0), backward), {}), 0, optimizer)
    assert float(metrics["grad_norm"]) == 2.0 and "loss_scale" not in metrics


def test_parts_of_a_batch_are_unscaled_before_they_are_summed() -> None:
    from uniarena.batch import Batch

    gradients = {}
    for accumulate in (1, 4):
        minimize, model, optimizer = parts("fp16", accumulate=accumulate)
        batch = Batch((8,), x=torch.arange(8.0))

        def loss(rows: Batch, model: Weight = model) -> Any:
            return (model.w * rows.x).mean(), {}

        minimize(loss, batch, optimizer)
        gradients[accumulate] = optimizer.gradients()["w"].item()
    assert gradients[1] == gradients[4] == 3.5


# -- what stays in 32 bits -----------------------------------------------------------------------------------
def test_a_loss_runs_in_fewer_bits_and_its_targets_do_not() -> None:
    layer, seen = nn.Linear(2, 2), {}

    @as_target
    def target(x: Tensor) -> Tensor:
        seen["inside"] = autocasting()
        return layer(x)

    def loss(x: Tensor) -> Any:
        out = layer(x)
        seen.update(out=out.dtype, target=target(x).dtype, autocast=autocasting())
        return (widened(out) - target(x)).square().mean(), {}

    optimizer = build_optimizer(layer.named_parameters(), OptimizerConfig(), 1e-3)
    metrics = Minimize(None, Precision("bf16"))(loss, torch.ones(3, 2), optimizer)
    assert seen == {"out": torch.bfloat16, "target": torch.float32, "autocast": True, "inside": False}
    assert (
        metrics["loss"].dtype == layer.weight.dtype == optimizer.gradients()["weight"].dtype == torch.float32
    )
    assert not autocasting() and not target(torch.ones(1, 2)).requires_grad


def test_gradients_by_hand_step_aside() -> None:
    passes = backprop_of(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)))
    assert passes is not None and not passes.watched
    with Precision("bf16").autocast():
        assert passes.watched


def test_widened_leaves_the_rest_alone() -> None:
    x, whole = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    assert widened(x) is x and widened(whole) is whole
    assert widened(torch.zeros(2, dtype=torch.float16)).dtype == torch.float32


def test_a_device_that_cannot_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(nn.Module):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()

        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")

    monkeypatch.setattr(module.torch.nn, "Linear", Refuses)
    with pytest.raises(
        ConfigError, match=r"fp16 cannot be used on the device 'cpu'.*not implemented"
    ) as caught:
        build_precision("fp16", "cpu")
    assert caught.value.path == "learner.precision"
    assert build_precision("fp32", "cpu") is None
