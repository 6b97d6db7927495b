"""Statistics over seeds, against hand-computed numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uniarena.analysis.statistics import bootstrap_interval, iqm, mean, std, summarize


def test_the_interquartile_mean_drops_a_quarter_at_either_end() -> None:
    assert iqm([100.0, 1.0, 2.0, 3.0]) == 2.5
    assert iqm([1, 2, 3, 4, 5, 6, 7, 1000]) == (3 + 4 + 5 + 6) / 4
    assert iqm([0, 1, 2, 3, 100]) == 2.0  # one dropped at either end of five


def test_with_few_values_it_is_the_mean() -> None:
    assert iqm([1.0, 2.0, 6.0]) == 3.0 and iqm([4.0]) == 4.0


def test_along_an_axis() -> None:
    table = np.array([[0.0, 1, 2, 100], [4, 4, 4, 4]])
    assert iqm(table, axis=1).tolist() == [1.5, 4.0]
    assert mean(table, axis=0).tolist() == [2, 2.5, 3, 52]
    assert std([[1.0, 3.0], [1.0, 3.0]], axis=1).tolist() == pytest.approx([2**0.5, 2**0.5])


def test_mean_and_deviation() -> None:
    assert mean([1, 2, 6]) == 3.0
    assert std([1, 3]) == pytest.approx(2**0.5)
    assert std([5.0]) == 0.0


@pytest.mark.parametrize("statistic", [mean, std, iqm])
def test_no_values_is_an_error(statistic) -> None:
    with pytest.raises(ValueError, match="at least one"):
        statistic([])


def test_the_interval_is_repeatable_and_surrounds_the_statistic() -> None:
    values = np.random.default_rng(0).normal(10, 2, size=20)
    low, high = bootstrap_interval(values, mean)
    assert (low, high) == bootstrap_interval(values, mean)
    assert low < mean(values) < high
    half = 1.96 * std(values) / 20**0.5
    assert high - low == pytest.approx(2 * half, rel=0.15)  # normal theory
    wide = bootstrap_interval(values, mean, level=0.99)
    assert wide[0] < low and wide[1] > high


def test_an_interval_of_equal_or_single_values_is_a_point() -> None:
    assert bootstrap_interval([3.0]) == (3.0, 3.0)
    assert bootstrap_interval([3.0, 3.0, 3.0]) == (3.0, 3.0)


def test_level_must_be_a_coverage() -> None:
    with pytest.raises(ValueError, match="level=95"):
        bootstrap_interval([1.0], level=95)


def test_the_global_stream_is_not_touched() -> None:
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    bootstrap_interval([1.0, 2.0])
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_iqm_lies_between_the_extremes_and_ignores_order(values: list[float]) -> None:
    result = iqm(values)
    assert min(values) - 1e-6 <= result <= max(values) + 1e-6
    assert result == pytest.approx(iqm(values[::-1]))


def test_a_summary_names_everything() -> None:
    report = summarize([1.0, 2.0, 3.0, 100.0])
    assert report["count"] == 4 and report["iqm"] == 2.5 and report["values"] == [1.0, 2.0, 3.0, 100.0]
    assert report["interval_95"][0] <= 2.5 <= report["interval_95"][1]
    assert summarize([]) == {"count": 0, "values": []}
