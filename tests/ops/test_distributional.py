"""Return distributions on numbers worked out by hand, and against slow loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from uniarena.ops.distributional import cross_entropy, entropy, midpoints, project, quantile_huber
from uniarena.ops.td import dueling, greedy_action, of_action, td_loss


def test_projection_splits_each_atom_between_its_neighbours() -> None:
    support = torch.linspace(-1.0, 1.0, 5)  # −1, −0.5, 0, 0.5, 1
    atoms = torch.tensor([[-0.9, 0.1, 0.5, 1.1]])  # r + γz; the last lies beyond the end
    probs = torch.tensor([[0.2, 0.4, 0.3, 0.1]])
    # −0.9 lies 0.2 of the way from −1 to −0.5; 0.1 lies 0.2 of the way from 0 to 0.5; 0.5 is an atom; 1.1 counts as 1.
    expected = [0.2 * 0.8, 0.2 * 0.2, 0.4 * 0.8, 0.4 * 0.2 + 0.3, 0.1]
    assert torch.allclose(project(atoms, probs, support), torch.tensor([expected]))


def test_projection_of_a_terminal_reward_is_the_reward() -> None:
    support = torch.linspace(-10.0, 10.0, 51)  # 0.4 apart
    atoms = torch.full((1, 51), 1.0)  # discount 0: every atom becomes r = 1
    found = project(atoms, torch.full((1, 51), 1 / 51), support)[0]
    assert found[27].item() == pytest.approx(0.5, abs=1e-5)  # 0.8
    assert found[28].item() == pytest.approx(0.5, abs=1e-5)  # 1.2
    assert (found @ support).item() == pytest.approx(1.0, abs=1e-5)


def slow_projection(
    atoms: torch.Tensor, probs: torch.Tensor, low: float, high: float, count: int
) -> torch.Tensor:
    """Algorithm 1 of Bellemare et al. 2017, line by line."""
    step = (high - low) / (count - 1)
    m = torch.zeros(len(atoms), count, dtype=torch.float64)
    for row in range(len(atoms)):
        for place, p in zip(atoms[row].tolist(), probs[row].tolist(), strict=True):
            b = (min(high, max(low, place)) - low) / step
            lower, upper = math.floor(b), math.ceil(b)
            if lower == upper:
                m[row, lower] += p
            else:
                m[row, lower] += p * (upper - b)
                m[row, upper] += p * (b - lower)
    return m


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(0, 10_000), st.floats(-3, 3), st.floats(0, 1))
def test_projection_equals_the_paper_s_loop(count: int, seed: int, reward: float, discount: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    support = torch.linspace(-2.0, 3.0, count)
    probs = torch.rand(4, count, generator=generator).softmax(-1)
    atoms = (reward + discount * support).expand(4, -1)
    found = project(atoms, probs, support)
    assert torch.allclose(found.double(), slow_projection(atoms, probs, -2.0, 3.0, count), atol=1e-4)
    assert torch.allclose(found.sum(-1), torch.ones(4), atol=1e-5)


def test_cross_entropy_and_entropy() -> None:
    logits, probs = torch.tensor([[0.0, math.log(3.0)]]), torch.tensor([[0.5, 0.5]])  # softmax: 1/4, 3/4
    assert cross_entropy(logits, probs).item() == pytest.approx(
        -0.5 * math.log(1 / 4) - 0.5 * math.log(3 / 4)
    )
    assert entropy(probs).item() == pytest.approx(math.log(2.0))
    assert entropy(torch.tensor([1.0, 0.0])).item() == 0.0


def test_midpoints() -> None:
    assert midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]


def test_quantile_huber_by_hand() -> None:
    prediction, target = torch.tensor([[0.0, 2.0]]), torch.tensor([[0.5, -1.0, 3.0]])
    fraction = torch.tensor([0.25, 0.75])
    # θ₀ = 0, τ = .25: errors .5, −1, 3 → L₁ = .125, .5, 2.5 → weights .25, .75, .25 → .03125, .375, .625
    # θ₁ = 2, τ = .75: errors −1.5, −3, 1 → L₁ = 1, 2.5, .5 → weights .25, .25, .75 → .25, .625, .375
    expected = (0.03125 + 0.375 + 0.625) / 3 + (0.25 + 0.625 + 0.375) / 3
    assert quantile_huber(prediction, fraction, target).item() == pytest.approx(expected)


def test_quantile_huber_scales_with_its_threshold() -> None:
    prediction, target = torch.tensor([[0.0]]), torch.tensor([[3.0]])
    half = torch.tensor([0.5])
    assert quantile_huber(prediction, half, target, kappa=2.0).item() == pytest.approx(
        0.5 * 2.0 * (3.0 - 1.0) / 2.0
    )
    assert quantile_huber(prediction, half, target, kappa=4.0).item() == pytest.approx(0.5 * 0.5 * 9.0 / 4.0)
    assert quantile_huber(prediction, half, target, kappa=0.0).item() == pytest.approx(0.5 * 3.0)


def test_the_minimum_of_the_quantile_loss_is_the_quantile() -> None:
    samples = torch.linspace(0.0, 1.0, 101)[None]
    fraction = torch.tensor([0.1, 0.5, 0.9])
    theta = torch.zeros(1, 3, requires_grad=True)
    optimizer = torch.optim.SGD([theta], lr=0.05)
    for _ in range(500):
        optimizer.zero_grad()
        quantile_huber(theta, fraction, samples, kappa=0.0).sum().backward()
        optimizer.step()
    assert torch.allclose(theta[0], fraction, atol=0.02)


def test_drawn_fractions_are_per_row() -> None:
    prediction, target = torch.zeros(2, 1), torch.ones(2, 1)
    found = quantile_huber(prediction, torch.tensor([[0.2], [0.9]]), target, kappa=1.0)
    assert torch.allclose(found, torch.tensor([0.2 * 0.5, 0.9 * 0.5]))


def test_td_loss_is_half_the_square_and_linear_beyond_the_clip() -> None:
    prediction, target = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([0.5, -3.0, 2.0])
    assert td_loss(prediction, target).tolist() == [0.125, 4.5, 2.0]
    assert td_loss(prediction, target, td_clip=1.0).tolist() == [0.125, 2.5, 1.5]
    leaf = torch.zeros(3, requires_grad=True)
    td_loss(leaf, target, td_clip=1.0).sum().backward()
    assert leaf.grad.tolist() == [-0.5, 1.0, -1.0]  # the error, clipped


def test_dueling_subtracts_the_mean_advantage() -> None:
    value, advantage = torch.tensor([[10.0]]), torch.tensor([[[1.0], [2.0], [6.0]]])
    assert dueling(value, advantage)[0, :, 0].tolist() == [8.0, 9.0, 13.0]  # mean advantage 3


def test_dueling_of_two_atoms_subtracts_per_atom() -> None:
    value = torch.tensor([[1.0, -1.0]])
    advantage = torch.tensor([[[0.0, 4.0], [2.0, 0.0]]])
    assert dueling(value, advantage)[0].tolist() == [[0.0, 1.0], [2.0, -3.0]]


def test_greedy_action_among_legal_ones() -> None:
    q = torch.tensor([[1.0, 5.0, 3.0], [1.0, 5.0, 3.0], [-7.0, -5.0, -6.0]])
    mask = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 0, 0]], dtype=torch.int8)
    assert greedy_action(q).tolist() == [1, 1, 1]
    assert greedy_action(q, mask).tolist() == [2, 1, 0]  # a row without a legal action allows all


def test_double_q_takes_the_other_network_s_value_of_the_chosen_action() -> None:
    online, target = (
        torch.tensor([[1.0, 2.0], [3.0, 0.0]]),
        torch.tensor([[[10.0], [20.0]], [[30.0], [40.0]]]),
    )
    assert of_action(target, greedy_action(online))[:, 0].tolist() == [20.0, 30.0]
    assert of_action(target, torch.tensor([0, 0]))[:, 0].tolist() == [10.0, 30.0]


def test_huber_of_torch_agrees() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(20, generator=generator) * 3, torch.randn(20, generator=generator)
    assert torch.allclose(td_loss(a, b, 0.7), F.huber_loss(a, b, reduction="none", delta=0.7))
