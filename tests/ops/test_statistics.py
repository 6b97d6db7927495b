"""Masked means, standardising, explained variance, running means."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uniarena.ops.statistics import RunningMean, explained_variance, masked_mean, mean_and_std, standardize
from uniarena.ops.td import td_target


def test_masked_mean() -> None:
    x, valid = torch.tensor([1.0, math.nan, 3.0]), torch.tensor([True, False, True])
    assert masked_mean(x, valid).item() == 2.0
    assert masked_mean(x, torch.zeros(3, dtype=torch.bool)).item() == 0.0
    assert masked_mean(torch.tensor([1.0, 2.0])).item() == 1.5


def test_moments_by_hand() -> None:
    # 2, 4, 6: mean 4, population variance (4 + 0 + 4) / 3.
    mean, std = mean_and_std(torch.tensor([2.0, 4.0, 6.0]))
    assert mean.item() == 4.0
    assert std.item() == pytest.approx(math.sqrt(8.0 / 3.0))


@pytest.mark.parametrize("count", [0, 1])
def test_standardizing_fewer_than_two_changes_nothing(count: int) -> None:
    x = torch.tensor([5.0, -2.0, 8.0])
    valid = torch.arange(3) < count
    assert torch.equal(standardize(x, valid), x)
    assert torch.equal(standardize(x[:count]), x[:count])
    # case B27


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=50))
def test_standardized_is_finite_with_mean_zero(values: list[float]) -> None:
    x = standardize(torch.tensor(values))
    assert bool(x.isfinite().all())
    assert abs(x.mean().item()) < 1e-3
    assert x.std(unbiased=False).item() < 1.001


def test_equal_entries_become_zero_rather_than_noise() -> None:
    assert standardize(torch.full((100,), 100.1)).abs().max().item() < 1e-3


def test_standardize_uses_valid_entries_only() -> None:
    x, valid = torch.tensor([1.0, 3.0, 1e9]), torch.tensor([True, True, False])
    assert standardize(x, valid)[:2].tolist() == pytest.approx([-1.0, 1.0])


def test_explained_variance_by_hand() -> None:
    target = torch.tensor([0.0, 2.0, 4.0])
    assert explained_variance(target, target).item() == 1.0
    assert explained_variance(torch.full((3,), 7.0), target).item() == 0.0
    # Residual of prediction −target: 0, 4, 8: variance 4 × that of the target: 1 − 4 = −3.
    assert explained_variance(-target, target).item() == pytest.approx(-3.0)
    assert math.isnan(explained_variance(target, torch.ones(3)).item())


def test_running_mean_reduces_each_name_over_the_calls_that_gave_it() -> None:
    mean = RunningMean()
    mean.add({"a": torch.tensor(1.0), "b": torch.tensor(5.0)})
    mean.add({"a": torch.tensor(3.0)})
    assert {name: value.item() for name, value in mean.result().items()} == {"a": 2.0, "b": 5.0}
    assert RunningMean().result() == {}


def test_td_target_by_hand() -> None:
    # 1 + 0.9·10 = 10; terminated: 1.
    target = td_target(torch.ones(2), torch.tensor([0.9, 0.0]), torch.tensor([10.0, 10.0]))
    assert target.tolist() == pytest.approx([10.0, 1.0])
