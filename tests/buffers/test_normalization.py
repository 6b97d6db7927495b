"""Replay holds observations as they came; the agent's statistics apply to both sides of a transition."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces

from tests.buffers.rollouts import generator, line, spec
from uniarena.batch import Rollout
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.nets.normalizer import ObservationNormalizer

GOAL = spaces.Box(-np.inf, np.inf, (1,), np.float32)
SPACE = spaces.Dict({"achieved_goal": GOAL, "desired_goal": GOAL})


def test_raw_and_normalised_samples_differ_by_exactly_the_statistics() -> None:  # case B38
    def goals(obs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"achieved_goal": 100 * obs, "desired_goal": 500 - 100 * obs}

    part = line(range(40), 40.0, first=[0])
    rollout = Rollout(
        part.rows.replace(obs=goals(part.rows.obs)), part.start, part.last.replace(obs=goals(part.last.obs))
    )
    buffer = ReplayBuffer(ReplayConfig(capacity=100), spec(observation_space=SPACE))
    buffer.add(rollout)
    normalizer = ObservationNormalizer(SPACE)
    normalizer.accumulate(rollout.rows.obs, rollout.rows.valid)
    normalizer.merge()
    batch = buffer.sample(generator())
    for name in SPACE:
        seen = rollout.rows.obs[name]
        mean, std = seen.mean(), seen.std(unbiased=False)
        for side in (batch.obs, batch.next_obs):
            expected = (side[name] - mean) / std
            assert torch.allclose(normalizer(side)[name], expected, atol=1e-4)
            assert side[name].abs().max() > 100
