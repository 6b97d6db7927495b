"""Offline losses on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from uniarena.ops import offline


def test_the_expectile_weighs_what_lies_above_more() -> None:
    error = torch.tensor([2.0, -2.0, 0.0])
    assert offline.expectile_loss(error, 0.7).tolist() == pytest.approx([0.7 * 4, 0.3 * 4, 0.0])
    assert offline.expectile_loss(error, 0.5).tolist() == [2.0, 2.0, 0.0]


def test_the_expectile_of_two_outcomes() -> None:
    """Of 0 and 1, equally likely, it is τ itself: τ(1 − v) = (1 − τ)v."""
    value = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.SGD([value], lr=0.5)
    for _ in range(100):
        optimizer.zero_grad()
        offline.expectile_loss(torch.tensor([0.0, 1.0]) - value, 0.9).mean().backward()
        optimizer.step()
    assert float(value.detach()) == pytest.approx(0.9, abs=1e-4)


def test_weights_of_advantages_are_bounded() -> None:
    weight = offline.advantage_weight(torch.tensor([0.0, 1.0, -1.0, 1e6]), 3.0, 100.0)
    assert weight.tolist() == pytest.approx([1.0, math.exp(3.0), math.exp(-3.0), 100.0])


def test_the_scale_of_q() -> None:
    q = torch.tensor([1.0, -3.0], requires_grad=True)
    scale = offline.q_scale(q, 2.5)
    assert float(scale) == pytest.approx(1.25) and not scale.requires_grad


def test_distances_are_means_over_dimensions() -> None:
    action, other = torch.tensor([[0.0, 1.0], [0.5, 0.5]]), torch.tensor([[0.0, 0.0], [0.5, -0.5]])
    assert offline.action_distance(action, other).tolist() == [0.5, 0.5]


def test_the_integral_of_exp_q_by_importance_sampling() -> None:
    """∫ exp(a) da over [−1, 1] = e − 1/e; half of the actions uniform, half from a density that leans to the right."""
    generator = torch.Generator().manual_seed(0)
    uniform = 2 * torch.rand(50_000, generator=generator) - 1
    leaning = 2 * torch.rand(50_000, generator=generator).sqrt() - 1  # density (a + 1) / 2
    action = torch.cat([uniform, leaning])
    log_density = torch.cat([torch.full((50_000,), math.log(0.5)), ((leaning + 1) / 2).log()])
    found = offline.log_integral(action[None, None], log_density[None])
    assert found.shape == (1, 1)
    assert float(found) == pytest.approx(math.log(math.e - 1 / math.e), abs=0.02)


def test_the_sum_over_legal_actions() -> None:
    q = torch.tensor([[0.0, 1.0, 2.0]])
    assert float(offline.log_sum(q)) == pytest.approx(math.log(1 + math.e + math.e**2))
    assert float(offline.log_sum(q, torch.tensor([[1, 0, 1]]))) == pytest.approx(math.log(1 + math.e**2))
    assert float(offline.log_sum(q, torch.tensor([[0, 0, 0]]))) == pytest.approx(float(offline.log_sum(q)))


def test_which_actions_are_likely() -> None:
    log_p = torch.tensor([[0.6, 0.3, 0.1]]).log()
    assert offline.likely(log_p, 0.3).tolist() == [[True, True, False]]
    assert offline.likely(log_p, 0.9).tolist() == [[True, False, False]]
    assert offline.likely(log_p, 0.0).tolist() == [[True, True, True]]


def test_between_minimum_and_maximum() -> None:
    assert offline.soft_minimum(torch.tensor([[1.0, 4.0], [3.0, 2.0]]), 0.75).tolist() == [1.5, 2.5]


def test_the_divergence_of_latents() -> None:
    mean, log_std = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, math.log(2.0)]])
    assert float(offline.latent_divergence(mean, log_std)) == pytest.approx(
        0.5 + 0.5 * (4 - 1 - 2 * math.log(2))
    )


def test_the_same_rows_are_held_out_every_time() -> None:
    key = torch.arange(100_000)
    out = offline.held_out(key, 0.1)
    assert torch.equal(out, offline.held_out(key.clone(), 0.1))
    assert float(out.float().mean()) == pytest.approx(0.1, abs=0.005)
    assert not bool(offline.held_out(key, 0.0).any())
    runs = out.float().reshape(-1, 100).mean(1)
    assert float(runs.std()) < 0.02, "spread over the data"
    for share in (0.01, 0.1, 0.2, 0.5):
        for episodes in (1, 2, 3, 5, 10, 30):  # of few as many as the share says, and never the only one
            count = int(offline.held_out(torch.arange(episodes), share).sum())
            assert abs(count - share * episodes) <= 1.0 and count < episodes
