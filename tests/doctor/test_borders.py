"""Where findings begin and end: what an independent trial found too much and too little (docs/doctor.md)."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import uniarena
from tests.doctor.test_findings import PPO, SAC, Row, config, flat, made, names, noise, off_policy
from uniarena import run as runs
from uniarena.analysis.doctor import examine
from uniarena.analysis.doctor.progress import _turning_points
from uniarena.config import load

TD3: Row = {
    "environment": "Pendulum-v1",
    "agent": {"explorer": {"type": "gaussian_noise", "sigma": 1.5}},
    "learner": {"type": "td3"},
}


@pytest.mark.parametrize(
    ("means", "turns"),
    [
        ([0, 1, 2, 3, 4, 5], [0, 5]),  # one way: a rise is one swing, however long
        ([5, 4, 3, 2, 1, 0], [0, 5]),
        ([0, 4, 1, 5, 5, 0], [0, 1, 2, 3, 5]),
        ([2, 2, 2], []),
        ([2, 3, 2, 3], []),  # too small
    ],
)
def test_turning_points_are_highs_and_lows_in_turn(means: list[float], turns: list[int]):
    assert _turning_points(np.array(means, float), 2.0) == turns


@pytest.mark.parametrize("value", [1.0, -200.0])
def test_a_return_that_never_changes_does_not_swing(value: float):
    assert "oscillation" not in names(made(lambda i: {"return_mean": value}))


def test_a_rise_with_one_dip_is_no_oscillation():
    assert names(made(lambda i: {"return_mean": (20 if 15 < i < 20 else 8 * i) + noise(i)})) == []


def test_episodes_of_one_step_are_told_of_though_they_are_learned():  # a task may be so by intent, and says so
    [finding] = examine(made(lambda i: {"length_mean": 1.0}), config(PPO))
    assert finding.illness == "episodes_of_length_one" and "by intent" in finding.changes[-1].why


def test_a_wide_clip_range_does_not_hide_a_large_kl():
    wide: Row = {**PPO, "learner": {"type": "ppo", "clip_range": 0.9}}
    assert names(made(lambda i: {"kl": 0.8 if i % 5 == 0 else 0.01}), wide) == ["kl_too_high"]


def test_updates_that_are_all_rather_large_are_too_large():
    assert names(made(lambda i: {"kl": 0.09 + 0.02 * noise(i)})) == ["kl_too_high"]
    assert names(made(lambda i: {"kl": 0.09 if i % 3 == 0 else 0.02})) == []  # some are


def test_a_large_entropy_bonus_leaves_the_policy_nearly_random():
    share: Row = {"health/entropy_share": 0.92}
    paid = [{**PPO, "learner": {"type": "ppo", "ent_coef": weight}} for weight in (0.5, 0.05)]
    found = [names(made(lambda i: share | {"return_mean": flat(i)}), source) for source in paid]
    assert found == [["exploration_never_ends", "no_progress"], ["no_progress"]]


def test_noise_as_wide_as_the_bounds_never_ends():
    rows = made(lambda i: {"health/exploration": 1.5}, off_policy)
    [finding] = examine(rows, config(TD3))
    assert finding.illness == "exploration_never_ends" and "1.5 half widths" in finding.evidence[0]
    load([config(TD3)], [finding.changes[0].override])
    assert names(made(lambda i: {"health/exploration": 0.1}, off_policy), TD3) == []


def test_units_at_their_bounds_from_the_beginning_are_told_though_the_return_rises():
    [finding] = examine(made(lambda i: {"health/saturated_units": 1.0}), config(PPO))
    assert finding.illness == "dead_gradients" and "from the beginning on" in finding.evidence[0]


def test_a_short_run_off_policy_is_told_of_its_rewards_and_of_its_steps():
    def short(index: int) -> Row:
        row = {"return_mean": flat(index)}
        looked = {"health/return_realised": -7e5, "health/reward_max": 1e4, "health/update_ratio": 3e-4}
        return row | (looked if index in (3, 8) else dict.fromkeys(looked))

    assert names(made(short, off_policy)[:10], SAC) == [
        "reward_scale_off",
        "updates_too_timid",
        "no_progress",
    ]


def test_a_jump_of_the_value_loss_that_is_far_below_its_early_level_surprises_nobody():
    def rows(jump: float) -> list[Row]:
        loss = lambda i: 5.0 if i < 10 else jump if i in (25, 33) else 0.01  # noqa: E731
        return made(
            lambda i: (
                {"return_mean": flat(i), "value_loss": loss(i)}
                | ({"explained_variance": -1.0} if i > 9 else {})
            )
        )

    assert "value_overfitting" in names(rows(2.0)) and "value_overfitting" not in names(rows(0.5))


class Undefined(gym.Wrapper):  # type: ignore[type-arg]
    """CartPole whose reward is NaN at its 300th step."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.steps = 0

    def step(self, action):  # type: ignore[no-untyped-def]
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        return obs, float("nan") if self.steps == 300 else reward, terminated, truncated, info


def test_a_run_that_a_fault_ended_is_told_of_it(tmp_path: Path):
    given: Row = {
        "experiment": {"loggers": [{"type": "jsonl"}]},
        "environment": {"id": Undefined},
        "learner": {"type": "ppo", "n_steps": 64, "n_epochs": 1},
        "training": {"total_timesteps": 512, "eval_every_env_steps": 256, "n_eval_episodes": 1},
    }
    with pytest.raises(ArithmeticError, match="reward"):
        uniarena.train(given, run_dir=tmp_path / "run", quiet=True)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last == {"env_steps": 299, "fault/reward": None, "non_finite": {"fault/reward": "nan"}}
    [finding] = runs.doctor(tmp_path / "run")[0]
    assert finding.illness == "not_a_number" and "fault/reward at 299 env steps" in finding.evidence[0]
