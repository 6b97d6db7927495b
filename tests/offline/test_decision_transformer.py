"""The decision transformer: it does what earns the return that it is asked for."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.fakes.envs import EchoEnv
from tests.learning.tiny import score
from tests.off_policy import chain
from tests.offline.recorded import behaviour, given
from tests.offline.tasks import GOOD, MEMORY, acted, make, sequences
from uniarena.config import ConfigError
from uniarena.policies.decision import told

ECHO = partial(EchoEnv, start=-1, length=3)


@pytest.fixture(scope="module")
def echo() -> Any:
    """An agent that learned from random answers, of which a third is right."""
    learner = {"type": "decision_transformer", "learning_rate": 1e-2, "batch_size": 64}
    agent = given(
        ECHO,
        learner,
        behaviour(ECHO, 300),
        memory=MEMORY,
        buffer={"type": "sequence", "length": 3, "burn_in": 0},
    )
    for _ in range(250):
        metrics = agent.update().metrics
    return agent, metrics


def test_it_earns_what_it_is_asked_for(echo: Any) -> None:
    agent, metrics = echo
    assert float(metrics["target_return"]) == 3.0, "the largest in the data"
    assert score(agent, ECHO).return_mean == 3.0, "the data earns 1"
    agent.model.policy.network._wanted = 0.0
    try:
        assert score(agent, ECHO).return_mean < 0.5
    finally:
        agent.model.policy.network._wanted = None


def test_what_was_earned_is_no_longer_asked_for(echo: Any) -> None:
    agent, _ = echo
    state, first = None, True
    for reward in (1.0, 0.0):
        _, state = agent.act(np.int64(0), state=state or agent.actor.initial_state(1), is_first=first)
        state, first = told(state, [reward]), False
    _, state = agent.act(np.int64(0), state=state, is_first=False)
    assert state["return_to_go"].tolist() == [2.0]
    _, state = agent.act(np.int64(0), state=told(state, [1.0]), is_first=True)
    assert state["return_to_go"].tolist() == [3.0], "another episode"
    assert told({"h": 1}, [1.0]) == {"h": 1} and told(None, [1.0]) is None


def test_acting_row_by_row_is_what_sequences_say(echo: Any) -> None:
    """The same tokens through the memory at once and one by one."""
    agent, _ = echo
    network = agent.model.policy.network
    obs, reward = torch.tensor([0, 2, 1]), torch.tensor([1.0, 0.0, 1.0])
    state, rows, codes = network.initial_state(1), [], [torch.zeros(1, 3)]
    with torch.no_grad():
        for t in range(3):
            params, state = network.params(obs[t : t + 1], state, torch.tensor([t == 0]))
            rows.append(params)
            code = network.code(torch.tensor([t]))
            codes.append(code)
            state = told({**state, "action": code}, reward[t : t + 1])
        rest = 3.0 - torch.tensor([0.0, 1.0, 1.0])
        first = torch.tensor([[True], [False], [False]])
        whole = network.sequence(obs[:, None], rest[:, None], torch.stack(codes[:3]), first)
    torch.testing.assert_close(torch.stack(rows), whole, atol=1e-5, rtol=1e-4)


def test_continuous_actions() -> None:
    learner = make("decision_transformer", learning_rate=3e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        learner.update(sequences(128, generator))
    assert (acted(learner) - GOOD).abs().mean() < 0.25, "cloning is 0.5 away"


def test_padding_is_not_learned_from() -> None:
    learners = [make("decision_transformer", learning_rate=1e-2) for _ in range(2)]
    batch = sequences(16, torch.Generator().manual_seed(0))
    weight = (torch.arange(16) < 8).float()[None]
    spoilt = batch.replace(
        return_to_go=torch.where(weight > 0, batch.return_to_go, 1e6), action=batch.action * weight[..., None]
    )
    for learner, rows in zip(learners, (batch, spoilt), strict=True):
        learner.update(rows.replace(weight=weight))
    pairs = zip(*(learner.model.parameters() for learner in learners), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match="Box and Discrete"):
        make("decision_transformer", chain.SPACE, spaces.MultiDiscrete([2, 3]))
    with pytest.raises(ConfigError, match="finite bounds"):
        make("decision_transformer", chain.SPACE, spaces.Box(-np.inf, np.inf, (2,)))
    with pytest.raises(KeyError, match="return_to_go"):
        make("decision_transformer").update(sequences(4, torch.Generator()).without("return_to_go"))
