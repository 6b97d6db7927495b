"""Every learner from replay learns a tiny task for each kind of action, within seconds and from a fixed seed."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.fakes.envs import ChainEnv, ContinuousTargetEnv, EchoEnv
from tests.learning import tasks
from tests.learning.tiny import OFF_POLICY, learn, score
from uniarena.registry import BUILT_IN

DISCRETE = ["dqn", "c51", "qr_dqn", "iqn", "rainbow", "sac"]
CONTINUOUS = ["ddpg", "td3", "sac", "tqc", "redq", "droq"]
CALM = {"sac": {"learning_rate": 3e-3, "alpha_init": 0.1}}  # where actions are discrete


def test_every_off_policy_learner_is_tried():
    known = {name for name, path in BUILT_IN["learner"].items() if ".off_policy." in path}
    assert known == OFF_POLICY.keys() == {*DISCRETE, *CONTINUOUS}


@pytest.mark.parametrize("learner", DISCRETE)
def test_echo(learner: str):  # with start=-1 on both sides; foreign actions raise
    spec = partial(EchoEnv, start=-1, length=1)
    agent = learn(spec, learner, 1600, **CALM.get(learner, {}))
    assert score(agent, spec).returns == (1.0,) * 20
    assert [agent.act(symbol) for symbol in (-1, 0, 1)] == [-1, 0, 1]


@pytest.mark.parametrize("learner", DISCRETE)
def test_five_step_chain(learner: str):
    agent = learn(ChainEnv, learner, 2400, **CALM.get(learner, {}))
    result = score(agent, ChainEnv)
    assert result.return_mean == 1.0 and result.length_mean == 4.0


@pytest.mark.parametrize("learner", CONTINUOUS)
def test_one_step_continuous_target(learner: str):
    spec = partial(ContinuousTargetEnv, bound=5.0)
    agent = learn(spec, learner, 3000)
    assert score(agent, spec, 1).return_mean > -0.8  # a random one earns -7
    assert agent.act(np.ones(1, np.float32)) == pytest.approx([3.0, 3.0], abs=0.5)


@pytest.mark.parametrize(
    ("learner", "place"),
    [("dqn", "info"), ("dqn", "obs"), ("iqn", "info"), ("c51", "obs"), ("sac", "info"), ("sac", "obs")],
)
def test_masks_keep_to_the_best_legal_move(learner: str, place: str):
    """An illegal move raises: in the random warm-up, while exploring, and in evaluation."""
    spec = partial(tasks.LegalMoves, place)
    agent = learn(spec, learner, 1600, **CALM.get(learner, {}))
    assert score(agent, spec, 40).return_mean == 1.0
    board, mask = np.ones(1, np.float32), np.array([1, 1, 0, 0], np.int8)
    if place == "info":
        assert agent.act(board, action_mask=mask) == 11
    else:
        assert agent.act({"board": board, "action_mask": mask}) == 11
