"""Each illness is found in figures that show it, with an override that can be pasted, and not in healthy ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.docs.pages import ROOT, codes
from tests.docs.pages import rows as rows_of
from uniarena import assembly
from uniarena.analysis.doctor import ILLNESSES, Finding, examine, report, statements
from uniarena.config import load, to_mapping

Row = dict[str, Any]
STEPS = 1000
COUNT = 40
PPO = {"environment": {"id": "Pendulum-v1", "num_envs": 4}, "learner": {"type": "ppo"}}
DQN = {"environment": "CartPole-v1", "learner": {"type": "dqn", "target_update_updates": 10}}
SAC = {"environment": "Pendulum-v1", "learner": {"type": "sac"}}


IQL = {"environment": "Pendulum-v1", "learner": {"type": "iql"}, "data": {"path": "some.npz"}}
TD3 = {**IQL, "learner": {"type": "td3"}}


def noise(index: int) -> float:
    """Something like noise, in [-1, 1], the same every time."""
    return math.sin(12.9898 * (index + 1)) * math.cos(78.233 * index)


def healthy(index: int) -> Row:
    """A run that learns: the return rises and stays."""
    share = 1.0 - math.exp(-index / 8)
    return {
        "return_mean": -1200 + 1000 * share + 20 * noise(index),
        "length_mean": 200.0,
        "kl": 0.01 + 0.003 * noise(index),
        "clip_fraction": 0.1,
        "clip_range": 0.2,
        "value_loss": 5.0 + noise(index),
        "explained_variance": 0.2 + 0.7 * share,
        "grad_norm": 1.0 + 0.2 * noise(index),
        "exploration_std": 1.0 - 0.5 * share,
        "health/kl_update": 0.02,
        "health/return_realised": -8.0,
        "health/value_bias": 0.3,
        "health/reward_std": 1.0,
        "health/reward_zero": 0.0,
        "health/action_saturation": 0.2,
        "health/update_ratio": 0.02,
        "health/saturated_units": 0.1,
        "gradient/policy": 0.1,
        "gradient/value": 1.0,
        "system/cpu_percent": 98.0,
        "system/load": 0.5,
    }


def off_policy(index: int) -> Row:
    """The same off-policy."""
    row = {
        k: v
        for k, v in healthy(index).items()
        if k not in ("kl", "clip_fraction", "clip_range", "health/kl_update")
    }
    del row["explained_variance"]
    return {
        **row,
        "alpha": 0.2,
        "health/exploration": max(0.05, 1 - index / 10),
        "health/td_error_median": 0.5,
    }


def on_data(index: int) -> Row:
    """From data alone: Q comes down from 0 to returns that are negative, and stays below the best of them."""
    row = {k: v for k, v in off_policy(index).items() if k not in ("return_mean", "length_mean", "alpha")}
    return {
        **row,
        "health/data_q": -40.0 + 40.0 * math.exp(-index / 8),
        "health/data_q_policy": -35.0 + 35.0 * math.exp(-index / 8),
        "health/data_return": -60.0,
        "health/data_return_best": -20.0,
        "health/data_return_low": -1600.0,
        "health/data_return_high": 0.0,
        "health/value_bias": 25.0,
    }


def made(change: Callable[[int], Row], base: Callable[[int], Row] = healthy) -> list[Row]:
    return [{"env_steps": STEPS * (i + 1), **base(i), **change(i)} for i in range(COUNT)]


def config(source: Row, steps: int = STEPS * COUNT) -> Row:
    length = "total_updates" if "data" in source else "total_timesteps"
    return to_mapping(load([{**source, "training": {length: steps}}]))


def names(rows: list[Row], source: Row = PPO) -> list[str]:
    return [finding.illness for finding in examine(rows, config(source))]


def flat(index: int) -> float:
    return -1200 + 20 * noise(index)


ILL: dict[str, tuple[Callable[[int], Row], Callable[[int], Row], Row]] = {
    "no_progress": (lambda i: {"return_mean": flat(i)}, healthy, PPO),
    "stuck_low": (lambda i: {"return_mean": -200.0, "health/reward_zero": 0.0}, healthy, PPO),
    "oscillation": (lambda i: {"return_mean": -1200 + 1000 * ((i // 5) % 2)}, healthy, PPO),
    "rise_then_collapse": (
        lambda i: {"return_mean": -1200 + 1000 * (10 < i < 30) + 5 * noise(i)},
        healthy,
        PPO,
    ),
    "evaluation_far_below_training": (
        lambda i: {"eval/return_mean": -1200.0, "eval_stochastic/return_mean": -210.0} if i % 10 == 9 else {},
        healthy,
        PPO,
    ),
    "evaluation_far_above_training": (
        lambda i: {"return_mean": flat(i) + i, **({"eval/return_mean": -200.0} if i == COUNT - 1 else {})},
        off_policy,
        SAC,
    ),
    "q_overestimation": (lambda i: {"health/value_bias": 2.0 * i}, off_policy, DQN),
    "offline_q_diverged": (lambda i: {"health/data_q_policy": 2.0 * i}, on_data, TD3),
    "offline_q_overestimation": (lambda i: {"health/data_q": -10.0}, on_data, IQL),
    "value_overfitting": (
        lambda i: (
            {"return_mean": flat(i)}
            | {"value_loss": 5.0 if i < 10 else 0.01 if i not in (25, 33) else 9.0}
            | {"explained_variance": 0.9 if i not in (25, 33) else -1.0}
        ),
        healthy,
        PPO,
    ),
    "value_explains_nothing": (lambda i: {"explained_variance": 0.01, "return_mean": flat(i)}, healthy, PPO),
    "kl_too_high": (lambda i: {"kl": 0.5, "clip_fraction": 0.7} if i > 30 else {}, healthy, PPO),
    "updates_too_timid": (lambda i: {"health/kl_update": 1e-7, "return_mean": flat(i)}, healthy, PPO),
    "entropy_collapse": (
        lambda i: {"return_mean": flat(i), "exploration_std": 0.01 if i else 1.0},
        healthy,
        PPO,
    ),
    "dead_gradients": (lambda i: {"gradient/policy": 0.0}, healthy, PPO),
    "exploding_gradients": (lambda i: {"grad_norm": 1.5**i}, healthy, PPO),
    "saturated_actions": (lambda i: {"health/action_saturation": 0.99}, healthy, PPO),
    "episodes_of_length_one": (lambda i: {"length_mean": 1.0}, healthy, PPO),
    "reward_scale_off": (
        lambda i: {"health/return_realised": -5e4, "health/reward_max": 900.0},
        healthy,
        PPO,
    ),
    "normalizer_drift": (lambda i: {"health/normalizer_shift": 0.5}, healthy, PPO),
    "resource_under_use": (lambda i: {"system/cpu_percent": 12.0, "fps": 30.0}, healthy, PPO),
    "exploration_never_ends": (lambda i: {"health/exploration": 0.5}, off_policy, DQN),
    "intrinsic_reward_dominates": (
        lambda i: {"health/intrinsic_share": 0.9},
        healthy,
        {**PPO, "agent": {"intrinsic": [{"type": "rnd"}]}},
    ),
    "temperature_runs_away": (lambda i: {"alpha": 0.2 * 1.3**i, "return_mean": flat(i)}, off_policy, SAC),
    "not_a_number": (
        lambda i: {"value_loss": None, "non_finite": {"value_loss": "nan"}} if i > 35 else {},
        healthy,
        PPO,
    ),
}


def test_every_illness_has_figures_here():
    assert ILL.keys() == ILLNESSES.keys()


@pytest.mark.parametrize(
    ("base", "source"), [(healthy, PPO), (off_policy, SAC), (off_policy, DQN), (on_data, IQL)]
)
def test_a_healthy_run_is_left_alone(base: Callable[[int], Row], source: Row):
    rows = made(lambda i: {}, base)
    assert names(rows, source) == []
    assert report(examine(rows, config(source)), len(rows)).startswith("nothing found in 40 rows")


@pytest.mark.parametrize("illness", ILL)
def test_an_illness_is_found_and_its_changes_can_be_pasted(illness: str):
    change, base, source = ILL[illness]
    findings = examine(made(change, base), config(source))
    [finding] = [each for each in findings if each.illness == illness]
    assert finding.evidence and finding.causes and finding.changes
    assert any(character.isdigit() for character in "".join(finding.evidence))
    resolved = config(source)
    for each in finding.changes:
        if each.override:
            load([resolved], [each.override])
    assert finding.illness.replace("_", " ") in str(finding)


@pytest.mark.parametrize("illness", ILL)
def test_nothing_is_made_of_no_figures_or_few(illness: str):
    change, base, source = ILL[illness]
    assert examine([], config(source)) == []
    few = examine(made(change, base)[:1], None)
    assert all(isinstance(each, Finding) for each in few)


@pytest.mark.parametrize(
    ("illness", "learner", "override"),
    [
        ("kl_too_high", {"type": "ppo", "learning_rate": 3e-4}, "learner.learning_rate=0.0001"),
        ("kl_too_high", {"type": "ppo", "clip_range": 0.3}, "learner.clip_range=0.2"),
        ("kl_too_high", {"type": "ppo"}, "learner.clip_range=0.1"),
        ("kl_too_high", {"type": "ppo"}, "learner.target_kl=0.02"),
        ("rise_then_collapse", {"type": "ppo", "n_epochs": 10}, "learner.n_epochs=3"),
        ("oscillation", {"type": "ppo"}, "learner.gae_lambda=0.9"),
        ("oscillation", {"type": "ppo", "batch_size": 64}, "learner.batch_size=256"),
        ("entropy_collapse", {"type": "ppo", "ent_coef": 0.01}, "learner.ent_coef=0.05"),
        ("entropy_collapse", {"type": "ppo", "ent_coef": 0.05}, "learner.ent_coef=0.1"),
        ("value_overfitting", {"type": "ppo"}, "learner.optimizer.weight_decay=1e-4"),
        ("value_overfitting", {"type": "ppo", "vf_coef": 0.5}, "learner.vf_coef=0.25"),
        ("exploding_gradients", {"type": "ppo", "max_grad_norm": None}, "learner.max_grad_norm=5"),
        ("stuck_low", {"type": "ppo"}, "agent.policy.hidden_sizes=[128, 128]"),
        (
            "kl_too_high",
            {"type": "ppo", "learning_rate": {"type": "linear", "start": 3e-4, "end": 0}},
            "learner.learning_rate={type: linear, start: 0.0001, end: 0}",
        ),
    ],
)
def test_remedies_carry_the_numbers_that_follow_from_what_is_set(illness: str, learner: Row, override: str):
    change, base, source = ILL[illness]
    [finding] = [
        f for f in examine(made(change, base), config({**source, "learner": learner})) if f.illness == illness
    ]
    assert override in [each.override for each in finding.changes]


def test_epsilon_and_bonuses_get_schedules():
    [finding] = examine(made(*ILL["exploration_never_ends"][:2]), config(DQN))
    assert finding.changes[0].override == (
        "agent.explorer.epsilon={type: linear, start: 1.0, end: 0.05, fraction: 0.2}"
    )
    change, base, source = ILL["intrinsic_reward_dominates"]
    [finding] = examine(made(change, base), config(source))
    assert [each.override for each in finding.changes] == [
        "agent.intrinsic.reward_scale=0.05",
        "agent.intrinsic.reward_scale={type: linear, start: 0.5, end: 0}",
    ]


def test_evaluation_shows_both_modes():  # case B58
    change, base, source = ILL["evaluation_far_below_training"]
    [finding] = examine(made(change, base), config(source))
    assert finding.evidence == (
        "evaluation -1.2e+03, training -210 at 40,000 env steps",
        "stochastic evaluation: -210 at 40,000 env steps",
    )


def test_kl_far_above_its_bound_is_found_long_before_nan():  # case B31
    def ill(index: int) -> Row:
        row: Row = {"kl": 33.0, "clip_fraction": 0.98} if index > 2 else {}
        return row | ({"entropy": None, "non_finite": {"entropy": "nan"}} if index > 30 else {})

    before = made(ill)[:6]
    found = examine(before, config(PPO))
    assert [each.illness for each in found] == ["kl_too_high"]
    assert "KL 33 at 4,000 env steps, bound 0.3; 3 of 6 updates went too far" in found[0].evidence
    assert "up to 98 % of ratios clipped" in found[0].evidence


def test_causes_come_before_effects_and_a_strangers_learner_is_not_imported():
    rows = made(lambda i: {"kl": 3.0, "return_mean": flat(i)})
    assert names(rows) == ["kl_too_high", "no_progress"]
    odd = {
        "environment": {"id": "nowhere:Env"},
        "learner": {"type": "no_such_module:Learner", "learning_rate": 0.1},
    }
    found = examine(rows, odd)
    assert found[0].changes[0].override == "learner.learning_rate=0.0003"


def test_a_solved_task_may_have_a_blind_critic_and_still_units():
    rows = made(lambda i: {"explained_variance": -1.0, "health/saturated_units": 1.0} if i > 15 else {})
    assert names(rows) == []


def test_numbers_are_plain_data():
    change, base, source = ILL["kl_too_high"]
    [finding] = examine(made(change, base), config(source))
    told = finding.to_json()
    assert told["env_steps"] == [32_000, 40_000] and all(isinstance(step, int) for step in told["env_steps"])
    assert told["changes"][0]["override"].startswith("learner.learning_rate=")
    assert np.isfinite(told["env_steps"]).all()


def test_the_table_of_the_docs_is_that_of_the_code():
    table = {codes(cells[0])[0]: cells[1] for cells in rows_of(ROOT / "docs" / "doctor.md", "Illnesses")}
    assert table == ILLNESSES


def test_q_on_data_is_judged_by_returns_that_can_be():
    [finding] = examine(made(lambda i: {"health/data_q": -2000.0}, on_data), config(TD3))
    assert (finding.illness, finding.unit) == ("offline_q_diverged", "updates")
    assert finding.evidence == ("Q of the data's actions is -2e+03; returns are -1.6e+03 to 0",)
    assert "updates)" in str(finding)
    slightly = made(lambda i: {"health/data_q": -1650.0, "health/data_q_policy": 30.0}, on_data)
    assert names(slightly, TD3) == ["offline_q_overestimation"], "networks are never exact"
    falling = made(lambda i: {"health/data_q": 100.0 * 0.9**i - 20.0}, on_data)
    assert names(falling, TD3) == [], "it is still on its way from its first value"


FROM_DATA: dict[str, Callable[[int], Row]] = {
    "no_progress": lambda i: {"eval/return_mean": flat(i)},
    "stuck_low": lambda i: {"eval/return_mean": -200.0},
    "oscillation": lambda i: {"eval/return_mean": -1200.0 + 1000 * ((i // 5) % 2)},
    "rise_then_collapse": lambda i: {"eval/return_mean": -1200 + 1000 * (10 < i < 30) + 5 * noise(i)},
    "entropy_collapse": lambda i: {"eval/return_mean": flat(i), "exploration_std": 0.01 if i else 1.0},
    "updates_too_timid": lambda i: {"eval/return_mean": flat(i), "health/update_ratio": 1e-6},
    "dead_gradients": lambda i: {"gradient/policy": 0.0},
    "exploding_gradients": lambda i: {"grad_norm": 1.5**i},
    "saturated_actions": lambda i: {"health/action_saturation": 0.99},
    "reward_scale_off": lambda i: {"health/return_realised": -5e4, "health/reward_max": 900.0},
    "normalizer_drift": lambda i: {"health/obs_clipped": 0.3},
    "resource_under_use": lambda i: {"system/cpu_percent": 12.0, "updates_per_s": 30.0},
    "temperature_runs_away": lambda i: {"alpha": 0.2 * 1.3**i},
    "not_a_number": lambda i: {"value_loss": None, "non_finite": {"value_loss": "nan"}} if i > 35 else {},
}
MEANINGLESS = (
    r"env steps|explor|\bepochs?\b|rollout|advantages|vectorization|num_envs|agent\.intrinsic|agent\.explorer|"
    r"normalize_reward|scale_reward|"
    r"n_epochs|ent_coef|clip_range|target_kl|gae_lambda|max_episode_steps|log_std_init|check-env|nan updates"
)
"""What nobody has who learns from data alone."""


@pytest.mark.parametrize(
    ("illness", "learner"),
    [
        (illness, learner)
        for illness in FROM_DATA
        for learner in ("bc", "iql", "td3_bc", "cql")
        if learner == "cql" or illness != "temperature_runs_away"  # which only one has
    ],
)
def test_advice_for_a_run_from_data_makes_sense_there(illness: str, learner: str):
    source = {**IQL, "learner": {"type": learner}}
    findings = examine(made(FROM_DATA[illness], on_data), config(source))
    [finding] = [each for each in findings if each.illness == illness]
    assert not re.search(MEANINGLESS, str(finding)), str(finding)
    for each in finding.changes:
        if each.override:  # which fits this learner and its data
            assembly.check(load([config(source)], [each.override]))


def test_what_a_run_from_data_gets_in_place_of_exploring():
    def told(illness: str, learner: str = "bc") -> list[str]:
        rows, source = made(FROM_DATA[illness], on_data), {**IQL, "learner": {"type": learner}}
        [finding] = [each for each in examine(rows, config(source)) if each.illness == illness]
        return [str(change) for change in finding.changes]

    assert told("stuck_low")[0].startswith("# look at the data: uniarena data inspect some.npz; it says what")
    assert any("'data.top_fraction=0.2'" in change for change in told("stuck_low"))
    assert "metric: validation_loss, mode: min" in told("rise_then_collapse")[-1]
    assert "fall: 0.5, restore_best: true" in told("rise_then_collapse", "iql")[-1]
    noisy = made(lambda i: {"health/exploration": 0.9}, on_data)
    assert names(noisy, {**TD3, "agent": {"explorer": {"type": "gaussian_noise", "sigma": 0.9}}}) == []


def test_overrides_for_q_on_data_carry_numbers():
    def overrides(learner: Row) -> list[str]:
        rows = made(lambda i: {"health/data_q": 2.0 * i}, on_data)
        [finding] = examine(rows, config({**IQL, "learner": learner}))
        for change in finding.changes:
            load([config({**IQL, "learner": learner})], [change.override])
        return [change.override for change in finding.changes]

    assert overrides({"type": "td3_bc"})[0] == "learner.behaviour_weight=4"
    assert overrides({"type": "sac"})[0] == "learner.conservative={weight: 5}"
    assert overrides({"type": "cql"})[0] == "learner.conservative={weight: 10}"
    assert overrides({"type": "awac"})[0] == "learner.type=iql"
    left = {"type": "bcq", "model_hidden_sizes": [16]}
    assert overrides(left)[0] == "learner={type: iql, model_hidden_sizes: null}"


@pytest.mark.parametrize("learner", ["bcq", "td3", "sac", "td3_bc"])
def test_advice_against_gradients_from_data_loads(learner: str):
    source = config({**IQL, "learner": {"type": learner}})
    [finding] = examine(made(FROM_DATA["exploding_gradients"], on_data), source)
    assert not re.search(MEANINGLESS, str(finding))
    for change in finding.changes:
        assembly.check(load([source], [change.override]))


def constant(at: Callable[[int], float], low: float, high: float, best: float | None = None) -> list[Row]:
    """Figures where every step of the data pays the same and nothing ends."""
    bounds = {"_low": low, "_high": high, "": low, "_best": high if best is None else best}
    fixed = {f"health/data_return{name}": value for name, value in bounds.items()}
    return made(lambda i: {**fixed, "health/data_q": at(i), "health/data_q_policy": at(i)}, on_data)


@pytest.mark.parametrize(
    ("q", "bounds", "ill"),
    [
        (lambda i: 14.5 * (i + 1) / COUNT, (100.0, 100.0), []),  # it still rises
        (lambda i: 93.0 * (1 - math.exp(-i / 12)), (100.0, 100.0), []),
        (lambda i: 99.0 if i else 0.0, (100.0, 100.0), []),  # as near as networks are
        (lambda i: 100.5, (100.0, 100.0), []),
        (lambda i: 14.5, (100.0, 100.0), ["offline_q_diverged"]),  # it stands still
        (lambda i: 14.5 - i, (100.0, 100.0), ["offline_q_diverged"]),
        (lambda i: 2.0**i, (100.0, 100.0), ["offline_q_diverged"]),
        (lambda i: -14.5 * (i + 1) / COUNT, (-100.0, -100.0), []),
        (lambda i: -100.0 - 5.0 * i, (-100.0, -100.0), ["offline_q_diverged"]),
        (lambda i: 2e-10, (0.0, 0.0), []),
        (lambda i: 0.5 * i, (0.0, 0.0), ["offline_q_diverged"]),
    ],
)
def test_q_beside_returns_that_are_all_one_number(
    q: Callable[[int], float], bounds: tuple[float, float], ill: list[str]
):
    rows = constant(q, *bounds)
    assert [name for name in names(rows, IQL) if name.startswith("offline")] == ill
    assert [name for name in names(rows[-1:], IQL) if name.startswith("offline")] in (ill, [])


def test_a_run_from_data_that_is_too_short_is_told_so():
    def first(rows: list[Row], updates: int) -> tuple[str, str]:
        source = {**config(IQL), "training": {"total_updates": updates}}
        [finding] = [each for each in examine(rows, source) if each.illness == "no_progress"]
        return finding.causes[0], finding.changes[0].override

    rows = made(FROM_DATA["no_progress"], on_data)
    assert first(rows, 1000) == ("the run is too short: few updates", "training.total_updates=100000")
    assert first(rows, 50_000) == ("the learning rate is far off", "")
    rising = [{**row, "eval/return_mean": flat(i)} for i, row in enumerate(constant(lambda i: i, 100, 100))]
    said, change = first(rising, 100_000)
    assert "still grows" in said and change == "training.total_updates=200000"


def test_what_is_said_of_a_healthy_run_from_data():
    rows = made(lambda i: {}, on_data)
    [said] = statements(rows)
    assert said == (
        "Q on the data: -39.3 of its actions, -34.4 of the policy's; returns in the data are -60 on average and -20 at "
        "best, and can be -1.6e+03 to 0"
    )
    unknown = made(lambda i: {"health/data_return_best": math.nan}, on_data)
    [said] = statements(unknown)
    assert said.endswith("; returns in the data are -60 on average, and can be -1.6e+03 to 0")
    assert statements(made(lambda i: {}, off_policy), config(IQL))[0].startswith(
        "Q on the data was not measured"
    )
    assert report([], 1).startswith("nothing found in 1 row of figures")
    assert report([], 40, [said]).endswith(said) and statements(made(lambda i: {})) == []
