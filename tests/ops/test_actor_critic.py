"""Actor-critic formulas against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from uniarena.ops.actor_critic import (
    clip_target,
    critic_loss,
    expected_soft_terms,
    quantile_critic_loss,
    reduce_members,
    reduction_gradient,
    smoothing_noise,
    soft_value,
    temperature_loss,
    truncated_mixture,
)

Q = torch.tensor([[1.0, 5.0, -2.0], [3.0, 4.0, -6.0]])


@pytest.mark.parametrize(
    ("how", "expected"), [("min", [1.0, 4.0, -6.0]), ("mean", [2.0, 4.5, -4.0]), ("first", [1.0, 5.0, -2.0])]
)
def test_members_are_reduced(how: str, expected: list[float]) -> None:
    assert reduce_members(Q, how).tolist() == expected  # type: ignore[arg-type]


def test_the_gradient_of_the_minimum_reaches_the_least_member_alone() -> None:
    q = Q.clone().requires_grad_()
    reduce_members(q, "min").sum().backward()
    assert q.grad is not None
    assert q.grad.tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]


@pytest.mark.parametrize("how", ["min", "mean", "first"])
def test_the_gradient_of_every_reduction(how: str) -> None:
    q = torch.tensor([[1.0, 5.0, 2.0], [3.0, 4.0, 2.0]], requires_grad=True)
    reduce_members(q, how).sum().backward()
    assert torch.equal(reduction_gradient(q.detach(), how), q.grad)


def test_soft_value_adds_what_entropy_is_worth() -> None:
    assert soft_value(torch.tensor([2.0]), torch.tensor([-3.0]), 0.5).tolist() == [3.5]


def test_expectations_over_actions_leave_out_impossible_ones() -> None:
    q = torch.tensor([[1.0, 3.0, 1e6]])
    logits = torch.tensor([[0.0, 0.0, torch.finfo(torch.float32).min]], requires_grad=True)
    value, log_prob = expected_soft_terms(q, logits.log_softmax(-1))
    assert value.item() == pytest.approx(2.0)
    assert log_prob.item() == pytest.approx(-math.log(2.0))
    (value - log_prob).sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all() and logits.grad[0, 2] == 0.0


def test_targets_are_cut() -> None:
    target = torch.tensor([-9.0, 0.5, 9.0])
    assert clip_target(target, (-1.0, 1.0)).tolist() == [-1.0, 0.5, 1.0]
    assert clip_target(target, None) is target


def test_critic_loss_is_half_the_squared_error_summed_over_members() -> None:
    q = torch.tensor([[1.0, 2.0], [0.0, 4.0]])
    loss, surprise = critic_loss(q, torch.tensor([2.0, 4.0]))
    assert loss.item() == pytest.approx(0.5 * ((1 + 4) / 2 + (4 + 0) / 2))
    assert surprise.tolist() == [1.5, 1.0]


def test_weights_scale_rows_and_large_errors_count_linearly() -> None:
    q, target = torch.zeros(1, 2), torch.tensor([3.0, 0.5])
    loss, _ = critic_loss(q, target, weight=torch.tensor([0.0, 2.0]))
    assert loss.item() == pytest.approx(2 * 0.5 * 0.25 / 2)
    q.requires_grad_()
    clipped, _ = critic_loss(q, target, td_clip=1.0)
    assert clipped.item() == pytest.approx((1.0 * (3.0 - 0.5) + 0.5 * 0.25) / 2)
    clipped.backward()
    assert q.grad is not None and q.grad.tolist() == [[-0.5, -0.25]]


def test_smoothing_noise_is_clipped() -> None:
    assert smoothing_noise(torch.tensor([-9.0, 1.0, 9.0]), 0.2, 0.5).tolist() == [
        -0.5,
        pytest.approx(0.2),
        0.5,
    ]


def test_the_mixture_drops_the_largest_quantiles_of_all_members_together() -> None:
    quantiles = torch.tensor([[[1.0, 7.0, 9.0]], [[2.0, 8.0, 3.0]]])  # E = 2, N = 1, M = 3
    assert truncated_mixture(quantiles, 1).tolist() == [[1.0, 2.0, 3.0, 7.0]]
    assert truncated_mixture(quantiles, 0).tolist() == [[1.0, 2.0, 3.0, 7.0, 8.0, 9.0]]


def test_quantile_loss_by_hand() -> None:
    # One member, two quantiles (fractions 1/4 and 3/4), one target sample, 0.5: errors 0.5 and -1.5.
    quantiles = torch.tensor([[[0.0, 2.0]]])
    loss, surprise = quantile_critic_loss(quantiles, torch.tensor([[0.5]]))
    expected = (0.25 * 0.5 * 0.25 + 0.25 * (1.5 - 0.5)) / 2
    assert loss.item() == pytest.approx(expected)
    assert surprise.tolist() == [0.5]
    both, _ = quantile_critic_loss(quantiles.expand(2, -1, -1), torch.tensor([[0.5]]))
    assert both.item() == pytest.approx(2 * expected)


def test_quantiles_settle_where_the_fractions_are() -> None:
    quantiles = torch.zeros(1, 1, 4, requires_grad=True)
    target = torch.linspace(0.0, 1.0, 101)[None]
    optimizer = torch.optim.Adam([quantiles], lr=0.02)
    for _ in range(400):
        optimizer.zero_grad()
        quantile_critic_loss(quantiles, target, kappa=1e-3)[0].backward()
        optimizer.step()
    assert quantiles.detach().flatten().tolist() == pytest.approx([0.125, 0.375, 0.625, 0.875], abs=0.03)


def test_temperature_rises_where_entropy_is_below_its_target() -> None:
    log_alpha = torch.zeros((), requires_grad=True)
    temperature_loss(log_alpha, torch.tensor(-0.4)).backward()
    assert isinstance(log_alpha.grad, Tensor) and log_alpha.grad.item() == pytest.approx(-0.4)
