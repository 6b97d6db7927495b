"""What is evaluated is what was trained: same pipeline, frozen statistics, each applied once, modes named."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import uniarena
from tests.fakes.envs import ContinuousTargetEnv, EchoEnv, Float64PendulumEnv
from tests.learning.tiny import learn
from uniarena import Agent, Trainer, checkpoint, make_env
from uniarena.envs.wrappers.normalize import AlreadyNormalizedError
from uniarena.sampling.evaluation import evaluate_agent
from uniarena.trainer.callbacks import Evaluate

PIPELINE = [
    {"type": "frame_stack", "n_frames": 4},
    "normalize_observation",
    {"type": "clip_reward", "low": -0.1, "high": 0.1},
]


class Camera(gym.Env[dict[str, Any], int]):
    """An image, and a position far from 0; reward 2 a step, 5 steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "cam": spaces.Box(0, 255, (36, 36, 1), np.uint8),
                "pos": spaces.Box(-np.inf, np.inf, (2,), np.float32),
            }
        )
        self.action_space = spaces.Discrete(2)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict]:
        super().reset(seed=seed)
        self.t = 0
        return self._look(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict]:
        self.t += 1
        return self._look(), 2.0, self.t == 5, False, {}

    def _look(self) -> dict[str, Any]:
        cam = self.np_random.integers(0, 256, (36, 36, 1)).astype(np.uint8)
        return {"cam": cam, "pos": self.np_random.normal(300, 20, 2).astype(np.float32)}


def statistics(agent: Agent) -> list[Any]:
    assert agent.normalizer is not None
    return [tensor.clone() for tensor in agent.normalizer.state_dict().values()]


