"""Conjugate gradients, the length of a natural step, the search along it; and when losses are restless."""

from __future__ import annotations

import pytest
import torch

from uniarena.ops.policy_gradient import LOG_RATIO_BOUND, clamp_log_ratio, restless
from uniarena.ops.trust_region import backtrack, conjugate_gradient, trust_region_step


def test_conjugate_gradients_solve_a_small_system() -> None:
    # [[4, 1], [1, 3]]·x = (1, 2): x = (1/11, 7/11), exact after two steps
    a, b = torch.tensor([[4.0, 1.0], [1.0, 3.0]]), torch.tensor([1.0, 2.0])
    assert conjugate_gradient(lambda v: a @ v, b, 2).tolist() == pytest.approx([1 / 11, 7 / 11], rel=1e-5)
    # the first step alone: α = bᵀb / bᵀAb = 5/20
    assert conjugate_gradient(lambda v: a @ v, b, 1).tolist() == pytest.approx([0.25, 0.5])
    assert conjugate_gradient(lambda v: a @ v, torch.zeros(2), 5).tolist() == [0.0, 0.0]


def test_a_step_reaches_the_edge_of_the_region() -> None:
    # F = diag(2, 8), x = (1, 1): xᵀFx = 10, √(0.2/10)
    x, curved = torch.ones(2), torch.tensor([2.0, 8.0])
    step = trust_region_step(x, curved, 0.1)
    assert step.tolist() == pytest.approx([0.02**0.5] * 2)
    assert 0.5 * float(step.dot(torch.tensor([2.0, 8.0]) * step)) == pytest.approx(0.1)
    assert trust_region_step(x, -curved, 0.1).tolist() == [0.0, 0.0]


def test_the_search_takes_the_first_share_that_will_do() -> None:
    tried: list[float] = []
    assert backtrack(lambda s: tried.append(s) or s < 0.7, 10) == pytest.approx(0.64)  # type: ignore[func-returns-value]
    assert tried == pytest.approx([1.0, 0.8, 0.64])
    assert backtrack(lambda s: False, 3) == 0.0


def test_log_ratios_are_clamped_at_ten_to_the_five() -> None:
    assert pytest.approx(torch.tensor(1e5).log().item(), abs=3e-3) == LOG_RATIO_BOUND
    ratio, clamped = clamp_log_ratio(torch.tensor([-30.0, 5.0, 11.5]), torch.tensor([-10.0, 0.0, 0.0]))
    assert ratio.tolist() == pytest.approx([-11.51, 5.0, 11.5]) and clamped.tolist() == [True, False, False]
    # log-probs themselves are never clamped: −60 against −61 is a ratio like any other
    ratio, clamped = clamp_log_ratio(torch.tensor([-60.0], requires_grad=True), torch.tensor([-61.0]))
    assert ratio.item() == 1.0 and not clamped.item()


@pytest.mark.parametrize(
    ("losses", "rising", "oscillating"),
    [
        ([1.0], False, False),
        ([1.0, 2.0], False, False),
        ([1.0, 2.0, 3.0], True, False),
        ([3.0, 1.0, 1.5, 1.6], True, False),
        ([3.0, 1.0, 2.0, 1.5], False, True),
        ([1.0, 2.0, 1.0, 2.0], False, True),
        ([4.0, 3.0, 2.0, 1.0], False, False),
        ([1.0, 1.0, 1.0, 1.0], False, False),
    ],
)
def test_restless_losses(losses: list[float], rising: bool, oscillating: bool) -> None:
    assert restless(losses, "rising") is rising
    assert restless(losses, "oscillating") is oscillating
    assert restless(losses, "both") is (rising or oscillating)
