"""Masks from info, through worker processes, reach whoever picks an action; a forbidden one raises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.fakes.envs import MaskInfoEnv
from uniarena.agent import Agent
from uniarena.envs import Env, make_env
from uniarena.sampling import LocalSampler
from uniarena.sampling.evaluation import evaluate_agent
from uniarena.trainer import Trainer

PPO = {"type": "ppo", "n_steps": 20, "batch_size": 16, "n_epochs": 2}


@pytest.fixture(params=["async", "sync", "serial"])
def env(request: pytest.FixtureRequest) -> Iterator[Env]:
    made = make_env(MaskInfoEnv, 2, kwargs={"length": [4, 7]}, vectorization=request.param)
    yield made
    made.close()


def test_sampling_takes_allowed_actions_only(env: Env) -> None:
    agent = Agent.assemble(env, PPO)
    sampler = LocalSampler(env, agent.streams, agent.learner.records)
    sampler.publish(agent.actor, 0)
    rows = sampler.collect(40).rows
    allowed = rows.obs["action_mask"].gather(-1, rows.action[..., None])
    assert allowed.bool().all() and torch.equal(rows.action, rows.obs["obs"][..., 0].long() % 3)
    assert torch.allclose(rows.log_prob, torch.zeros(20, 2)), "the only allowed action has probability 1"


def test_training_and_evaluation_take_allowed_actions_only(env: Env) -> None:
    agent = Agent.assemble(env, PPO)
    trainer = Trainer(agent, env)
    trainer.fit(80)
    assert trainer.counters.episodes > 0
    other = make_env(MaskInfoEnv, 2, kwargs={"length": [4, 7]}, vectorization="async")
    for deterministic in (True, False):
        assert evaluate_agent(agent, other, 4, deterministic=deterministic).return_mean == 5.5
    other.close()
    assert agent.act([1.0], action_mask=[0, 1, 0]) == 1 and agent.act([1.0], action_mask=[0, 0, 1]) == 2
