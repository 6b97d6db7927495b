"""Behaviour to learn from: what an untrained policy does in an environment, in the buffer of another agent."""

from __future__ import annotations

from typing import Any

from uniarena import Agent, make_env
from uniarena.batch import Rollout
from uniarena.sampling import LocalSampler


def behaviour(spec: Any, rows: int, columns: int = 8, seed: int = 0) -> Rollout:
    """`[rows, columns]` of a policy whose actions are all but uniform, or wide Gaussians."""
    env = make_env(spec, columns)
    agent = Agent.assemble(env, {"type": "ppo"}, seed=seed)
    sampler = LocalSampler(env, agent.streams)
    sampler.publish(agent.actor, 0)
    found = sampler.collect(rows * columns).clone()
    env.close()
    return found


def given(spec: Any, learner: dict[str, Any], rollout: Rollout, **parts: Any) -> Agent:
    """An agent whose buffer holds this data."""
    env = make_env(spec, rollout.B)
    policy = parts.pop("policy", {"hidden_sizes": [32]})
    buffer = {"capacity": rollout.T * rollout.B, **parts.pop("buffer", {})}
    agent = Agent.assemble(env, learner, policy=policy, parts={"buffer": buffer, **parts})
    agent.buffer.add(rollout)
    env.close()
    return agent
