"""Bonuses with replay: of the sampled rows' true successors, at the update."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tests.explorers.test_rnd import LINE, rnd
from uniarena import Agent, Trainer, make_env
from uniarena.batch import Batch
from uniarena.config import ConfigError, config
from uniarena.explorers.bonuses.sampled import sampled_rows, with_bonus
from uniarena.sampling.evaluation import evaluate_agent


@config
class PositionConfig:
    reward_scale: float = 0.1  # weight of the bonus


class Position(nn.Module):
    """The first number of the successor, so that every sum can be done by hand."""

    Config = PositionConfig

    def __init__(
        self,
        observation_space: Any = None,
        action_space: Any = None,
        cfg: PositionConfig | None = None,
        rng: Any = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.scale, self.learned = cfg.reward_scale if cfg else scale, 0

    def weight(self, progress: float) -> float:
        return self.scale * (1.0 - progress)

    def bonus(self, rollout: Any) -> Tensor:
        raise AssertionError("replay has no rollouts")

    def bonus_of_rows(self, rows: Batch) -> Tensor:
        first: Tensor = rows.next_obs[:, 0]
        return first

    def learn(self, rows: Batch) -> dict[str, Tensor]:
        self.learned += len(rows.valid)
        return {}


class RolloutsOnly(nn.Module):
    Config = PositionConfig

    def __init__(self, *args: Any) -> None:
        super().__init__()


class Count(gymnasium.Env[np.ndarray, np.int64]):
    """The observation is how many steps were made; episodes of four; no reward but 1 at the end."""

    observation_space = spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at += 1
        return np.full(1, self.at, np.float32), float(self.at == 4), False, self.at == 4, {}


def agent_of(n_step: int, **settings: Any) -> tuple[Agent, Any]:
    env = make_env(Count, 1)
    learner = {"type": "dqn", "learning_starts": 0, "gamma": 0.5, "n_step": n_step, "batch_size": 64}
    parts = {"buffer": {"capacity": 200}, "intrinsic": {"type": Position, **settings}}
    return Agent.assemble(env, learner, policy={"hidden_sizes": [8]}, parts=parts), env


@pytest.mark.parametrize(
    ("n_step", "paid"),
    [
        (1, [0.1, 0.2, 0.3, 1.4]),
        # three steps of γ 0.5 from 0: 0.1 + 0.1 + 0.075; from 1: 0.2 + 0.15 + (1 + 0.4)/4; then to the end alone
        (3, [0.275, 0.7, 1.0, 1.4]),
    ],
)
def test_the_learner_is_paid_every_steps_bonus(n_step: int, paid: list[float]) -> None:
    agent, env = agent_of(n_step)
    seen: list[Batch] = []
    learn = agent.learner.update
    agent.learner.update = lambda batch: seen.append(batch) or learn(batch)  # type: ignore[method-assign,func-returns-value]
    trainer = Trainer(agent, env)
    trainer.fit(44)
    batch = seen[-1]
    assert "window" not in batch
    weight = 1.0 - agent._progress
    for at, full in enumerate(paid):
        rows = batch.obs[:, 0] == at
        extrinsic = {1: [0, 0, 0, 1], 3: [0, 0.25, 0.5, 1]}[n_step][at]
        # a window at the newest row is shorter than the others
        expected = extrinsic + weight * (full - extrinsic)
        whole = batch.reward[rows & (batch.n == min(n_step, 4 - at))]
        assert len(whole)
        torch.testing.assert_close(whole, torch.full_like(whole, expected))
    assert agent.bonuses[0].learned == 64 * n_step * trainer.counters.updates
    trainer.close()


def test_what_is_stored_and_what_is_evaluated_stays_raw() -> None:
    agent, env = agent_of(1, reward_scale=100.0)
    trainer = Trainer(agent, env)
    trainer.fit(40)
    assert trainer.metrics["return_mean"] == 1.0
    assert agent.buffer.sample(torch.Generator(), 32).reward.max() == 1.0
    assert evaluate_agent(agent, make_env(Count, 1), 2, seed=0).return_mean == 1.0
    trainer.close()


def test_nothing_is_paid_for_a_successor_that_is_not_known() -> None:
    known = torch.tensor([True, False, True])
    sample = Batch((3,), next_obs=torch.tensor([[1.0], [2.0], [3.0]]), known=known, reward=torch.zeros(3))
    rows = sampled_rows(sample)
    paid = with_bonus(sample, rows, [Position(), Position(scale=2.0)], 0.0, 0.9)
    assert paid.bonus.tolist() == [3.0, 0.0, 9.0]
    assert "window" not in paid


def test_sequences_are_paid_row_by_row() -> None:
    flags = torch.ones(2, 3, dtype=torch.bool)
    valid = flags.clone()
    valid[1, 2] = False
    following = torch.arange(6.0).reshape(2, 3, 1)
    sample = Batch((2, 3), next_obs=following, known=flags, valid=valid, reward=torch.zeros(2, 3))
    paid = with_bonus(sample, sampled_rows(sample), [Position()], 0.0, 0.9)
    assert paid.bonus.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 0.0]]


def test_a_bonus_of_rollouts_alone_is_refused() -> None:
    env = make_env("CartPole-v1", 1)
    with pytest.raises(ConfigError, match="RolloutsOnly gives bonuses of rollouts") as caught:
        Agent.assemble(env, "dqn", parts={"intrinsic": {"type": RolloutsOnly}})
    assert "bonus_of_rows" in caught.value.hint
    env.close()


# -- random network distillation ---------------------------------------------------------------------------------
def rows_of(values: Tensor) -> Batch:
    ones = torch.ones(len(values), dtype=torch.bool)
    return Batch((len(values),), next_obs=values[:, None], valid=ones)


def test_the_scale_of_sampled_errors_by_hand() -> None:
    # Errors 3 and 4, then 0 and 0 and one that does not count: √((9 + 16) / 2), then √(25 / 4).
    bonus = rnd()
    assert bonus.scale._divisor(torch.tensor([3.0, 4.0]), torch.ones(2, dtype=torch.bool)).item() == (
        pytest.approx(12.5**0.5)
    )
    valid = torch.tensor([True, True, False])
    assert bonus.scale._divisor(torch.tensor([0.0, 0.0, 7.0]), valid).item() == pytest.approx(2.5)


@pytest.mark.parametrize("scale", ["running_std", "learned", "fixed"])
def test_the_known_becomes_dull_and_the_new_stays_bright(scale: str) -> None:
    bonus = rnd(scale=scale, learning_rate=1e-3, update_proportion=1.0, observation_clip=50.0)
    draw = torch.Generator().manual_seed(5)
    familiar = rows_of(torch.randn(256, generator=draw))
    assert bonus.bonus_of_rows(familiar).mean().item() > 0.0
    for _ in range(60):
        bonus.bonus_of_rows(familiar)
        metrics = bonus.learn(familiar)
    mixed = torch.cat([torch.randn(200, generator=draw), torch.full((8,), 4.0)])
    after = bonus.bonus_of_rows(rows_of(mixed))
    assert after[-8:].mean().item() > 10.0 * after[:200].mean().item()
    assert {"intrinsic_mean", "intrinsic_std", "predictor_loss"} <= set(metrics)


def test_rows_that_do_not_count_move_nothing() -> None:
    one, two = rnd(space=LINE), rnd(space=LINE)
    rows = rows_of(torch.linspace(-1.0, 1.0, 8))
    wide = torch.cat([rows.next_obs, torch.full((4, 1), 1e6)])
    valid = torch.cat([rows.valid, torch.zeros(4, dtype=torch.bool)])
    more = Batch((12,), next_obs=wide, valid=valid)
    expected, given = one.bonus_of_rows(rows), two.bonus_of_rows(more)
    torch.testing.assert_close(given[:8], expected)
    assert given[8:].abs().max() == 0.0
    assert two.scale.moments.count == 8


# -- a task that only novelty solves -----------------------------------------------------------------------------
LENGTH, STEPS = 16, 3_000


class Lock(gymnasium.Env[np.ndarray, np.int64]):
    """A combination lock: of two actions one leads to the next of LENGTH states, which one differs from state to state,
    and the other back to the first. Only the last step pays, 1; after three times LENGTH steps there is a time limit.
    """

    observation_space = spaces.Box(0.0, 1.0, (LENGTH,), np.float32)
    action_space = spaces.Discrete(2)
    right = np.random.default_rng(3).integers(0, 2, LENGTH)

    def _observed(self) -> np.ndarray:
        return np.eye(LENGTH, dtype=np.float32)[min(self.at, LENGTH - 1)]

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.at = self.steps = 0
        return self._observed(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at = self.at + 1 if action == self.right[self.at] else 0
        self.steps += 1
        opened = self.at == LENGTH
        return self._observed(), float(opened), opened, self.steps >= 3 * LENGTH, {}


def unlocked(intrinsic: dict[str, Any] | None, seed: int) -> float:
    env = make_env(Lock, 1)
    learner = {
        "type": "dqn",
        "double": True,
        "learning_starts": 100,
        "learning_rate": 1e-2,
        "updates_per_env_step": 0.5,
        "target_update_updates": 10,
        "gamma": 0.95,
    }
    parts: dict[str, Any] = {"buffer": {"capacity": 10_000}, "explorer": {"epsilon": 0.01}}
    if intrinsic:
        parts["intrinsic"] = intrinsic
    agent = Agent.assemble(env, learner, policy={"hidden_sizes": [64]}, parts=parts, seed=seed)
    trainer = Trainer(agent, env)
    trainer.fit(STEPS)
    trainer.close()
    other = make_env(Lock, 1)
    score = evaluate_agent(agent, other, 1, seed=0).return_mean
    other.close()
    return score


@pytest.mark.slow
def test_dqn_opens_the_lock_with_the_bonus_and_not_without() -> None:
    """A random walk opens it once in 65,536 tries; there are some 1,500."""
    fading = {"type": "linear", "start": 0.1, "end": 0.0}
    novelty = {"type": "rnd", "reward_scale": fading, "update_proportion": 1.0, "learning_rate": 1e-3}
    assert [unlocked(novelty, seed) for seed in (0, 1)] == [1.0, 1.0]
    assert [unlocked(None, seed) for seed in (0, 1)] == [0.0, 0.0]
