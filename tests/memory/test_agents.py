"""Agents with memory: built from sections, acting, evaluated, saved, guarded, and what they are refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.contracts.doors import Cue
from tests.faults.broken import good, trainer_of, two
from tests.learning import tasks
from tests.learning.tiny import learn, score
from uniarena import Agent, make_env
from uniarena.batch import tree_leaves
from uniarena.config import ConfigError
from uniarena.export.onnx import ExportError, export_onnx
from uniarena.policies.memory_network import MemoryNetwork
from uniarena.sampling import LocalSampler

LSTM = {"type": "lstm", "hidden_size": 16}
SHARED = {"hidden_sizes": [8], "share_encoder": True}
FAST = {"n_steps": 48, "batch_size": 192, "learning_rate": 5e-3, "sequence_length": 12}


def agent(learner: Any = "ppo", spec: Any = Cue, **sections: Any) -> Agent:
    parts = {"memory": LSTM, **sections.pop("parts", {})}
    policy = sections.pop("policy", {"hidden_sizes": [8]})
    return Agent.assemble(make_env(spec, 2), learner, policy, parts=parts, **sections)


# -- learning ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("memory", "shared"),
    [
        (LSTM, True),
        (LSTM, False),
        ({**LSTM, "type": "gru"}, True),
        ({"type": "gtrxl", "hidden_size": 16, "num_layers": 1, "num_heads": 2, "window": 8}, True),
        ({"type": "key_value", "hidden_size": 16, "slots": 8}, True),
    ],
    ids=["lstm", "two lstms", "gru", "transformer", "key-value"],
)
def test_a_cue_is_remembered(memory: dict[str, Any], shared: bool) -> None:
    policy = {"hidden_sizes": [16], "share_encoder": shared}
    found = learn(Cue, "ppo", 7_680, policy=policy, parts={"memory": memory}, **FAST)
    assert score(found, Cue, 40).return_mean == 1.0


def test_without_memory_the_cue_is_lost() -> None:
    assert score(learn(Cue, "ppo", 7_680, **FAST), Cue, 100).return_mean < 0.7


def test_a2c_remembers() -> None:
    found = learn(tasks.CueMemory, "a2c", 8_192, parts={"memory": LSTM}, policy={"hidden_sizes": []})
    assert score(found, tasks.CueMemory).return_mean == 1.0


# -- building ------------------------------------------------------------------------------------------------------
def test_policy_and_value_remember_for_themselves_unless_told_otherwise() -> None:
    network = agent(policy={"share_encoder": True}).model.policy.network
    assert isinstance(network, MemoryNetwork) and network.gives_value and network.critic_trunk is None
    assert set(network.initial_state(1)) == {"h", "c"}
    apart = agent().model.policy.network
    assert apart.critic_trunk is not None and set(apart.initial_state(1)) == {"policy", "value"}
    with pytest.raises(ConfigError, match="one encoder cannot be shared"):
        agent(policy={"share_encoder": True}, value={"orthogonal": False})


def test_images_and_gsde_go_with_memory() -> None:
    space = spaces.Box(0, 255, (36, 36, 1), np.uint8)

    class Screen(Cue):
        observation_space = space
        action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

        def _obs(self) -> np.ndarray:
            return np.full((36, 36, 1), 80 * self.cue, np.uint8)

    found = agent(spec=Screen, policy={"gsde": True, "hidden_sizes": [8]})
    out = found.model(
        torch.zeros(3, 2, 36, 36, 1, dtype=torch.uint8), None, torch.zeros(3, 2, dtype=torch.bool)
    )
    assert out.dist.sample().shape == (3, 2, 2) and out.value.shape == (3, 2)


@pytest.mark.parametrize(
    ("learner", "sections", "path"),
    [
        ("ppo", {"policy": {"network": "tests.fakes.models:RecurrentToy"}}, "agent.policy.network"),
        ("ppo", {"value": {"network": "tests.fakes.models:ValueOnly"}}, "agent.value.network"),
        ("ppo", {"parts": {"memory": {"type": "lstm", "cells": 3}}}, "agent.memory.cells"),
        ("sac", {}, "agent.memory"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(learner: str, sections: Any, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        agent(learner, **sections)
    assert caught.value.path == path


# -- acting --------------------------------------------------------------------------------------------------------
def test_act_gives_the_state_and_takes_it() -> None:
    found = agent(policy=SHARED)
    obs = np.array([1.0, 0.0], np.float32)
    action, state = found.act(obs)
    assert action in (0, 1) and state["h"].shape == (1, 1, 16)
    _, later = found.act(np.zeros((1, 2), np.float32), state=state)
    _, fresh = found.act(np.zeros((1, 2), np.float32), state=state, is_first=True)
    _, begun = found.act(np.zeros((1, 2), np.float32))
    assert torch.equal(fresh["h"], begun["h"]) and not torch.allclose(later["h"], begun["h"])


def test_a_saved_agent_acts_alike(tmp_path: Path) -> None:
    found = agent()
    again = Agent.load(found.save(tmp_path / "agent"))
    obs = np.array([1.0, 0.5], np.float32)
    (_, one), (_, other) = found.act(obs), again.act(obs)
    assert all(torch.equal(a, b) for a, b in zip(tree_leaves(one), tree_leaves(other), strict=True))


def test_a_copied_actor_keeps_its_version() -> None:
    found = agent()
    kept = copy.deepcopy(found.actor)
    obs, first = torch.ones(2, 2), torch.ones(2, dtype=torch.bool)
    before, _ = kept.policy.params(obs, kept.initial_state(2), first)
    with torch.no_grad():
        for parameter in found.model.parameters():
            parameter.add_(1.0)
    after, _ = kept.policy.params(obs, kept.initial_state(2), first)
    live, _ = found.actor.policy.params(obs, kept.initial_state(2), first)
    assert torch.equal(before, after) and not torch.allclose(live, after)


def test_onnx_export_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(ExportError, match="memory"):
        export_onnx(agent(), tmp_path / "policy.onnx")


def test_states_are_recorded_only_where_they_are_asked_for() -> None:
    found = agent(policy=SHARED)
    for records in (("log_prob",), ("log_prob", "state")):
        sampler = LocalSampler(make_env(Cue, 2), found.streams, records)
        sampler.publish(found.actor, 0)
        rollout = sampler.collect(20)
        assert ("state" in rollout.rows) == ("state" in records)
        assert rollout.start.state["h"].shape == rollout.last.state["h"].shape == (2, 1, 16)
        assert rollout.ended is not None and len(rollout.ended.state["c"]) == len(rollout.ended)


# -- faults --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", ["skip", "clip"])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_broken_observation_spoils_its_episode_and_nothing_else(kind: str, rule: str) -> None:
    """The state is not finite until the episode ends; then it is the initial one again."""
    parts = {"memory": {**LSTM, "type": kind}}
    trainer = trainer_of("ppo", two("ppo", where="obs", at=13), rule, parts=parts)
    trainer.fit(192)
    assert good(trainer.agent) and trainer.counters.updates > 0
    assert all(leaf.isfinite().all() for leaf in tree_leaves(trainer.sampler.collect(2).last.state))
