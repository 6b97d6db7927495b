"""Evaluation without an environment, on a chain whose true values are known by dynamic programming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from uniarena import Agent, make_env
from uniarena.buffers.dataset import DatasetConfig
from uniarena.config import ConfigError
from uniarena.data import Episode, Recorder
from uniarena.learners.offline.fitted_q import FittedQConfig
from uniarena.ops.health import Worth
from uniarena.ops.off_policy_evaluation import (
    effective_size,
    interval,
    resamples,
    side_by_side,
    step_weights,
    weighted_return,
)
from uniarena.sampling import on_data
from uniarena.sampling.on_data import data_for, evaluate_on_data

STATES, GAMMA, LIMIT = 4, 0.9, 25
QUICK = FittedQConfig(updates=1000, members=4, hidden_sizes=(32,), batch_size=128, learning_rate=3e-3)


# -- formulas by hand ------------------------------------------------------------------------------------------------
def test_weighted_returns_by_hand() -> None:
    ratio = np.log([2.0, 1.0, 0.5, 4.0, 1.0])
    episodes = side_by_side(
        ratio, np.array([1.0, 2, 3, 4, 5]), np.array([0, 1, 0, 0, 0]), np.array([0, 2, 5])
    )
    assert episodes.known.tolist() == [[True, True, True], [True, True, True]], (
        "after the end nothing is paid"
    )
    weight = step_weights(episodes)
    # products of ratios: 2, 2, (2) and 0.5, 2, 2; each step in units of its largest
    np.testing.assert_allclose(weight, [[1, 1, 1], [0.25, 1, 1]])
    steps = [(2 * 1 + 0.5 * 3) / 2.5, (2 * 2 + 2 * 4) / 4, (2 * 0 + 2 * 5) / 4]
    expected = steps[0] + 0.5 * steps[1] + 0.25 * steps[2]
    assert weighted_return(weight, episodes.reward, 0.5) == pytest.approx(expected)
    twice = weighted_return(weight, episodes.reward, 0.5, np.array([[2.0, 0.0], [1.0, 1.0]]))
    assert twice == pytest.approx([1 + 0.5 * 2, expected])


def test_a_time_limit_hides_what_would_have_been_paid() -> None:
    episodes = side_by_side(np.zeros(3), np.array([1.0, 3, 5]), np.zeros(3, bool), np.array([0, 1, 3]))
    assert episodes.known.tolist() == [[True, False], [True, True]]
    found = weighted_return(step_weights(episodes), episodes.reward, 0.5)
    assert found == pytest.approx((1 + 3) / 2 + 0.5 * 5)


def test_weights_do_not_overflow_and_may_all_be_none() -> None:
    episodes = side_by_side(np.full(4, 500.0), np.ones(4), np.zeros(4, bool), np.array([0, 2, 4]))
    assert weighted_return(step_weights(episodes), episodes.reward, 1.0) == pytest.approx(2.0)
    never = side_by_side(np.full(4, -np.inf), np.ones(4), np.zeros(4, bool), np.array([0, 2, 4]))
    assert step_weights(never).sum() == 0.0 and weighted_return(step_weights(never), never.reward, 1.0) == 0.0
    assert effective_size(step_weights(never)).tolist() == [0.0, 0.0]


def test_the_effective_size() -> None:
    weight = np.array([[1.0, 1.0], [1.0, 0.0], [2.0, 0.0]])
    assert effective_size(weight) == pytest.approx([16 / 6, 1.0])


def test_resamples_and_their_interval() -> None:
    counts = resamples(7, 100, np.random.default_rng(0))
    assert counts.shape == (100, 7) and (counts.sum(1) == 7).all()
    assert interval(np.arange(101.0), 0.9) == pytest.approx((5.0, 95.0))


# -- a chain -----------------------------------------------------------------------------------------------------------
class Chain(gym.Env[Any, Any]):
    """Right or left, with a chance of 0.2 to stay; beyond the last state there is 1 and the end. A step costs 0.1."""

    observation_space = spaces.Box(0.0, 1.0, (STATES,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = 0
        return np.eye(STATES, dtype=np.float32)[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.np_random.random() < 0.8:
            self.state = max(0, self.state + (1 if action else -1))
        over = self.state == STATES
        row = np.eye(STATES, dtype=np.float32)[min(self.state, STATES - 1)]
        return row, (1.0 if over else 0.0) - 0.1, over, False, {}


def true_values(right: np.ndarray) -> np.ndarray:
    """V of a policy that goes right with chances `[S]`: (I − γP)⁻¹ r."""
    move, reward = np.zeros((STATES, STATES)), np.full(STATES, -0.1)
    for s, p in enumerate(right):
        move[s, s] += 0.2
        move[s, max(0, s - 1)] += 0.8 * (1 - p)
        if s + 1 < STATES:
            move[s, s + 1] += 0.8 * p
        else:
            reward[s] += 0.8 * p
    return np.linalg.solve(np.eye(STATES) - GAMMA * move, reward)


def recorded(path: Path, right: float, episodes: int = 400) -> Path:
    env: Any = Chain()
    env.reset(seed=0)
    rng = np.random.default_rng(1)
    recorder = Recorder(env.observation_space, env.action_space, {}, {})
    for _ in range(episodes):
        obs, actions, rewards, over = [env.reset()[0]], [], [], False
        while not over and len(actions) < LIMIT:
            actions.append(int(rng.random() < right))
            after, reward, over, _, _ = env.step(actions[-1])
            obs.append(after), rewards.append(reward)
        ends = np.zeros((2, len(rewards)), bool)
        ends[0 if over else 1, -1] = True
        recorder.add(Episode(np.stack(obs), np.array(actions), np.array(rewards), ends[0], ends[1], True))
    return recorder.save(path)


def agent_for(right: np.ndarray, learner: str = "bc") -> Agent:
    """One that goes right with chances `[S]`: its last layer is made of them."""
    env = make_env(Chain)
    agent = Agent.assemble(
        env, {"type": learner, "gamma": GAMMA}, policy={"hidden_sizes": [STATES], "activation": "relu"}
    )
    env.close()
    first, last = [m for m in agent.model.policy.modules() if isinstance(m, torch.nn.Linear)]
    with torch.no_grad():
        first.weight.copy_(torch.eye(STATES))
        first.bias.zero_()
        last.bias.zero_()
        last.weight[0].zero_()
        last.weight[1].copy_(torch.logit(torch.as_tensor(right, dtype=torch.float32)))
    return agent


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_data, "CLONING", 400)
    monkeypatch.setattr(on_data, "PART", 100)


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("chain") / "even.npz", 0.5)


def test_the_true_value_is_within_both_intervals(even: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_data, "CLONING", 1500)  # ratios are multiplied, so a poor clone is felt
    right = np.array([0.6, 0.7, 0.6, 0.8])
    agent, truth = agent_for(right), true_values(right)[0]
    buffer = data_for(agent, DatasetConfig(path=str(even)))
    found = evaluate_on_data(agent, buffer, deterministic=False, cfg=QUICK)
    assert found.behaviour[1][0] < true_values(np.full(STATES, 0.5))[0] < found.behaviour[1][1] + 0.01
    for each in found.estimates.values():
        assert each.trusted, each
        assert each.value == pytest.approx(truth, abs=0.06 if each.method == "fqe" else 0.1)
        assert each.interval is not None and each.interval[0] - 0.02 < truth < each.interval[1] + 0.02
    assert truth - found.behaviour[0] > 0.15, "it is another value than the behaviour's"
    text = str(found)
    assert "fqe: " in text and "wis: " in text and "nothing speaks against it" in text


def test_known_log_probs_take_the_place_of_the_clone(even: Path) -> None:
    right = np.array([0.6, 0.7, 0.6, 0.8])
    agent = agent_for(right)
    buffer = data_for(agent, DatasetConfig(path=str(even)))
    known = np.full(buffer.size, np.log(0.5))
    found = evaluate_on_data(agent, buffer, ("wis",), deterministic=False, log_prob=known)
    assert found.estimates["wis"].value == pytest.approx(true_values(right)[0], abs=0.08)


def test_a_greedy_policy_of_classes_has_weights_too(even: Path) -> None:
    agent = agent_for(np.full(STATES, 0.9))
    buffer = data_for(agent, DatasetConfig(path=str(even)))
    found = evaluate_on_data(agent, buffer, ("wis",))
    truth = true_values(np.ones(STATES))[0]
    each = found.estimates["wis"]
    assert each.value is not None and each.interval is not None
    assert each.interval[0] - 0.05 < truth < each.interval[1] + 0.05
    assert each.figures["effective_episodes"] < 200


def test_a_policy_that_the_data_does_not_know_is_not_to_be_trusted(tmp_path: Path) -> None:
    path = recorded(tmp_path / "left.npz", 0.02, 60)
    agent = agent_for(np.full(STATES, 0.97))
    buffer = data_for(agent, DatasetConfig(path=str(path)))
    found = evaluate_on_data(agent, buffer, cfg=QUICK)
    assert found.outside > 0.5
    assert not any(each.trusted for each in found.estimates.values())
    assert "hardly ever does" in str(found.estimates["fqe"])
    assert "fewer than 10 episodes have weight" in str(found.estimates["wis"])


def test_few_episodes_are_the_reason_where_there_are_few(tmp_path: Path) -> None:
    for episodes, said in ((1, "1 episode"), (6, "6 episodes")):
        path = recorded(tmp_path / f"{episodes}.npz", 0.5, episodes)
        agent = agent_for(np.full(STATES, 0.5))
        buffer = data_for(agent, DatasetConfig(path=str(path)))
        known = np.full(buffer.size, np.log(0.5))
        found = evaluate_on_data(
            agent, buffer, ("wis",), deterministic=False, log_prob=known, support=False
        ).estimates["wis"]
        assert found.reasons == (f"the data has {said}, too few to tell how far the value may be off",)


def test_without_any_weight_there_is_no_estimate(tmp_path: Path) -> None:
    path = recorded(tmp_path / "left.npz", 0.0, 12)
    agent = agent_for(np.full(STATES, 0.97))
    found = evaluate_on_data(agent, data_for(agent, DatasetConfig(path=str(path))), ("wis",), support=False)
    each = found.estimates["wis"]
    assert (each.value, each.interval, each.trusted) == (None, None, False)
    assert str(each).startswith("wis: no estimate: no episode has weight")


def test_where_nothing_is_paid_a_trifle_is_not_outside() -> None:
    figures = {"outside": 0.0, "held_out_error": 0.0, "error": 0.0, "moved": 0.0}
    nothing = Worth(0.0, 0.0, 0.0, 0.0)
    assert on_data._doubts(figures, np.full((2, 3), 2e-10), nothing, 1.0) == []
    assert "outside of what such rewards" in on_data._doubts(figures, np.ones((2, 3)), nothing, 1.0)[0]
    assert on_data._doubts(figures, np.full((2, 3), 101.0), Worth(100.0, 100.0, 100.0, 100.0), 1.0) == []


def test_an_unknown_method_is_refused(even: Path) -> None:
    agent = agent_for(np.full(STATES, 0.5))
    with pytest.raises(ConfigError, match="expected of fqe, wis"):
        evaluate_on_data(agent, data_for(agent, DatasetConfig(path=str(even))), ("dr",))


def test_continuous_actions(tmp_path: Path) -> None:
    from tests.offline.test_q_on_data import narrow

    path, env = narrow(tmp_path / "narrow.npz", 12, 20), make_env("Pendulum-v1")
    cfg = FittedQConfig(updates=60, members=2, hidden_sizes=(16,))
    for name, deterministic, has in (("td3", True, False), ("sac", False, True)):
        agent = Agent.assemble(env, {"type": name}, policy={"hidden_sizes": [16]})
        buffer = data_for(agent, DatasetConfig(path=str(path)))
        found = evaluate_on_data(agent, buffer, deterministic=deterministic, cfg=cfg)
        fqe, wis = found.estimates["fqe"], found.estimates["wis"]
        assert fqe.value is not None and not fqe.trusted and found.outside > 0.2
        assert (wis.value is not None) is has and not wis.trusted
        assert has or "log-probs" in str(wis)
        assert set(found.to_json()["estimates"]) == {"fqe", "wis"}
    env.close()


def test_the_same_seed_gives_the_same_numbers(even: Path) -> None:
    agent = agent_for(np.full(STATES, 0.6))
    short = FittedQConfig(updates=50, members=2, hidden_sizes=(8,))
    both = [
        evaluate_on_data(
            agent, data_for(agent, DatasetConfig(path=str(even))), deterministic=False, cfg=short
        )
        for _ in range(2)
    ]
    assert both[0].to_json() == both[1].to_json()
