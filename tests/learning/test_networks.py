"""Networks of every kind learn: the user's own with one trunk, one with memory, convolutional ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from torch import nn

from tests.fakes.envs import ContinuousTargetEnv, EchoEnv
from tests.learning import tasks
from tests.learning.tiny import LEARNERS, learn, score

each_learner = pytest.mark.parametrize("learner", LEARNERS)
TRUNK = "examples.shared_trunk:SharedTrunk"
GRU = "tests.learning.networks:Gru"
# Long sequences of memory and images cost more a step, so PPO gets fewer passes over them.
MEMORY: dict[str, dict[str, Any]] = {
    "ppo": {"n_epochs": 4, "batch_size": 256, "sequence_length": 8, "learning_rate": 1e-2},
    "a2c": {},
    "impala": {},
    "appo": {"n_epochs": 4, "batch_size": 256, "sequence_length": 8},
    "trpo": {"sequence_length": 8},
}
IMAGES: dict[str, dict[str, Any]] = {
    "ppo": {"n_epochs": 2, "learning_rate": 1e-3},
    "a2c": {"learning_rate": 3e-4},
    "impala": {"learning_rate": 3e-4},
    "appo": {"n_epochs": 2, "learning_rate": 1e-3},
    "trpo": {"n_epochs": 2, "learning_rate": 1e-3},
}


each_with_a_trunk = pytest.mark.parametrize("learner", [name for name in LEARNERS if name != "trpo"])
"""A natural step moves the policy alone, so its value needs parameters of its own."""


@each_with_a_trunk
def test_one_trunk_on_a_box(learner: str):
    spec = partial(ContinuousTargetEnv, target=0.5, bound=1.0)
    rate = {"ppo": 3e-3, "a2c": 7e-3, "impala": 7e-3, "appo": 7e-3}[learner]
    agent = learn(spec, learner, 8192, policy={"network": TRUNK, "width": 32}, learning_rate=rate)
    assert score(agent, spec, 1).return_mean > -0.3
    assert optimised_once(agent)


@each_with_a_trunk
def test_one_trunk_on_discrete(learner: str):
    spec = partial(EchoEnv, length=1)
    agent = learn(spec, learner, 4096, policy={"network": TRUNK, "width": 32, "scale": 5.0})
    assert score(agent, spec).return_mean == 1.0
    assert optimised_once(agent)


def optimised_once(agent: Any) -> bool:
    """Whether the trunk's parameters are in the optimiser exactly once."""
    [trunk] = [m for m in agent.model.modules() if type(m).__name__ == "SharedTrunk"]
    assert isinstance(trunk, nn.Module)
    held = [id(p) for p in agent.learner.optimizer.parameters]
    return all(held.count(id(p)) == 1 for p in trunk.parameters())


@each_learner
def test_memory_solves_what_none_can_without(learner: str):
    agent = learn(tasks.CueMemory, learner, 8192, policy={"network": GRU}, **MEMORY[learner])
    assert score(agent, tasks.CueMemory).return_mean == 1.0
    blind = learn(tasks.CueMemory, learner, 4096)
    assert score(blind, tasks.CueMemory, 100).return_mean < 0.65


@each_learner
@pytest.mark.parametrize(
    ("side", "policy"),
    [
        (36, {"network": "nature_cnn"}),
        (12, {"network": "impala_cnn", "layout": "hwc"}),
        (10, {"layout": "hwc"}),
    ],
    ids=["nature_cnn", "impala_cnn", "minatar_cnn"],
)
def test_images(learner: str, side: int, policy: dict[str, Any]):
    spec = partial(tasks.BrightSide, side)
    agent = learn(spec, learner, 2048, policy=policy, **IMAGES[learner])
    assert score(agent, spec).return_mean == 1.0
