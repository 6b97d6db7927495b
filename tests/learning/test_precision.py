"""Every family of learners learns a tiny task in 16 bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from tests.fakes.envs import ContinuousTargetEnv, EchoEnv
from tests.learning.tiny import learn, score


def in_32_bits(agent: Any) -> bool:
    tensors = [*agent.model.parameters()]
    for optimizer in agent.learner.optimizers.values():
        for state in optimizer.torch.state.values():
            tensors += [x for x in state.values() if isinstance(x, torch.Tensor)]
    return all(x.dtype is torch.float32 for x in tensors)


@pytest.mark.parametrize(
    ("learner", "precision"),
    [(name, "bf16") for name in ("ppo", "a2c", "trpo", "dqn", "c51", "iqn")]
    + [(name, "fp16") for name in ("ppo", "trpo", "dqn")],
)
def test_echo(learner: str, precision: str) -> None:
    spec = partial(EchoEnv, start=-1, length=1)
    agent = learn(spec, learner, 2048, precision=precision)
    assert score(agent, spec).returns == (1.0,) * 20 and in_32_bits(agent)


@pytest.mark.parametrize(
    ("learner", "precision"), [("sac", "bf16"), ("td3", "bf16"), ("sac", "fp16"), ("ppo", "bf16")]
)
def test_one_step_continuous_target(learner: str, precision: str) -> None:
    spec = partial(ContinuousTargetEnv, bound=5.0)
    agent = learn(spec, learner, 8192 if learner == "ppo" else 3000, precision=precision)
    assert score(agent, spec, 1).return_mean > -0.8 and in_32_bits(agent)  # a random one earns -7


@pytest.mark.parametrize("kind", ["lstm", "gru", "gtrxl"])
def test_policies_with_memory(kind: str) -> None:
    spec = partial(EchoEnv, start=-1, length=1)
    parts = {"memory": {"type": kind}}
    agent = learn(spec, "ppo", 1024, parts=parts, precision="bf16", n_epochs=4, batch_size=64)
    assert score(agent, spec).return_mean > 0.9 and in_32_bits(agent)
