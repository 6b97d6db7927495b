"""The short way to an action gives the actions of the long one, and is left where there is more to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from uniarena.explorers.actor import Actor
from uniarena.explorers.epsilon_greedy import EpsilonGreedy, EpsilonGreedyConfig
from uniarena.explorers.sample import SampleExplorer, SampleExplorerConfig
from uniarena.learners.off_policy.dqn_config import DQNConfig
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.seeding import Streams
from uniarena.values.model import build_model
from uniarena.values.q_model import build_q_model

STEPS, COLUMNS = 9, 4
OBS = spaces.Box(-5.0, 5.0, (3,), np.float32)
DISCRETE, BOX = spaces.Discrete(4), spaces.Box(-1.0, 1.0, (2,), np.float32)


def sampling(space: Any, warmup: int = 0, normalizer: Any = None, obs: Any = OBS, **policy: Any) -> Actor:
    model = build_model(obs, space, policy, {}, normalizer, Streams(1))
    return Actor(model.policy.frozen(), SampleExplorer(SampleExplorerConfig(), space, warmup))


def greedy(epsilon: float, **options: Any) -> Actor:
    model = build_q_model(OBS, DISCRETE, {}, None, None, Streams(1), cfg=DQNConfig(**options))
    return Actor(model.policy.frozen(), EpsilonGreedy(EpsilonGreedyConfig(epsilon=epsilon), DISCRETE))


def chunk(actor: Actor) -> tuple[torch.Tensor, Any]:
    obs = torch.randn(STEPS + 1, COLUMNS, 3, generator=torch.Generator().manual_seed(2))
    return obs, actor.noise(STEPS, COLUMNS, torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: sampling(DISCRETE),
        lambda: sampling(BOX),
        lambda: sampling(BOX, activation="silu", hidden_sizes=(5,)),
        lambda: greedy(0.0),
        lambda: greedy(0.4),
        lambda: greedy(1.0),
        lambda: greedy(0.4, noisy=True),
    ],
)
@torch.no_grad()
def test_the_actions_are_those_of_act(make: Any) -> None:
    actor = make()
    obs, noise = chunk(actor)
    short = actor.on_arrays(obs, noise)
    assert short is not None
    found = [short(obs[t].numpy(), t) for t in range(STEPS)]
    for t, action in enumerate(found):  # in new memory: an environment may keep what it is given
        wanted = actor.act(obs[t], None, None, noise[t], None)[0]
        torch.testing.assert_close(torch.from_numpy(action), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sampling(DISCRETE, warmup=100),
        lambda: sampling(DISCRETE, normalizer=ObservationNormalizer(OBS)),
        lambda: sampling(BOX, distribution="squashed_gaussian"),
        lambda: sampling(BOX, gsde=True),
        lambda: greedy(0.1, dueling=True),
    ],
)
@torch.no_grad()
def test_where_there_is_more_to_do(make: Any) -> None:
    actor = make()
    assert actor.on_arrays(*chunk(actor)) is None


@torch.no_grad()
def test_whoever_acts_otherwise_is_asked() -> None:
    class Own(SampleExplorer):
        def act(self, *args: Any) -> Any:
            return super().act(*args)

    actor = sampling(DISCRETE)
    obs, noise = chunk(actor)
    assert Actor(actor.policy, Own(SampleExplorerConfig(), DISCRETE)).on_arrays(obs, noise) is None
    assert actor.on_arrays(obs.double(), noise) is None and actor.on_arrays({"a": obs}, noise) is None
    actor.act = actor.act  # type: ignore[method-assign]
    assert actor.on_arrays(obs, noise) is None
