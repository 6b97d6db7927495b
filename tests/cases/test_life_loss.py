"""Cases B61 and B68: a lost life ends an episode for learning only, and wrappers that step inside of reset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import uniarena
from tests.fakes.envs import CounterEnv, TensorCounter
from uniarena import Agent, Trainer
from uniarena.batch import Batch
from uniarena.config import ConfigError
from uniarena.envs import make_env
from uniarena.sampling.evaluation import evaluate_agent


class ThreeLives(gym.Env[np.ndarray, int]):
    """Reward 1 a step; every fifth step costs a life, and the third one the game. Stepped after its end, it complains.

    obs = [step of the game, lives].
    """

    def __init__(self, lives: int = 3, each: int = 5, tells: bool = True) -> None:
        self.observation_space = spaces.Box(0.0, 100.0, (2,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self.first, self.each, self.tells = lives, each, tells
        self.t = self.lives = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.lives = 0, self.first
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.lives > 0, "step after done"
        self.t += 1
        self.lives -= self.t % self.each == 0
        return self._obs(), 1.0, self.lives == 0, False, self._info()

    def _obs(self) -> np.ndarray:
        return np.array([self.t, self.lives], np.float32)

    def _info(self) -> dict[str, Any]:
        return {"lives": self.lives} if self.tells else {}


class UsersOwn(gym.Wrapper[Any, Any, Any, Any]):
    """As such wrappers are written: terminated at a lost life; reset is a true one only after a true end, else a step
    without an action. With `careful`, that step's own end is looked at.
    """

    def __init__(self, env: gym.Env[Any, Any], careful: bool = True) -> None:
        super().__init__(env)
        self.careful, self.over, self.left = careful, True, 0

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.over = terminated or truncated
        lives = self.unwrapped.lives  # type: ignore[attr-defined]
        lost, self.left = 0 < lives < self.left, lives
        return obs, reward, terminated or lost, truncated, info

    def reset(self, **options: Any) -> Any:
        if self.over:
            obs, info = self.env.reset(**options)
        else:
            obs, _, terminated, truncated, info = self.env.step(0)
            if self.careful and (terminated or truncated):
                obs, info = self.env.reset(**options)
        self.over, self.left = False, self.unwrapped.lives  # type: ignore[attr-defined]
        return obs, info


def scored(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """A game whose score is kept inside of a wrapper that ends episodes at a lost life."""
    return UsersOwn(gym.wrappers.RecordEpisodeStatistics(env))


class Look:
    """Keeps rows, and returns and lengths of the episodes that are reported."""

    def __init__(self) -> None:
        self.parts: list[Batch] = []
        self.returns: list[float] = []
        self.lengths: list[int] = []

    def on_batch_collected(self, trainer: Trainer, event: Any) -> None:
        kept = event.rollout.clone().rows
        self.parts.append(kept.select("obs", "terminated", "truncated", "is_first"))

    @property
    def rows(self) -> Batch:
        return Batch.cat(self.parts)

    def on_episode_end(self, trainer: Trainer, event: Any) -> None:
        self.returns.append(event.episode_return)
        self.lengths.append(event.length)


def run(env: Any, steps: int, learner: dict[str, Any] | None = None) -> tuple[Look, Agent]:
    look = Look()
    agent = Agent.assemble(env, learner or {"type": "ppo", "n_steps": 8}, policy={"hidden_sizes": [8]})
    trainer = Trainer(agent, env, callbacks=[look])
    trainer.fit(steps)
    trainer.close()
    assert trainer.counters.episodes == len(look.returns)
    return look, agent


DQN = {"type": "dqn", "learning_starts": 10, "batch_size": 8, "n_step": 3, "gamma": 0.9}


@pytest.mark.parametrize("learner", ["ppo", "dqn"])
@pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])
def test_b61_returns_are_those_of_whole_games(vectorization: str, learner: str) -> None:
    """Case B61 by our wrapper: no step is added, so nothing is missing."""
    env = make_env(ThreeLives, 2, vectorization=vectorization, wrappers=["episodic_life"])
    section = DQN if learner == "dqn" else {"type": "ppo", "n_steps": 8}
    look, agent = run(env, 96, section)
    assert look.returns == [15.0] * 6 and look.lengths == [15] * 6
    rows = look.rows
    t = rows.obs[..., 0]
    assert rows.terminated.equal(t % 5 == 4), "learning ends where a life is lost"
    assert rows.is_first[1:].equal(rows.terminated[:-1])
    if learner == "dqn":
        batch = agent.buffer.sample(None, 300)
        left = 5 - batch.obs[:, 0] % 5
        assert (batch.n <= left).all() and batch.terminated.equal(batch.n == left)
        assert batch.next_obs[:, 0].equal(batch.obs[:, 0] + batch.n), (
            "the observation after the loss, in both"
        )


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("how", ["ours", "user's"])
def test_b61_in_a_vector_environment_of_the_user(how: str, mode: AutoresetMode) -> None:
    """Case B61 in every autoreset mode."""
    make = ThreeLives if how == "ours" else lambda: scored(ThreeLives())
    env = make_env(
        SyncVectorEnv([make] * 2, autoreset_mode=mode), wrappers=["episodic_life"] if how == "ours" else []
    )
    look, _ = run(env, 192)
    assert len(look.returns) > 6 and set(look.returns) == {15.0}
    assert evaluate_agent(Agent.assemble(env), env, 4).returns == (15.0,) * 4


@pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])
def test_b61_the_score_that_is_kept_inside_is_the_one_reported(vectorization: str) -> None:
    """Case B61 by a user's wrapper around gymnasium's statistics: also rewards of steps within reset count."""
    env = make_env(lambda: scored(ThreeLives()), 2, vectorization=vectorization)
    look, agent = run(env, 96)
    assert len(look.returns) == 6 and set(look.returns) == {15.0}
    again = make_env(lambda: scored(ThreeLives()), 2, vectorization=vectorization)
    assert evaluate_agent(agent, again, 5).returns == (15.0,) * 5
    again.close()


def test_b61_evaluation_of_a_whole_run_plays_whole_games(tmp_path: Path) -> None:
    """Case B61 from a config, with clipped rewards and a stack that begins anew with every life."""
    config = {
        "environment": {
            "id": "tests.cases.test_life_loss:ThreeLives",
            "wrappers": [
                "EpisodicLifeEnv",
                {"type": "scale_reward", "scale": 0.1},
                {"type": "frame_stack", "n_frames": 2},
            ],
        },
        "learner": {"type": "dqn", "learning_starts": 10, "batch_size": 8},
        "agent": {"buffer": {"capacity": 100}, "policy": {"hidden_sizes": [8]}},
        "training": {"total_timesteps": 60, "n_eval_episodes": 3},
    }
    result = uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    assert result.eval is not None and result.eval.returns == (15.0,) * 3 and result.eval.lengths == (15,) * 3


def test_b61_episodes_of_a_wrapper_that_keeps_the_score_outside_are_its_own() -> None:
    """Case B61 the other way round: who counts lives gets lives."""
    look, _ = run(make_env(lambda: gym.wrappers.RecordEpisodeStatistics(UsersOwn(ThreeLives()))), 60)
    assert set(look.returns) == {5.0, 4.0}, "a step of the later lives is lost in reset"


def test_lives_go_on_after_a_resume() -> None:
    env, other = (make_env(ThreeLives, 2, wrappers=["episodic_life"]) for _ in range(2))
    env.reset(seed=0)
    for _ in range(4):
        env.step(np.zeros(2, np.int64))
    state = env.state_dict()
    assert state is not None
    other.load_state_dict(state)
    for each in (env, other):
        step = each.step(np.zeros(2, np.int64))
        assert step.terminated.all() and step.is_first.all() and step.info["episode_goes_on"].all()


def test_without_lives_the_wrapper_says_so() -> None:
    env = make_env(lambda: ThreeLives(tells=False), wrappers=["episodic_life"])
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"gives no number as info\['lives'\]"):
        env.step(np.zeros(1, np.int64))
    with pytest.raises(ConfigError, match="tensor simulator"):
        make_env(TensorCounter(2, [3, 3], "termination", "info"), wrappers=["episodic_life"])


@pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])
@pytest.mark.parametrize("limit", [6, 7, 11])
def test_b68_a_time_limit_on_the_step_inside_of_reset(limit: int, vectorization: str) -> None:
    """Case B68: a game of 15 steps whose limit falls on the step without an action (6, 11), or beside it (7)."""

    def make() -> gym.Env[Any, Any]:
        limited = gym.wrappers.TimeLimit(ThreeLives(), limit)
        return UsersOwn(gym.wrappers.RecordEpisodeStatistics(limited))

    look, agent = run(make_env(make, 2, vectorization=vectorization), 96)
    assert len(look.returns) > 6 and set(look.returns) == {float(limit)}
    assert look.rows.obs[..., 0].max() < limit
    again = make_env(make, 2, vectorization=vectorization)
    assert evaluate_agent(agent, again, 3, max_episode_steps=50).returns == (float(limit),) * 3
    again.close()


@pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])
@pytest.mark.parametrize("limit", [1, 6, 11])
def test_b68_with_a_wrapper_that_does_not_look(limit: int, vectorization: str) -> None:
    """Case B68, careless: the inner limit says again that it is over, so one short episode follows, and no error."""

    def make() -> gym.Env[Any, Any]:
        return UsersOwn(gym.wrappers.TimeLimit(ThreeLives(), limit), careful=False)

    look, _ = run(make_env(make, 2, vectorization=vectorization), 96)
    assert len(look.returns) > 10


@pytest.mark.parametrize("limit", [1, 5, 6])
def test_b68_our_wrapper_around_a_time_limit(limit: int) -> None:
    """Case B68: nothing is stepped inside of reset, whatever ends when a life is lost."""
    env = make_env(ThreeLives, 2, max_episode_steps=limit, wrappers=["episodic_life"])
    look, _ = run(env, 96)
    assert set(look.returns) == {float(limit)}
    rows = look.rows
    assert (rows.terminated | rows.truncated).equal((rows.obs[..., 0] + 1) % limit % 5 == 0)


def test_b68_no_op_steps_at_the_start_of_every_episode() -> None:
    """Case B68: some steps without an action after a true reset, and the limit falls on one of them."""

    class NoOps(gym.Wrapper[Any, Any, Any, Any]):
        def reset(self, **options: Any) -> Any:
            obs, info = self.env.reset(**options)
            for _ in range(3):
                obs, _, terminated, truncated, info = self.env.step(0)
                if terminated or truncated:
                    obs, info = self.env.reset(**options)
            return obs, info

    for vectorization in ("serial", "sync"):
        env = make_env(
            lambda: NoOps(gym.wrappers.TimeLimit(CounterEnv(9), 2)), 2, vectorization=vectorization
        )
        look, _ = run(env, 48)
        assert set(look.lengths) == {1}
