"""From a real environment through the sampler to the learner's targets: numbers made by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.contracts.counting import (
    FORMS,
    LENGTHS,
    MODES,
    gae_of,
    own,
    sampled,
    ten,
    transitions,
)
from tests.fakes.envs import CounterEnv, CounterVectorEnv, TensorCounter
from uniarena.agent import Agent
from uniarena.envs import UniArenaNotice, make_env
from uniarena.learners.on_policy.config import PolicyGradientConfig
from uniarena.ops.returns import successors
from uniarena.trainer import Trainer


@pytest.mark.parametrize("name", FORMS)
def test_a_time_limit_bootstraps_from_the_final_observation_and_a_termination_does_not(
    name: str,
) -> None:  # case B01
    for value in (
        ten,
        own,
    ):  # V(final observation) is 10 by both; V(reset observation) would be 0 by the second
        targets = {}
        for end in ("truncation", "termination"):
            parts = sampled(FORMS[name]([10], end), value, gae_lambda=0.0)
            rows = parts.targets(parts.collect(33))
            targets[end] = rows.target[rows.valid][:30]
            parts.sampler.close()
        assert targets["truncation"][[9, 19, 29]].tolist() == pytest.approx([1 + 0.9 * 10] * 3)
        assert targets["termination"][[9, 19, 29]].tolist() == [1.0] * 3


def test_one_default_gives_the_numbers_made_by_hand_and_there_is_no_switch() -> None:  # case B03
    class Rich(CounterEnv):
        """Rewards of the second episode after the seeded reset are a hundred times as high."""

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            found = super().reset(seed=seed, options=options)
            self.episode = 0 if seed is not None else self.episode
            return found

        def step(self, action: int) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, reward * (100.0 if self.episode == 1 else 1.0), *rest

    parts = sampled(make_env(lambda: Rich(10, "truncation")), ten)
    rows = parts.targets(parts.collect(30))
    lam = parts.agent.learner.cfg.gae_lambda
    for start, reward in ((0, 1.0), (10, 100.0), (20, 1.0)):
        delta = (
            reward + 0.9 * 10 - 10
        )  # every row: the value of whatever follows is 10, the final observation's too
        by_hand = [delta * sum((0.9 * lam) ** j for j in range(10 - k)) for k in range(10)]
        assert rows.advantage[start : start + 10, 0].tolist() == pytest.approx(by_hand, rel=1e-5)
    named = " ".join(PolicyGradientConfig.__dataclass_fields__)
    assert not any(word in named for word in ("trunc", "time_limit", "timeout", "bootstrap_on"))


@pytest.mark.parametrize("mode", MODES)
def test_the_policy_sees_the_reset_observation_first_and_the_last_successor_is_the_final_one(
    mode: str,
) -> None:
    parts = sampled(make_env(CounterVectorEnv(2, (3, 4), mode)), own)  # case B05
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    act = parts.agent.actor.act

    def spy(obs: torch.Tensor, state: Any, is_first: torch.Tensor, *rest: Any) -> Any:
        seen.append((obs.clone(), is_first.clone()))
        return act(obs, state, is_first, *rest)

    parts.agent.actor.act = spy  # type: ignore[method-assign]
    parts.collect(24)
    seen.clear()  # the first call asks for an action beside, to learn its form
    rollout = parts.collect(24)
    rows = rollout.rows
    inputs, first = torch.stack([obs for obs, _ in seen]), torch.stack([first for _, first in seen])
    assert torch.equal(inputs, rows.obs) and torch.equal(first, rows.is_first)
    assert rows.is_first.any() and (inputs[first] == 0).all()
    ends = rows.terminated | rows.truncated
    lengths = torch.tensor([3.0, 4.0]).expand(24, 2)
    assert torch.equal(successors(rollout)[..., 0][ends], lengths[ends])


@pytest.mark.parametrize("mode", MODES)
def test_stored_transitions_are_as_many_as_the_environment_made(mode: str) -> None:  # case B07
    vector = CounterVectorEnv(4, LENGTHS, mode)
    parts = sampled(make_env(vector), own)
    rows = [parts.collect(10).rows.valid.sum(0) for _ in range(4)]
    assert torch.stack(rows).sum(0).tolist() == vector.real_steps.tolist()


@pytest.mark.parametrize("mode", MODES)
def test_episode_lengths_and_returns_are_true_and_so_are_the_counters(mode: str) -> None:  # case B09
    env = make_env(CounterVectorEnv(1, (3,), mode))
    listener = _Episodes()
    trainer = Trainer(_agent(env, n_steps=15), env, callbacks=[listener])
    trainer.fit(15)
    assert listener.episodes and set(listener.episodes) == {(3, 3.0)}
    assert trainer.metrics["length_mean"] == 3.0 and trainer.metrics["return_mean"] == 3.0
    counters = trainer.counters
    assert counters.env_steps == 15 and counters.episodes == len(listener.episodes) == 5
    assert counters.steps == (19 if mode == "NextStep" else 15), (
        "rows that were only resets are counted apart"
    )


def test_returns_are_logged_in_the_reward_before_wrappers_changed_it() -> None:
    env = make_env(
        lambda: CounterEnv(4, reward=10.0),
        2,
        wrappers=["clip_reward", {"type": "scale_reward", "scale": 0.5}],
    )
    listener = _Episodes()
    trainer = Trainer(_agent(env, n_steps=8), env, callbacks=[listener])
    trainer.fit(16)
    assert set(listener.episodes) == {(4, 40.0)} and trainer.metrics["return_mean"] == 40.0


@pytest.mark.parametrize("end", ["termination", "truncation"])
@pytest.mark.parametrize("name", FORMS)
def test_advantages_are_those_of_a_plain_loop_over_episodes_in_every_form(name: str, end: str) -> None:
    parts = sampled(FORMS[name](LENGTHS, end), own, gae_lambda=0.7)
    rollout = parts.collect(23)
    parts.sampler.close()
    rows = parts.targets(rollout)
    for b, length in enumerate(LENGTHS):
        valid = rows.valid[:, b]
        steps = transitions(length, end, int(valid.sum()))
        by_hand = gae_of(steps, float, 0.9, 0.7)
        assert rows.advantage[valid, b].tolist() == pytest.approx(by_hand, abs=1e-5)
        assert rows.target[valid, b].tolist() == pytest.approx(
            [a + s.at for a, s in zip(by_hand, steps, strict=True)]
        )
    parts.agent.buffer.add(rollout)
    batches = list(
        parts.agent.learner.minibatches(parts.agent.learner.targets(parts.agent.buffer.sample())[0])
    )
    assert sum(len(batch) for batch in batches) == 10 * int(rollout.rows.valid.sum()), (
        "ten epochs of real rows"
    )


def test_next_step_rows_by_hand() -> None:
    """Episodes of two steps: count 0, count 1, and a row that only resets, at whose time the count is 2."""
    parts = sampled(FORMS["native_NextStep"]([2], "termination"), own, gae_lambda=1.0)
    rollout = parts.collect(6)
    rows = parts.targets(rollout)
    assert rollout.rows.obs.flatten().tolist() == [0, 1, 2, 0, 1, 2]
    assert rollout.rows.valid.flatten().tolist() == [True, True, False, True, True, False]
    assert rollout.rows.is_first.flatten().tolist() == [True, False, False, True, False, False]
    assert rollout.rows.reward.flatten().tolist() == [1, 1, 0, 1, 1, 0]
    assert rollout.last.is_first.tolist() == [True] and rollout.last.obs.tolist() == [[0.0]]
    # δ = (1 + 0.9·1 − 0, 1 + 0 − 1); A = (1.9 + 0.9·0, 0)
    assert rows.advantage[rows.valid].tolist() == pytest.approx([1.9, 0.0, 1.9, 0.0])


def test_a_simulator_that_gives_final_observations_is_exact() -> None:  # case B95
    for final in ("info", "dense"):
        env = make_env(TensorCounter(1, [4], "truncation", final, last_reward=100.0))
        parts = sampled(env, own, gae_lambda=0.0)
        target = parts.targets(parts.collect(8)).target[:, 0]
        by_hand = [1 + 0.9 * 1, 1 + 0.9 * 2, 1 + 0.9 * 3, 100 + 0.9 * 4]
        assert target.tolist() == pytest.approx(by_hand * 2)


def test_without_final_observations_the_last_reward_is_not_counted_twice() -> None:  # case B95
    with pytest.warns(UniArenaNotice, match="advantage 0") as said:
        env = make_env(TensorCounter(1, [4], "truncation", None, last_reward=100.0))
        parts = sampled(env, own, gae_lambda=0.9)
        rows = parts.targets(parts.collect(8))
    assert len(said) == 1, "it is said once"
    assert rows.target[[3, 7], 0].tolist() == [3.0, 3.0], "the row's own value"
    assert rows.advantage[[3, 7], 0].tolist() == [0.0, 0.0]
    # nothing of the 100 reaches the rows before, by either way
    assert rows.advantage[:3, 0].tolist() == pytest.approx(_geometric([1.9, 1.8, 1.7], 0.81))


def test_a_termination_needs_no_final_observation() -> None:
    with pytest.warns(UniArenaNotice):
        env = make_env(TensorCounter(1, [4], "termination", None, last_reward=100.0))
    parts = sampled(env, own, gae_lambda=0.0)
    assert parts.targets(parts.collect(4)).target[3, 0].item() == 100.0


class _Episodes:
    """Remembers (length, return) of episodes as they are reported."""

    def __init__(self) -> None:
        self.episodes: list[tuple[int, float]] = []

    def on_episode_end(self, trainer: Trainer, event: Any) -> None:
        self.episodes.append((event.length, event.episode_return))


def _agent(env: Any, **learner: Any) -> Agent:
    return Agent.assemble(
        env, {"type": "ppo", "n_epochs": 1, "batch_size": 8, **learner}, policy={"hidden_sizes": [4]}
    )


def _geometric(deltas: list[float], factor: float) -> list[float]:
    """A_t = δ_t + factor · A_{t+1}, after the given deltas 0: δ_t = 1 + 0.9·(t+1) − t here."""
    found, following = [], 0.0
    for delta in reversed(deltas):
        following = delta + factor * following
        found.append(following)
    return found[::-1]