def same(before: list[Any], after: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_evaluator_takes_the_training_pipeline_by_itself(tmp_path: Path):  # case B56
    config = {
        "environment": {"id": "tests.cases.test_evaluation:Camera", "num_envs": 2, "wrappers": PIPELINE},
        "learner": {"type": "ppo", "n_steps": 8, "batch_size": 16, "n_epochs": 1},
        "training": {"total_timesteps": 32, "eval_every_env_steps": 16, "n_eval_episodes": 3, "threads": 1},
    }
    result = uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    assert result.eval is not None
    assert result.eval.returns == (10.0,) * 3  # raw: the clipped reward is what is learned from
    agent = Agent.load(result.run, trust=True)
    assert agent.observation_space["cam"].shape == (36, 36, 4)  # type: ignore[index]
    again = uniarena.evaluate(result.run, 3, trust=True)
    assert again.returns == (10.0,) * 3

    before = statistics(agent)
    with pytest.raises(
        ValueError, match=r"'cam': expected Box\(36×36×4\) uint8, got Box\(36×36×1\) uint8"
    ) as caught:
        evaluate_agent(agent, make_env(Camera, 2), 3)
    assert "uniarena.evaluate(run)" in str(caught.value)
    evaluate_agent(agent, make_env(Camera, 2, wrappers=PIPELINE), 3)
    evaluate_agent(agent, make_env(Camera, 2, wrappers=PIPELINE), 3, deterministic=False)
    agent.act({"cam": np.zeros((36, 36, 4), np.uint8), "pos": np.full(8, 1e9, np.float32)})
    assert same(before, statistics(agent))  # frozen


def test_a_trainer_refuses_an_environment_that_the_agent_was_not_made_for():  # case B56
    agent = learn(Float64PendulumEnv, "a2c", 64, n_steps=4)
    with pytest.raises(ValueError, match=r"observations of CartPole-v1 do not fit"):
        Trainer(agent, make_env("CartPole-v1"))
    with pytest.raises(ValueError, match=r"actions of .* do not fit"):
        Trainer(agent, make_env(partial(Pointless, spaces.Box(-1, 1, (3,)))))


def test_that_no_second_environment_can_be_made_is_said_before_training():  # case B56
    trainer = Trainer(Agent.assemble(env := make_env(gym.make("CartPole-v1"))), env, callbacks=[Evaluate()])
    with pytest.raises(ValueError, match="env_factory"):
        trainer.fit(64)
    assert trainer.counters.env_steps == 0
    trainer = Trainer(agent=trainer.agent, env=env)  # without evaluation, an object is as good as any
    trainer.fit(8)
    trainer.close()


class Pointless(ContinuousTargetEnv):
    """Observations like the pendulum's, actions of another width."""

    def __init__(self, observation_space: spaces.Space) -> None:
        super().__init__()
        self.observation_space = observation_space


def test_evaluation_during_training_moves_no_statistics():  # case B56
    """The same run with and without evaluations ends with the same statistics and parameters."""
    ends = []
    for callbacks in ([], [Evaluate(every_env_steps=64, n_episodes=2)]):
        env = make_env(Float64PendulumEnv, 2, wrappers=["normalize_observation"])
        agent = Agent.assemble(env, {"type": "ppo", "n_steps": 16, "batch_size": 32, "n_epochs": 1})
        trainer = Trainer(agent, env, callbacks=callbacks)
        trainer.fit(128)
        trainer.close()
        ends.append(list(agent.model.state_dict().values()))
    assert same(*ends)


def test_statistics_loaded_twice_count_once(tmp_path: Path):  # case B55
    agent = learn(Float64PendulumEnv, "a2c", 256, wrappers=("normalize_observation", "normalize_reward"))
    folder = agent.save(tmp_path / "agent")
    state, _ = checkpoint.load(folder)
    loaded = Agent.load(folder)
    for _ in range(2):
        loaded.load_state_dict(state["agent"])
    assert same(statistics(agent), statistics(loaded))
    obs = np.array([[1.0, 0.0, 8.0], [0.0, 1.0, -3.0]])
    assert np.array_equal(agent.act(obs), loaded.act(obs))


def test_an_environment_that_declares_normalisation_does_not_normalise_again():  # case B55
    """The agent holds the statistics; the wrapper beside a loaded agent is a word, not a second pass."""
    agent = learn(Float64PendulumEnv, "a2c", 256, wrappers=("normalize_observation",))
    plain, declared = (
        evaluate_agent(agent, make_env(Float64PendulumEnv, 2, wrappers=wrappers), 4, seed=3).returns
        for wrappers in ([], ["normalize_observation"])
    )
    assert plain == declared
    for twice in (
        ["normalize_observation"] * 2,
        [gym.wrappers.NormalizeObservation, "normalize_observation"],
    ):
        with pytest.raises(AlreadyNormalizedError, match="twice"):
            make_env(Float64PendulumEnv, 2, wrappers=twice)


class MatchingPennies(gym.Env[np.ndarray, int]):
    """1 for guessing the coin, −1 otherwise; the opponent shows the side that was guessed less often so far."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)
        self.played, self.t = [0, 0], 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.played, self.t = [0, 0], 0
        return np.ones(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        shown = int(self.played[0] >= self.played[1])
        self.played[action] += 1
        self.t += 1
        return np.ones(1, np.float32), (1.0 if action == shown else -1.0), self.t == 20, False, {}


def test_the_report_of_a_run_shows_both_modes_by_name(tmp_path: Path):  # case B58
    config = {
        "environment": {"id": MatchingPennies, "num_envs": 8},
        "learner": {"type": "ppo", "n_steps": 20, "batch_size": 160, "ent_coef": 0.1},
        "training": {"total_timesteps": 1600, "n_eval_episodes": 40},
    }
    result = uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    assert result.eval is not None and result.eval.mode == "deterministic"
    rows = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    fixed, sampled = rows[-1]["eval/return_mean"], rows[-1]["eval_stochastic/return_mean"]
    assert fixed == result.eval.return_mean == -18.0  # always the same side: seen through after one throw
    assert sampled > fixed + 5
    log = "".join(path.read_text() for path in result.run.glob("*.log"))
    assert "deterministic, 40 episodes" in log and "stochastic, 40 episodes" in log
    assert uniarena.evaluate(result.run, 8, deterministic=False, trust=True).mode == "stochastic"


def test_asking_for_the_stochastic_mode_makes_it_the_report(tmp_path: Path):  # case B58
    env = make_env(MatchingPennies, 4)
    agent = Agent.assemble(env, {"type": "ppo", "n_steps": 20})
    evaluate = Evaluate(n_episodes=8, deterministic=False)
    trainer = Trainer(agent, env, callbacks=[evaluate])
    trainer.fit(80)
    trainer.close()
    assert trainer.last_evaluation.mode == "stochastic"
    assert trainer.metrics["eval/return_mean"] == evaluate.results["stochastic"].return_mean
    assert trainer.metrics["eval_deterministic/return_mean"] == evaluate.results["deterministic"].return_mean


def test_sticky_actions_and_a_time_limit_are_part_of_the_pipeline():  # case B56
    """An evaluation of a perfect policy shows them: echoing late is wrong, and episodes end at the limit."""
    spec = partial(EchoEnv, length=50)
    agent = learn(partial(EchoEnv, length=8), "ppo", 4096)
    clean = evaluate_agent(agent, make_env(spec, 2), 4)
    assert clean.return_mean == 50
    wrappers = [
        {"type": "sticky_actions", "probability": 0.9},
        {"type": "time_limit", "max_episode_steps": 10},
    ]
    stuck = evaluate_agent(agent, make_env(spec, 2, wrappers=wrappers), 4)
    assert stuck.length_mean == 10 and stuck.return_mean < 9


def test_a_loaded_agent_explores_as_it_did_when_it_was_saved(tmp_path: Path):
    """Not as at the beginning of a run, where ε is 1 and warm-up actions are random."""
    env = make_env("CartPole-v1", 2)
    agent = Agent.assemble(
        env, {"type": "dqn", "learning_starts": 50}, parts={"explorer": {"type": "epsilon_greedy"}}
    )
    trainer = Trainer(agent, env)
    trainer.fit(400)
    trainer.close()
    loaded = Agent.load(agent.save(tmp_path / "agent"))
    assert loaded.explorer.epsilon == agent.explorer.epsilon == pytest.approx(0.05)
    assert not loaded.explorer.warming_up
