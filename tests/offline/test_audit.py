"""The audit: figures computed by hand, and a sentence for everything that should worry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.offline.episodes import ACTIONS, keyed, random_episodes, record
from uniarena.data import DataError, load, report
from uniarena.data.audit import audit, env_facts, hashed, look_at
from uniarena.data.spread import Spread, histogram

ASKED = ("episodes", "transitions", "terminated", "truncated", "dropped", "reward_sum", "warnings")


def looked_into(path: Path, limit: int | None = None, **given: Any) -> dict[str, Any]:
    observed, acted = given.pop("observed", None), given.pop("acted", None)
    keyed(path, **given)
    return audit(load(path, observed, acted, lazy=True), limit)


def steps(lengths: list[int], **other: Any) -> dict[str, Any]:
    """Whole episodes, each of which terminates; what they ended in is in the file."""
    n = sum(lengths)
    obs = np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)
    after = np.roll(obs, -1, axis=0)
    ends = np.cumsum(lengths) - 1
    after[ends] = -7.0
    return {
        "observations": obs,
        "next_observations": after,
        "actions": np.linspace(-0.9, 0.9, n, dtype=np.float32)[:, None],
        "rewards": np.arange(n, dtype=np.float64),
        "terminals": np.isin(np.arange(n), ends),
        "timeouts": np.zeros(n),
        **other,
    }


def said(found: dict[str, Any], words: str) -> bool:
    return any(words in warning for warning in found["warnings"])


def test_the_figures_of_whole_episodes(tmp_path: Path) -> None:
    found = looked_into(tmp_path / "a.npz", **steps([2, 3, 5]))
    assert {name: found[name] for name in ASKED[:-1]} == {
        "episodes": 3,
        "transitions": 10,
        "terminated": 3,
        "truncated": 0,
        "dropped": 0,
        "reward_sum": 45.0,
    }
    assert found["lengths"] == {
        "min": 2,
        "median": 3,
        "mean": pytest.approx(10 / 3),
        "std": pytest.approx(1.247, abs=1e-3),
        "max": 5,
    }
    assert [found["returns"][name] for name in ("min", "median", "max")] == [1.0, 9.0, 35.0]
    assert sum(found["return_histogram"]["counts"]) == 3
    assert found["observations"][0]["min"] == -7.0  # of what episodes ended in
    assert found["duplicates"] == {"transitions": 0, "episodes": 0}
    json.dumps(found)


def test_the_sum_of_rewards_before_and_after(tmp_path: Path) -> None:
    given = steps([4, 4], next_observations=None, terminals=np.zeros(8), timeouts=np.array([0, 0, 0, 1] * 2))
    given.pop("next_observations")
    found = looked_into(tmp_path / "a.npz", **given)
    assert (found["reward_sum"], found["reward_sum_before"]) == (18.0, 28.0)
    assert (found["dropped"], found["truncated"]) == (2, 2)
    assert said(
        found, "2 of 8 steps are no transitions (2: time limit without the observation it ended with)"
    )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"rewards": np.zeros(10)}, "Every reward is 0."),
        ({"terminals": np.zeros(10)}, "No transition terminates"),
        ({"rewards": np.where(np.arange(10) == 2, np.nan, 1.0)}, "1 reward is NaN or infinite"),
        ({"actions": np.full((10, 1), np.nan, np.float32)}, "actions: 10 rows have NaN"),
        ({"actions": np.full((10, 1), 3.0, np.float32)}, "actions: 10 of 10 rows lie outside"),
        (
            {"actions": np.full((10, 1), 1.0, np.float32)},
            "up to 100% of the actions lie at a bound (entry 0)",
        ),
        ({"actions": np.full((10, 1), 0.1, np.float32)}, "stays within a quarter of the way"),
        ({"actions": np.full((10, 1), 0.1, np.float32)}, "actions: nothing in it ever changes"),
    ],
)
def test_what_should_worry_is_said(tmp_path: Path, other: dict[str, Any], words: str) -> None:
    acted = spaces.Box(-1, 1, (1,), np.float32)
    found = looked_into(tmp_path / "a.npz", acted=acted, **steps([2, 3, 5], **other))
    assert said(found, words), found["warnings"]
    assert not said(looked_into(tmp_path / "b.npz", acted=acted, **steps([2, 3, 5])), words)


def test_what_the_environment_says_is_held_against_the_data(tmp_path: Path) -> None:
    observed = spaces.Box(-5, 5, (2,), np.float32)
    found = looked_into(tmp_path / "a.npz", limit=4, observed=observed, **steps([2, 3, 5]))
    assert said(found, "1 episode is longer than the environment's limit of 4 steps")
    assert said(found, "observations: 3 of 13 rows lie outside")
    assert found["coverage"]["obs"]["visited"][0] <= 0.5


def test_actions_that_are_never_taken(tmp_path: Path) -> None:
    found = looked_into(
        tmp_path / "a.npz", acted=spaces.Discrete(4, start=1), **steps([5, 5], actions=1 + np.arange(10) % 2)
    )
    assert found["coverage"]["action"]["counts"] == [5, 5, 0, 0]
    assert said(found, "of 4 actions 2 are never taken (2, 3)")


def test_several_classes_at_once_have_no_bounds_that_they_could_lie_at(tmp_path: Path) -> None:
    actions = np.stack([np.arange(10) % 2, np.arange(10) % 3, np.ones(10, int)], axis=1)
    for acted in (spaces.MultiDiscrete([2, 4, 3]), None):
        found = looked_into(tmp_path / "a.npz", acted=acted, **steps([5, 5], actions=actions))
        words = (
            "entries 1, 2 have classes that are never taken, 3 in all"
            if acted
            else "entry 2 has classes that"
        )
        assert said(found, words), found["warnings"]
        assert not any(said(found, words) for words in ("at a bound", "quarter of the way", "one-hot"))
        assert found["saturation"] == {} and "action" not in found["coverage"]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
def test_actions_that_seem_to_be_one_hot(tmp_path: Path, dtype: Any) -> None:
    actions = np.eye(3, dtype=dtype)[np.arange(10) % 3]
    found = looked_into(tmp_path / "a.npz", **steps([5, 5], actions=actions))
    assert said(
        found, "actions: every row has a single 1 and else 0, so these seem to be 3 classes, one-hot."
    )
    assert not any(said(found, words) for words in ("at a bound", "never taken", "floats"))
    actions[3] = 1
    assert not said(looked_into(tmp_path / "b.npz", **steps([5, 5], actions=actions)), "one-hot")
    box = spaces.Box(0, 1, (3,), np.float32)
    given = looked_into(
        tmp_path / "c.npz", observed=box, acted=box, **steps([5, 5], **three(np.eye(3)[np.arange(10) % 3]))
    )
    assert not said(given, "one-hot")


def three(actions: np.ndarray) -> dict[str, np.ndarray]:
    """Observations of three numbers, and these actions."""
    return {"actions": actions, "observations": actions + 1, "next_observations": actions + 2}


def test_whole_numbers_that_are_floats(tmp_path: Path) -> None:
    actions = (np.arange(10) % 3).astype(np.float32)
    words = "actions: every value is a whole number, and they are floats"
    assert said(looked_into(tmp_path / "a.npz", **steps([5, 5], actions=actions)), words)
    assert not said(looked_into(tmp_path / "b.npz", **steps([5, 5], actions=actions + 0.5)), words)
    assert not said(looked_into(tmp_path / "c.npz", **steps([5, 5], actions=np.zeros(10))), words)


def test_counting_classes_takes_no_memory_for_those_that_are_absent(tmp_path: Path) -> None:
    taken = np.arange(10) % 2 * (10**12 - 1)
    found = looked_into(tmp_path / "a.npz", acted=spaces.Discrete(10**12), **steps([5, 5], actions=taken))
    assert found["coverage"]["action"] == {"classes": 10**12, "taken": 2}
    assert said(found, "999999999998 are never taken (1, 2, 3, 4, 5, 6, 7, 8, … (999999999998 in all))")
    assert "2 of 1,000,000,000,000 classes taken" in report.text(found)


def test_values_that_are_too_large_are_told_as_such(tmp_path: Path) -> None:
    plain = steps([5, 5])
    huge = {
        name: plain[name] + np.arange(1, 11)[:, None] * 1e299
        for name in ("observations", "next_observations")
    }
    actions, terminals = np.zeros(10, np.int64), plain["terminals"]
    rewards = np.where(np.arange(10) == 2, 1e300, 1.0)
    found = looked_into(
        tmp_path / "a.npz",
        actions=actions,
        rewards=rewards,
        terminals=terminals,
        timeouts=plain["timeouts"],
        **huge,
    )
    assert said(found, "1 reward is too large for float32, the largest 1e+300; training refuses such steps")
    assert said(
        found,
        "observations: 10 rows and 2 observations that episodes ended in have values too large for float32, the "
        "largest 1e+300",
    )
    assert found["duplicates"]["transitions"] == 0 and not said(found, "NaN")
    assert found["reward"]["std"] == pytest.approx(3e299)


def test_observations_that_are_never_finite_are_told_without_a_complaint_of_numpy(tmp_path: Path) -> None:
    given = steps([5, 5], observations=np.full((10, 2), np.nan))
    del given["next_observations"], given["timeouts"]
    assert said(looked_into(tmp_path / "a.npz", **given), "observations: 10 rows have NaN or infinite values")


def test_other_rewards_are_told_beside_one_that_is_infinite(tmp_path: Path) -> None:
    found = looked_into(tmp_path / "a.npz", **steps([5], rewards=[1, 1, np.inf, 1, 1]))
    assert said(found, "Every other reward is 1.")


def test_copies_of_transitions_and_of_episodes(tmp_path: Path) -> None:
    acted = ACTIONS["box"]
    episodes = random_episodes(np.random.default_rng(0), spaces.Box(-1, 1, (3,), np.float32), acted, 4)
    path = record(tmp_path / "a.npz", [*episodes, episodes[1]], spaces.Box(-1, 1, (3,), np.float32), acted)
    found = audit(load(path, lazy=True))
    assert found["duplicates"] == {"transitions": len(episodes[1].reward), "episodes": 1}
    assert said(found, "1 episode is a copy of another")


def test_equal_rows_have_equal_hashes_and_others_do_not() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 2, (2000, 11)).astype(np.uint8)
    found = hashed([rows, rows[:, 0].astype(np.float32)])
    assert len(np.unique(found)) == len(np.unique(rows, axis=0))
    assert hashed([rows[:, :5], rows[:, 5:]])[0] != hashed([rows[:, 5:], rows[:, :5]])[0]


def test_a_spread_is_that_of_numpy() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, (1000, 2)).astype(np.float32)
    spread = Spread("x", spaces.Box(-10, 10, (2,), np.float32))
    for part in np.array_split(values, 9):
        spread.add(part)
    np.testing.assert_allclose(spread.mean, values.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(spread.std, values.std(axis=0), rtol=1e-4)
    np.testing.assert_array_equal(spread.low, values.min(axis=0))
    parts = [np.unique(np.floor((values[:, k] + 10) / 20 * 20)).size / 20 for k in range(2)]
    assert spread.visited is not None and spread.visited.tolist() == parts


def test_histograms_of_nothing_and_of_one_value() -> None:
    assert histogram(np.array([])) == {"edges": [], "counts": []}
    assert histogram(np.array([2.0, 2.0])) == {"edges": [2.0, 2.0], "counts": [2]}
    assert report.bars(histogram(np.array([np.nan]))) == []


@pytest.mark.parametrize("suffix", [".html", ".md"])
def test_a_page_holds_the_report_and_no_markup_of_the_data(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "<b>").mkdir()
    given = steps([2, 3, 5])
    given["observations"] = {"<script>": given["observations"]}
    flat = {f"observations/{name}": array for name, array in given.pop("observations").items()}
    flat["next_observations/<script>"] = given.pop("next_observations")
    found = looked_into(tmp_path / "<b>" / "x<i>.npz", **given, **flat)
    page = report.write(found, tmp_path / f"page{suffix}").read_text()
    assert "10 transitions in 3 episodes" in page and "█" in page
    assert ("<script>" not in page and "&lt;script&gt;" in page) or suffix == ".md"
    with pytest.raises(DataError, match="HTML or Markdown"):
        report.write(found, tmp_path / "page.pdf")


def test_an_environments_facts() -> None:
    observed, acted, limit = env_facts("CartPole-v1")
    assert (observed.shape, acted.n, limit) == ((4,), 2, 500)


def test_every_row_is_looked_at(tmp_path: Path) -> None:
    path = keyed(tmp_path / "a.npz", **steps([2, 3, 5]))
    look = look_at(load(path, lazy=True))
    assert look.rows == 10 and look.obs[0].rows == 13
