"""Several agents in one environment, one of which dies: columns of their own, whose rows stop to count."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.contracts.counting import sampled
from tests.contracts.doors import DEATH, LENGTH, N_ENVS, TwoAgents
from uniarena.agent import Agent
from uniarena.trainer import Trainer

VALID = N_ENVS * (LENGTH + DEATH)  # real rows of one episode


class Episodes:
    """Remembers (column, length, return)."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int, float]] = []

    def on_episode_end(self, trainer: Trainer, event: Any) -> None:
        self.found.append((event.env, event.length, event.episode_return))


def normalized() -> TwoAgents:
    env: Any = TwoAgents()
    env.normalization = {"observation": {}, "reward": {}}
    return env


def test_columns_are_environments_times_agents_and_dead_rows_are_not_valid() -> None:
    parts = sampled(TwoAgents(), lambda count: count)
    rollout = parts.collect(2 * LENGTH)
    assert (rollout.B, parts.sampler.columns) == (2 * N_ENVS, 2 * N_ENVS)
    alive = [True] * LENGTH, [True] * DEATH + [False] * (LENGTH - DEATH)
    for column in range(rollout.B):
        assert rollout.rows.valid[:, column].tolist() == alive[column % 2] * 2
    assert int(rollout.rows.valid.sum()) == 2 * VALID


def test_counters_and_episodes_ignore_the_dead() -> None:
    env, listener = normalized(), Episodes()
    agent = Agent.assemble(env, {"type": "ppo", "n_steps": LENGTH, "n_epochs": 1, "batch_size": 64})
    trainer = Trainer(agent, env, callbacks=[listener])
    trainer.fit(VALID)
    assert (trainer.counters.env_steps, trainer.counters.steps) == (VALID, LENGTH * 2 * N_ENVS)
    assert sorted(listener.found) == [(0, 5, 5.0), (1, 2, 4.0), (2, 5, 5.0), (3, 2, 4.0)]
    assert len(agent.reward_scaler.returns) == 2 * N_ENVS, "a discounted return for each agent"


def test_statistics_and_minibatches_hold_no_row_of_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    env = normalized()
    agent = Agent.assemble(
        env,
        {"type": "ppo", "n_steps": LENGTH, "n_epochs": 1, "batch_size": 3},
        parts={"intrinsic": {"type": "rnd", "hidden_sizes": [4], "feature_dim": 2}},
    )
    sizes, largest = [], 0.0
    loss = agent.learner.loss
    whole = type(loss).__call__

    def spy(batch: Any) -> Any:
        nonlocal largest
        sizes.append(len(batch))
        largest = max(largest, float(batch.obs.max()))
        return whole(loss, batch)

    monkeypatch.setattr(type(loss), "__call__", lambda self, batch: spy(batch))
    trainer = Trainer(agent, env)
    trainer.fit(VALID)
    assert sum(sizes) == VALID and largest < 10.0, "garbage of dead columns was learned from"
    assert int(agent.normalizer.moments.count) == VALID
    assert int(agent.reward_scaler.moments.count) == VALID
    assert int(agent.bonuses[0].normalizer.moments.count) == VALID
    assert all(bool(torch.isfinite(p).all()) for p in agent.model.parameters())


@pytest.mark.parametrize("lam", [0.0, 0.8])
def test_credit_ends_with_the_death(lam: float) -> None:
    parts = sampled(TwoAgents(), lambda count: count.clone(), gae_lambda=lam)
    rows = parts.targets(parts.collect(LENGTH))
    for column in range(2 * N_ENVS):
        steps, agent = (LENGTH, 0) if column % 2 == 0 else (DEATH, 1)
        expected, following = [], 0.0
        for t in reversed(range(steps)):  # V(s) = t, reward 1 + agent, worth nothing afterwards
            delta = 1.0 + agent + (0.9 * (t + 1) if t + 1 < steps else 0.0) - t
            following = delta + (0.9 * lam * following if t + 1 < steps else 0.0)
            expected.append(following)
        assert rows.advantage[:steps, column].tolist() == pytest.approx(expected[::-1], abs=1e-5)
