"""Policy-gradient losses on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uniarena.ops.policy_gradient import (
    LOG_RATIO_BOUND,
    approx_kl,
    clamp_log_ratio,
    clip_fraction,
    surrogate,
    value_loss,
)


def logs(*ratios: float) -> torch.Tensor:
    return torch.tensor(ratios).log()


def test_surrogate_by_hand() -> None:
    ratio, advantage = logs(1.5, 0.5, 1.5, 0.5, 10.0), torch.tensor([2.0, 2.0, -2.0, -2.0, -2.0])
    # ρA = 3, 1, −3, −1, −20.   clip(ρ, 0.8, 1.2)·A = 2.4, 1.6, −2.4, −1.6, −2.4.
    plain = surrogate(ratio, advantage, "none")
    assert plain.tolist() == pytest.approx([3.0, 1.0, -3.0, -1.0, -20.0])
    # min of both: 2.4, 1, −3, −1.6, −20.
    hard = surrogate(ratio, advantage, "hard", 0.2)
    assert hard.tolist() == pytest.approx([2.4, 1.0, -3.0, -1.6, -20.0])
    # dual, c = 3: where A < 0 never below 3·(−2) = −6.
    dual = surrogate(ratio, advantage, "dual", 0.2, dual_clip=3.0)
    assert dual.tolist() == pytest.approx([2.4, 1.0, -3.0, -1.6, -6.0])


def test_unclipped_at_ratio_one_is_the_policy_gradient() -> None:
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    advantage = torch.tensor([3.0, -0.5])
    ratio, _ = clamp_log_ratio(log_prob, log_prob.detach())
    (grad,) = torch.autograd.grad(surrogate(ratio, advantage, "none").sum(), log_prob)
    assert grad.tolist() == [3.0, -0.5]


def test_truncated_weights_by_hand() -> None:
    # ρ = 4, 0.5 with ρ̄ = 2 and A = 3, −1: weights 2, 0.5; the value is min(ρ̄, ρ)·A and so is the slope in log π, where
    # ρ·A itself would have 12 and −0.5, and a ratio clamped at ρ̄ no slope at all in the first row.
    ratio = logs(4.0, 0.5).requires_grad_()
    gain = surrogate(ratio, torch.tensor([3.0, -1.0]), "truncated", rho_bar=2.0)
    (grad,) = torch.autograd.grad(gain.sum(), ratio)
    assert gain.tolist() == pytest.approx([6.0, -0.5]) and grad.tolist() == pytest.approx([6.0, -0.5])


def test_no_gradient_beyond_the_clip_in_the_direction_of_the_advantage() -> None:
    ratio = logs(1.5, 0.5, 1.5, 0.5).requires_grad_()
    gain = surrogate(ratio, torch.tensor([1.0, 1.0, -1.0, -1.0]), "hard", 0.2)
    (grad,) = torch.autograd.grad(gain.sum(), ratio)
    # 1.5 with A > 0 and 0.5 with A < 0 have gone far enough: 0. The others: d(ρA)/d log ρ = ρA = 0.5 and
    # −1.5.
    assert grad.tolist() == pytest.approx([0.0, 0.5, -1.5, 0.0])


@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30))
def test_no_log_ratio_overflows(new: float, old: float) -> None:
    ratio, clamped = clamp_log_ratio(torch.tensor([new]), torch.tensor([old]))
    bound = torch.tensor(LOG_RATIO_BOUND)
    assert ratio.abs() <= bound
    assert clamped.item() == bool((torch.tensor(new) - torch.tensor(old)).abs() > bound)
    for clip in ("none", "hard", "dual", "truncated"):
        assert surrogate(ratio, torch.tensor([-3.0]), clip).isfinite().all()
    assert approx_kl(ratio).isfinite().all()


def test_value_loss_by_hand() -> None:
    value, target = torch.tensor([1.0, 5.0]), torch.tensor([2.0, 2.0])
    assert value_loss(value, target).tolist() == [1.0, 9.0]
    # Huber, δ = 1: 0.5·1² = 0.5;  3 − 0.5 = 2.5.
    assert value_loss(value, target, kind="huber").tolist() == [0.5, 2.5]
    # Clip ±0.5 around old = 1.5, 1.5: 1.0 stays (−0.5): 1;  5 → 2.0: 0, and the larger of 9 and 0 is 9.
    old = torch.tensor([1.5, 1.5])
    assert value_loss(value, target, old, 0.5).tolist() == [1.0, 9.0]
    # Around old = 4: 1 → 3.5: 2.25 > 1;  5 → 4.5: 6.25 < 9.
    assert value_loss(value, target, torch.tensor([4.0, 4.0]), 0.5).tolist() == [2.25, 9.0]


def test_value_loss_refuses_to_broadcast() -> None:
    with pytest.raises(ValueError, match=r"\(3, 1\).*\(3,\)"):
        value_loss(torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(ValueError, match="old_value"):
        value_loss(torch.zeros(3), torch.zeros(3), clip_range=0.2)


def test_kl_estimate_by_hand() -> None:
    # ρ = 1: 0.  ρ = 2: 1 − ln 2 = 0.3069.  ρ = 1/2: −0.5 + ln 2 = 0.1931.
    expected = [0.0, 1.0 - math.log(2.0), math.log(2.0) - 0.5]
    assert approx_kl(logs(1.0, 2.0, 0.5)).tolist() == pytest.approx(expected, abs=1e-6)


def test_kl_estimate_is_unbiased() -> None:
    # Old N(0, 1), new N(0.5, 1): KL(old ‖ new) = 0.5² / 2 = 0.125.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, generator=generator)
    log_ratio = -0.5 * (x - 0.5) ** 2 + 0.5 * x**2
    assert approx_kl(log_ratio).mean().item() == pytest.approx(0.125, abs=2e-3)


def test_clip_fraction_by_hand() -> None:
    assert clip_fraction(logs(1.0, 1.19, 1.21, 0.79, 0.81), 0.2).tolist() == [0.0, 0.0, 1.0, 1.0, 0.0]
