"""The counting environment behind every adapter, through replay × n steps × hindsight × priorities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.buffers.rollouts import generator, sampler
from tests.contracts.counting import FORMS, LENGTHS
from tests.fakes.envs import TensorCounter
from uniarena.batch import Batch
from uniarena.buffers.her import HindsightConfig
from uniarena.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.buffers.spec import BufferSpec
from uniarena.config import config
from uniarena.envs import UniArenaNotice, make_env
from uniarena.envs.protocol import Env
from uniarena.envs.wrappers.base import EnvWrapper

GAMMA, OUT_OF_REACH = 0.9, -1.0
COUNT = spaces.Box(-np.inf, np.inf, (1,), np.float32)


@config
class AsGoalsConfig:
    """Nothing to set."""


class AsGoals(EnvWrapper):
    """The count that was reached, and one that never is, on arrays and tensors alike."""

    Config = AsGoalsConfig

    def __init__(self, env: Env, cfg: AsGoalsConfig) -> None:
        super().__init__(env, cfg)
        self.observation_space = spaces.Dict({"achieved_goal": COUNT, "desired_goal": COUNT})

    def _map_obs(self, obs: Any) -> Any:
        return {"achieved_goal": obs, "desired_goal": 0 * obs + OUT_OF_REACH}


def reached(achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
    """10 and the end at the goal, 1 elsewhere."""
    there = (achieved == desired).all(-1)
    return np.where(there, 10.0, 1.0), there


def by_hand(at: int, goal: float, length: int, end: str, n: int) -> tuple[float, float, int]:
    """(reward, discount, steps) of a window from count `at` on in an episode of `length` steps: a plain loop."""
    total, discount = 0.0, 1.0
    for k in range(n):
        after = at + k + 1
        total += discount * (10.0 if after == goal else 1.0)
        discount *= GAMMA
        if after == goal or (after == length and end == "termination"):
            return total, 0.0, k + 1
        if after == length:
            return total, discount, k + 1
    return total, discount, n


def check(batch: Batch, strategy: str | None, end: str, n: int, newest: int) -> None:
    columns = len(LENGTHS)
    for i, index in enumerate(batch["index"].tolist()):
        position, column = divmod(index, columns)
        length, at = LENGTHS[column], int(batch["obs"]["achieved_goal"][i])
        goal = float(batch["obs"]["desired_goal"][i])
        assert 0 <= at < length and batch["next_obs"]["desired_goal"][i] == goal
        if strategy is None:
            assert goal == OUT_OF_REACH
        elif strategy == "final" and position + length < newest:  # of an episode that is over
            assert goal == length
        else:
            assert (at if strategy == "future" else 0) < goal <= length
        reward, discount, steps = by_hand(at, goal, length, end, n)
        if batch["n"][i] < steps:  # only the newest row cuts a window short
            assert position + 2 * n > newest
            reward, discount, steps = by_hand(at, goal, length, end, int(batch["n"][i]))
        assert batch["n"][i] == steps and batch["next_obs"]["achieved_goal"][i] == at + steps
        assert batch["reward"][i].item() == pytest.approx(reward, abs=1e-5)
        assert batch["discount"][i].item() == pytest.approx(discount, abs=1e-6)
        assert batch["terminated"][i].item() == (discount == 0.0)


@pytest.mark.parametrize("strategy", [None, "future", "final", "episode"])
@pytest.mark.parametrize("end", ["termination", "truncation"])
@pytest.mark.parametrize("name", FORMS)
def test_every_adapter_gives_the_transitions_of_the_episodes(name: str, end: str, strategy: Any) -> None:
    """Through a ring that wraps, in chunks that cut episodes anywhere, uniform and by priority, one step and three."""
    env = make_env(FORMS[name](LENGTHS, end), wrappers=[AsGoals])
    her = None if strategy is None else HindsightConfig(strategy=strategy, ratio=1.0)
    buffers: list[tuple[int, ReplayBuffer]] = []
    for n in (1, 3):
        given = BufferSpec(
            env.observation_space, env.action_map.policy_space, 4, GAMMA, 32, n_step=n, goal_reward=reached
        )
        buffers.append((n, ReplayBuffer(ReplayConfig(capacity=80, her=her), given)))
        buffers.append((n, PrioritizedReplay(PrioritizedConfig(capacity=80, her=her), given)))
    made, source, rows, valid = sampler(env), generator(), 0, []
    for steps in (1, 1, 7, 4, 11, 1, 1, 6, 1):
        rollout = made.collect(4 * steps)
        valid += rollout.rows.valid.sum(-1).tolist()
        rows += steps
        for n, buffer in buffers:
            buffer.add(rollout)
            assert buffer.size == sum(valid[-20:])
            batch = buffer.sample(source)
            check(batch, strategy, end, n, rows)
            buffer.reprioritise(batch["index"], torch.rand(32, generator=source))
    assert rows > 20
    env.close()


@pytest.mark.parametrize("n", [1, 3])
def test_a_simulator_that_loses_final_observations_gives_no_wrong_transition(n: int) -> None:
    with pytest.warns(UniArenaNotice):
        env = make_env(TensorCounter(4, LENGTHS, "truncation", None), wrappers=[AsGoals])
    given = BufferSpec(env.observation_space, env.action_map.policy_space, 4, GAMMA, 300, n_step=n)
    buffer = PrioritizedReplay(PrioritizedConfig(capacity=80), given)
    made = sampler(env)
    for _ in range(15):
        buffer.add(made.collect(8))
    batch = buffer.sample(generator())
    at, after = batch["obs"]["achieved_goal"][:, 0], batch["next_obs"]["achieved_goal"][:, 0]
    assert torch.equal(after, at + batch["n"]) and 0 not in (batch["index"] % 4).tolist()
    left = torch.tensor(LENGTHS)[batch["index"] % 4] - at
    assert (batch["n"] < left).all() and (batch["discount"] > 0).all()
