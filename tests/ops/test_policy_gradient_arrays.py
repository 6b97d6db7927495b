"""The losses on arrays are those on tensors, and their derivatives are autograd's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from uniarena.ops.policy_gradient import approx_kl, clamp_log_ratio, clip_fraction, surrogate, value_loss
from uniarena.ops.policy_gradient_arrays import policy_rows, value_rows

N = 200


def numbers(scale: float = 0.3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    a, b, c = (torch.randn(N, generator=generator, dtype=torch.float64) for _ in range(3))
    old = b - 2.0
    return old + scale * a, old, c


@pytest.mark.parametrize("clip", ["none", "hard", "dual"])
@pytest.mark.parametrize("kl_coef", [0.0, 0.7])
@pytest.mark.parametrize("scale", [0.3, 8.0])  # the second reaches the bound of log-ratios and the dual one
def test_the_policy_s_rows(clip: Any, kl_coef: float, scale: float) -> None:
    log_prob, old, advantage = numbers(scale)
    log_prob.requires_grad_()
    log_ratio, clamped = clamp_log_ratio(log_prob, old)
    loss, kl = -surrogate(log_ratio, advantage, clip, 0.2, 1.5).mean(), approx_kl(log_ratio).mean()
    (gradient,) = torch.autograd.grad(loss + kl_coef * kl, log_prob)
    rows = policy_rows(log_prob.detach().numpy(), old.numpy(), advantage.numpy(), clip, 0.2, 1.5, kl_coef)
    assert rows.loss == pytest.approx(loss.item()) and rows.kl == pytest.approx(kl.item())
    assert rows.gradient == pytest.approx(gradient.numpy(), rel=1e-6, abs=1e-12)
    assert rows.clip_fraction == pytest.approx(clip_fraction(log_ratio, 0.2).mean().item())
    assert rows.clamped_fraction == pytest.approx(clamped.double().mean().item())
    assert (rows.clamped_fraction > 0.0) == (scale > 1.0)


def test_a_clipped_gain_has_no_gradient_by_hand() -> None:
    ratio, advantage = np.array([1.5, 1.5, 0.5, 1.1]), np.array([1.0, -1.0, 1.0, 2.0])
    rows = policy_rows(np.log(ratio), np.zeros(4), advantage, "hard", 0.2, 3.0)
    assert rows.loss == pytest.approx(-(1.2 - 1.5 + 0.5 + 2.2) / 4)
    assert rows.gradient == pytest.approx(-np.array([0.0, -1.5, 0.5, 2.2]) / 4)
    assert rows.clip_fraction == 0.75


@pytest.mark.parametrize("kind", ["mse", "huber"])
@pytest.mark.parametrize("clip_range", [None, 0.4])
def test_the_value_s_rows(kind: Any, clip_range: float | None) -> None:
    value, old, target = numbers(1.0)
    value.requires_grad_()
    loss = value_loss(value, target, old, clip_range, kind).mean()
    (gradient,) = torch.autograd.grad(loss, value)
    found, slope = value_rows(value.detach().numpy(), target.numpy(), old.numpy(), clip_range, kind)
    assert found == pytest.approx(loss.item())
    assert slope == pytest.approx(gradient.numpy(), rel=1e-9, abs=1e-12)


def test_value_clipping_asks_for_the_old_values() -> None:
    with pytest.raises(ValueError, match="old_value"):
        value_rows(np.zeros(2), np.zeros(2), None, 0.2)
