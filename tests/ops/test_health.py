"""What predictions are worth, on numbers computed by hand."""

import math

import numpy as np
import pytest

from uniarena.ops.health import bias, realised, return_range, share_of_one, td_errors, worth


def column(*numbers: float) -> np.ndarray:
    return np.array(numbers, float)[:, None]


def flags(*numbers: int) -> np.ndarray:
    return np.array(numbers, bool)[:, None]


def test_a_return_runs_to_the_end_of_its_episode_and_goes_on_with_the_last_value():
    reward, value = column(1, 2, 3, 4), column(9, 9, 9, 10)
    returns, left = realised(reward, value, flags(0, 0, 0, 0), flags(0, 0, 0, 0), 0.5)
    assert returns[:, 0].tolist() == [1 + 1 + 0.75 + 1.25, 2 + 1.5 + 2.5, 3 + 5]
    assert left[:, 0].tolist() == [0.125, 0.25, 0.5]
    returns, left = realised(reward, value, flags(0, 1, 0, 0), flags(0, 1, 0, 0), 0.5)
    assert returns[:, 0].tolist() == [2.0, 2.0, 8.0] and left[:, 0].tolist() == [0.0, 0.0, 0.5]


def test_a_time_limit_goes_on_with_its_own_value():
    returns, left = realised(column(1, 2, 3), column(9, 8, 7), flags(0, 0, 0), flags(0, 1, 0), 0.5)
    assert returns[:, 0].tolist() == [1 + 0.5 * 6, 2 + 0.5 * 8]
    assert left[:, 0].tolist() == [0.25, 0.5]


@pytest.mark.parametrize("over", [0.0, 3.0, -2.0])
def test_a_constant_bias_is_found_whatever_lies_beyond_the_rows(over: float):
    gamma, steps = 0.9, 40
    reward = np.ones((steps, 2))
    value = np.full((steps, 2), 1 / (1 - gamma)) + over
    never = np.zeros((steps, 2), bool)
    returns, left = realised(reward, value, never, never, gamma)
    assert bias(value[:-1], returns, left, ~never[:-1]) == pytest.approx(over, abs=1e-9)


def test_nothing_is_said_where_returns_are_made_of_values():
    value, never = column(5, 5, 5), flags(0, 0, 0)
    returns, left = realised(column(0, 0, 0), value, never, never, 0.999)
    assert math.isnan(bias(value[:-1], returns, left, ~never[:-1]))


def test_one_step_errors():
    errors = td_errors(column(1, 2, 3, 0), column(1, 2, 4, 8), flags(0, 1, 0, 0), flags(0, 1, 1, 0), 0.5)
    assert errors[:, 0].tolist() == [abs(1 + 1 - 1), abs(2 - 2), abs(3 + 2 - 4)]


def test_the_share_of_the_most_frequent():
    assert share_of_one(np.array([1, 3, 0])) == 0.75 and share_of_one(np.zeros(2, int)) == 0.0


def test_the_worth_of_data_by_hand():
    reward = np.array([1.0, 2.0, 4.0, 3.0])
    over, ends = np.array([0, 1, 0, 0], bool), np.array([0, 1, 0, 1], bool)
    found = worth(
        reward, over, ends, 0.5
    )  # returns 2, 2 | 5.5, 3; of the second episode 1/4 and 1/2 lie beyond
    assert found.mean == pytest.approx((2 + 2 + 5.5 + 3) / (1 + 1 + 0.75 + 0.5))
    assert found.best == pytest.approx(5.5 / 0.75)
    assert (found.low, found.high) == (1.0, 8.0), "an episode may be over after one reward"


def test_without_a_known_return_nothing_is_said_of_it():
    found = worth(np.ones(3), np.zeros(3, bool), np.array([0, 0, 1], bool), 0.999)
    assert math.isnan(found.mean) and math.isnan(found.best)
    assert (found.low, found.high) == (pytest.approx(1000.0), pytest.approx(1000.0))


def test_the_range_of_returns():
    never, last = np.zeros(3, bool), np.array([0, 0, 1], bool)
    assert return_range(np.array([-2.0, 0.0, 1.0]), never, last, 0.9) == pytest.approx((-20.0, 10.0))
    assert return_range(np.array([-2.0, -1.0, -1.0]), last, last, 0.9) == pytest.approx((-20.0, -1.0))
    assert return_range(np.array([-2.0, 0.0, 1.0]), never, last, 1.0) == (-6.0, 3.0)
