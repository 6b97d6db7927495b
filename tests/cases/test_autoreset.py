"""Whatever a vector environment does at an end, a user sees the same episodes, counts and figures."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tests.fakes.envs import CounterEnv, CounterVectorEnv
from uniarena import Agent, Rollout, Trainer, make_env
from uniarena.envs import UniArenaNotice
from uniarena.sampling.evaluation import evaluate_agent
from uniarena.trainer.events import BatchCollected, EpisodeEnd

MODES = list(AutoresetMode)
SHORT = {"type": "ppo", "n_steps": 12, "batch_size": 12, "n_epochs": 1}
each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)


class Look:
    """Keeps the rollouts and the episodes of a run."""

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []
        self.episodes: list[tuple[int, float, int]] = []

    def on_batch_collected(self, trainer: Trainer, event: BatchCollected) -> None:
        self.rollouts.append(event.rollout.clone())

    def on_episode_end(self, trainer: Trainer, event: EpisodeEnd) -> None:
        self.episodes.append((event.env, event.episode_return, event.length))


def fit(spec: Any, env_steps: int, **options: Any) -> tuple[Trainer, Look]:
    env, look = make_env(spec, **options), Look()
    trainer = Trainer(Agent.assemble(env, SHORT), env, callbacks=[look])
    trainer.fit(env_steps)
    trainer.close()
    return trainer, look


def makers(lengths: tuple[int, ...], end: str = "termination") -> list[Any]:
    return [lambda n=n: CounterEnv(n, end) for n in lengths]


@each_mode
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_gymnasiums_own_vector_environments(kind: Any, mode: AutoresetMode):  # case B07, B09
    lengths = (1, 2, 3, 5)
    trainer, look = fit(kind(makers(lengths), autoreset_mode=mode), 96)
    valid = sum(int(rollout.rows.valid.sum()) for rollout in look.rollouts)
    assert trainer.counters.env_steps == valid >= 96
    assert all(length == total == lengths[env] for env, total, length in look.episodes)
    assert trainer.counters.episodes == len(look.episodes)
    rows = sum(rollout.T * rollout.B for rollout in look.rollouts)
    assert (rows > valid) == (mode == AutoresetMode.NEXT_STEP) and trainer.counters.steps == rows
    for rollout in look.rollouts:  # the policy begins every episode at the reset observation
        assert bool((rollout.rows.obs[rollout.rows.is_first] == 0).all())
        assert rollout.ended is not None
        final = rollout.ended.obs.squeeze(-1)
        assert final.tolist() == [float(lengths[b]) for b in rollout.ended.b.tolist()]


@each_mode
def test_episodes_of_one_step(mode: AutoresetMode):  # case B07
    """Every second row is only a reset where the next step resets; they are not learned from, nor counted."""
    trainer, look = fit(CounterVectorEnv(2, (1, 1), mode), 48)
    assert trainer.counters.env_steps >= 48
    assert {(total, length) for _, total, length in look.episodes} == {(1.0, 1)}
    assert len(look.episodes) == trainer.counters.env_steps
    assert all(bool((r.rows.reward[~r.rows.valid] == 0).all()) for r in look.rollouts)


@each_mode
def test_an_end_that_is_both_terminates(mode: AutoresetMode):  # case B01: nothing is bootstrapped after it
    class Both(CounterEnv):
        def step(self, action: int) -> Any:
            obs, reward, terminated, _, info = super().step(action)
            return obs, reward, terminated, terminated, info

    _, look = fit(SyncVectorEnv([lambda: Both(3)] * 2, autoreset_mode=mode), 24)
    [rollout, *_] = look.rollouts
    rows = rollout.rows
    ended = rows.terminated | rows.truncated
    assert bool(rows.terminated[ended].all())
    assert {length for _, _, length in look.episodes} == {3}


@pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])
def test_a_time_limit_on_the_very_last_step(vectorization: str):  # case B01
    """The limit and the environment's own end fall together: it is an end, not a cut."""
    _, look = fit(
        CounterEnv, 24, num_envs=2, kwargs={"length": 4}, max_episode_steps=4, vectorization=vectorization
    )
    rows = look.rollouts[0].rows
    assert int(rows.terminated.sum()) == 6 and {length for _, _, length in look.episodes} == {4}


@pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])
def test_a_time_limit_before_the_end(vectorization: str):  # case B01
    _, look = fit(
        CounterEnv, 24, num_envs=2, kwargs={"length": 9}, max_episode_steps=4, vectorization=vectorization
    )
    [rollout, *_] = look.rollouts
    assert not bool(rollout.rows.terminated.any()) and int(rollout.rows.truncated.sum()) == 6
    assert rollout.ended is not None and rollout.ended.obs.flatten().tolist() == [4.0] * 6


@each_mode
def test_evaluation_counts_whole_episodes(mode: AutoresetMode):  # case B09
    env = make_env(CounterVectorEnv(4, (1, 2, 3, 5), mode))
    result = evaluate_agent(Agent.assemble(env), env, 8)
    assert sorted(result.returns) == sorted(result.lengths) == [1, 1, 2, 2, 3, 3, 5, 5]


def test_a_vector_environment_that_does_not_say_how_it_resets():
    """Gymnasium's default is the next step, which is said; an unknown word is refused."""
    vector = CounterVectorEnv(2, (3, 3), AutoresetMode.NEXT_STEP)
    del vector.metadata["autoreset_mode"]
    with pytest.warns(UniArenaNotice, match="autoreset_mode"):
        env = make_env(vector)
    assert sorted(evaluate_agent(Agent.assemble(env), env, 4).lengths) == [3] * 4
    vector.metadata = {"autoreset_mode": "sometimes"}
    with pytest.raises(ValueError, match="AutoresetMode"):
        make_env(vector)


@pytest.mark.parametrize(
    ("acts", "says"), [("SAME_STEP", "NEXT_STEP"), ("SAME_STEP", "DISABLED"), ("NEXT_STEP", "SAME_STEP")]
)
def test_a_vector_environment_that_contradicts_itself_is_refused_at_its_first_end(acts: str, says: str):
    vector = CounterVectorEnv(2, (3, 3), AutoresetMode[acts])
    vector.metadata["autoreset_mode"] = AutoresetMode[says]
    with pytest.raises(ValueError, match="final_obs"):
        fit(vector, 24)


def test_all_modes_learn_the_same_from_the_same_rows():
    """Where no row is only a reset, the two modes give the same parameters bit for bit."""
    ends = []
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
        trainer, _ = fit(SyncVectorEnv(makers((2, 5)), autoreset_mode=mode), 72)
        ends.append(trainer.agent.model.state_dict())
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_a_wrapper_that_steps_inside_reset_meets_no_finished_episode():
    """As life-loss wrappers do: a no-op in reset, and the inner limit falls on that very step."""

    class NoopReset(gym.Wrapper):
        def reset(self, **options: Any) -> Any:
            obs, info = self.env.reset(**options)
            obs, _, terminated, truncated, info = self.env.step(0)
            return self.env.reset(**options) if terminated or truncated else (obs, info)

    for vectorization in ("serial", "sync"):
        _, look = fit(
            lambda: NoopReset(gym.wrappers.TimeLimit(CounterEnv(9), 1)), 12, vectorization=vectorization
        )
        assert {length for _, _, length in look.episodes} == {1}
