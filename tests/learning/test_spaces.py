"""Every learner learns a tiny task for each kind of space, within seconds and from a fixed seed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fakes.envs import ChainEnv, ContinuousTargetEnv, EchoEnv, Float64PendulumEnv
from tests.learning import tasks
from tests.learning.tiny import LEARNERS, SETTINGS, learn, score
from uniarena import Agent

each_learner = pytest.mark.parametrize("learner", LEARNERS)


def test_every_on_policy_learner_is_tried():
    assert sorted(SETTINGS) == LEARNERS


@each_learner
def test_echo(learner: str):  # case B13: Discrete with start=-1 on both sides; foreign actions raise
    spec = partial(EchoEnv, start=-1, length=1)
    agent = learn(spec, learner, 4096)
    assert score(agent, spec).returns == (1.0,) * 20
    assert [agent.act(symbol) for symbol in (-1, 0, 1)] == [-1, 0, 1]


@each_learner
def test_five_step_chain(learner: str):
    agent = learn(ChainEnv, learner, 4096)
    result = score(agent, ChainEnv)
    assert result.return_mean == 1.0 and result.length_mean == 4.0


@each_learner
@pytest.mark.parametrize("bound", [5.0, np.inf])
def test_one_step_continuous_target(learner: str, bound: float):  # case B15
    spec = partial(ContinuousTargetEnv, bound=bound)
    agent = learn(spec, learner, 8192)
    assert score(agent, spec, 1).return_mean > -0.5
    assert agent.act(np.ones(1, np.float32)) == pytest.approx([3.0, 3.0], abs=0.3)


@each_learner
def test_several_numbers_with_starts(learner: str):
    agent = learn(tasks.EchoNumbers, learner, 4096)
    assert score(agent, tasks.EchoNumbers).return_mean == 1.0
    assert agent.act(np.array([2, -3])).tolist() == [2, -3]


@each_learner
def test_bits(learner: str):
    agent = learn(tasks.EchoBits, learner, 4096)
    assert score(agent, tasks.EchoBits).return_mean == 1.0


@each_learner
@pytest.mark.parametrize("place", ["info", "obs"])
def test_masks_keep_to_the_best_legal_move(learner: str, place: str):
    spec = partial(tasks.LegalMoves, place)  # an illegal move raises, in training too
    agent = learn(spec, learner, 2048)
    assert score(agent, spec, 40).return_mean == 1.0
    assert score(agent, spec, 40, deterministic=False).return_mean > 0.8
    board, mask = np.ones(1, np.float32), np.array([1, 1, 0, 0], np.int8)
    if place == "info":
        assert agent.act(board, action_mask=mask) == 11
    else:
        assert agent.act({"board": board, "action_mask": mask}) == 11


@each_learner
def test_dict_observation_and_hybrid_action(learner: str):
    agent = learn(tasks.Cockpit, learner, 8192)
    assert score(agent, tasks.Cockpit).return_mean > 0.8
    action = agent.act({"wanted": 0, "dials": (np.array([0.5]), np.zeros(1, np.int8))})
    assert agent.action_map.env_space.contains(action)
    assert action["gear"] == 2 and action["push"][1].tolist() == [0, 0]


@each_learner
def test_float64_pendulum(learner: str):  # case B17: the environment asserts dtype and membership
    agent = learn(Float64PendulumEnv, learner, 1024, wrappers=("normalize_observation",))
    assert {p.dtype for p in agent.model.parameters()} == {torch.float32}
    action = agent.act(np.array([1.0, 0.0, 0.5]))
    space = agent.action_map.env_space
    assert action.dtype == np.float64 and space.contains(action)
    assert score(agent, Float64PendulumEnv, 4, wrappers=("normalize_observation",)).length_mean == 200


@each_learner
def test_nested_observation_with_normalisation_and_its_file(learner: str, tmp_path: Path):  # case B20
    wrappers = ("normalize_observation",)
    rates = {
        "ppo": {"learning_rate": 1e-3, "n_epochs": 4},
        "a2c": {"learning_rate": 3e-4},
        "impala": {"learning_rate": 3e-4},
        "appo": {"learning_rate": 1e-3, "n_epochs": 4},
        "trpo": {"learning_rate": 1e-3},
    }
    settings = rates[learner]
    agent = learn(tasks.NestedTask, learner, 3072, wrappers=wrappers, **settings)
    assert score(agent, tasks.NestedTask, wrappers=wrappers).return_mean > 0.75  # chance: 0.25
    moments = agent.normalizer.moments  # of `sensors.pos` alone: neither pixels nor symbols are touched
    assert moments.mean.numpy() == pytest.approx([500.0] * 3, rel=0.05)
    assert moments.variance().sqrt().numpy() == pytest.approx([100.0] * 3, rel=0.1)

    loaded = Agent.load(agent.save(tmp_path / "agent"))
    assert list(loaded.observation_space.spaces) == list(agent.observation_space.spaces)
    env = tasks.NestedTask()
    obs = [env.reset(seed=seed)[0] for seed in range(8)]
    batch = {
        "sensors": {key: np.stack([o["sensors"][key] for o in obs]) for key in ("pos", "cam")},
        "task": np.array([o["task"] for o in obs]),
    }
    assert np.array_equal(loaded.act(batch), agent.act(batch))
    assert [int(loaded.act(o)) for o in obs] == loaded.act(batch).tolist()
