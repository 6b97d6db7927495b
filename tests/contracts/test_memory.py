"""A policy with memory: what it remembers in the update is what it remembered when it acted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.contracts.doors import Cue, first_rows
from uniarena.agent import Agent
from uniarena.envs import make_env
from uniarena.sampling import LocalSampler
from uniarena.trainer import Trainer

TOY = {"policy": {"network": "tests.fakes.models:RecurrentToy"}}
SMALL = {"hidden_sizes": [8]}
SHARED = {"policy": {**SMALL, "share_encoder": True}}
NETWORKS: dict[str, dict[str, Any]] = {
    "own module": TOY,
    "lstm": {**SHARED, "memory": {"type": "lstm", "hidden_size": 8}},
    "lstm, two layers, two memories": {
        "policy": SMALL,
        "memory": {"type": "lstm", "hidden_size": 8, "num_layers": 2},
    },
    "gru": {"policy": SMALL, "memory": {"type": "gru", "hidden_size": 8}},
    "transformer": {
        "policy": SMALL,
        "memory": {"type": "gtrxl", "hidden_size": 8, "num_heads": 2, "window": 5},
    },
    "key-value": {
        "policy": SMALL,
        "memory": {"type": "key_value", "hidden_size": 8, "num_heads": 2, "slots": 4},
    },
}
FORMS = {
    "serial": lambda: make_env(Cue, 3),
    "next_step": lambda: make_env(SyncVectorEnv([Cue] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)),
    "async": lambda: make_env(Cue, 3, vectorization="async"),
}


def assembled(env: Any, length: int, network: dict[str, Any] = TOY) -> Agent:
    fields = {"type": "ppo", "sequence_length": length, "batch_size": 32, "n_epochs": 1, "n_steps": 64}
    parts = {name: part for name, part in network.items() if name == "memory"}
    return Agent.assemble(env, fields, policy=network["policy"], parts=parts)


CASES = [(form, length, "own module") for form in ("serial", "next_step") for length in (16, 7, 64, 1)]
CASES += [("next_step", 7, name) for name in NETWORKS if name != "own module"] + [("async", 16, "lstm")]


@pytest.mark.parametrize(("form", "length", "network"), CASES)
def test_log_probs_of_update_and_collection_agree_before_any_step(
    form: str, length: int, network: str
) -> None:  # case B71
    env = FORMS[form]()
    agent = assembled(env, length, NETWORKS[network])
    sampler = LocalSampler(env, agent.streams, agent.learner.records)
    sampler.publish(agent.actor, 0)
    compared = 0
    for _ in range(2):  # the second chunk begins in the middle of episodes
        rollout = sampler.collect(64 * sampler.columns)
        rows, _ = agent.learner.targets(agent.observe(rollout))
        agent.buffer.sample()
        states = agent.learner.minibatches.states_before(agent.model, rollout)
        for batch in agent.learner.minibatches(rows, states):
            with torch.no_grad():
                out = agent.model(batch.obs, first_rows(batch.state), batch.is_first)
            gap = (out.dist.log_prob(batch.action) - batch.log_prob).abs()[batch.valid]
            assert float(gap.max()) < 1e-5
            compared += gap.numel()
    assert compared >= 2 * (150 if form == "next_step" else 64 * 3)
    env.close()


def test_the_state_does_not_pass_from_an_episode_to_the_next() -> None:
    env = make_env(Cue, 3)
    agent = assembled(env, 16)
    sampler = LocalSampler(env, agent.streams, ("log_prob", "state"))
    sampler.publish(agent.actor, 0)
    rollout = sampler.collect(64 * 3)
    assert rollout.rows.state["h"].shape == (64, 3, 8)
    rows, first = rollout.rows, rollout.rows.is_first
    for chosen, state in (
        (first, agent.model.initial_state(int(first.sum()))),
        (~first, {"h": rows.state["h"][~first]}),
    ):
        out = agent.model(rows.obs[chosen], state, first[chosen])
        assert torch.allclose(out.dist.log_prob(rows.action[chosen]), rows.log_prob[chosen], atol=1e-6)
    final = rollout.ended
    assert final is not None and final.state["h"].shape == (len(final), 8)


@torch.no_grad()
def test_the_value_of_a_cut_episode_is_that_of_the_state_before_the_reset() -> None:
    """Bootstrapping with the state that the reset brought would value another history."""
    env = make_env(Cue, 1, max_episode_steps=4)
    agent = assembled(env, 16)
    sampler = LocalSampler(env, agent.streams, agent.learner.records)
    sampler.publish(agent.actor, 0)
    rollout = sampler.collect(8)
    ends = rollout.ended
    assert ends is not None and ends.t.tolist() == [3, 7] and rollout.rows.truncated[[3, 7], 0].all()
    state = agent.model.initial_state(1)
    for t in range(4):
        state = agent.model(rollout.rows.obs[t], state, torch.tensor([t == 0])).state
    assert torch.allclose(ends.state["h"][0], state["h"][0], atol=1e-6)
    target, _ = agent.learner.targets(agent.observe(rollout))
    agent.buffer.sample()
    value = agent.model.value(ends.obs[:1], state, torch.tensor([False]))
    gamma, lam = agent.learner.cfg.gamma, agent.learner.cfg.gae_lambda
    assert lam < 1
    assert target.target[3, 0].item() == pytest.approx(
        float(rollout.rows.reward[3, 0] + gamma * value), abs=1e-5
    )


def test_a_policy_with_memory_trains() -> None:
    env = make_env(Cue, 4)
    agent = assembled(env, 16)
    before = [p.detach().clone() for p in agent.model.parameters()]
    trainer = Trainer(agent, env)
    trainer.fit(64 * 4 * 2)
    assert trainer.counters.updates == 2
    assert any(not torch.equal(a, b) for a, b in zip(before, agent.model.parameters(), strict=True))
