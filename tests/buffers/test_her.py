"""Hindsight: goals come from the same episode and not from before, rewards are those of the new goal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.buffers.rollouts import RandomActions, generator, sampler, spec
from tests.fakes.envs import CounterEnv
from tests.fakes.goals import BitFlip
from uniarena.batch import Batch, Rollout
from uniarena.buffers.frames import StackedLeaf
from uniarena.buffers.her import HindsightConfig, goal_reward_of
from uniarena.buffers.prioritized import PrioritizedConfig, PrioritizedReplay
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.buffers.spec import BufferSpec
from uniarena.config import ConfigError
from uniarena.envs import make_env

GOAL = spaces.Box(-np.inf, np.inf, (1,), np.float32)
SPACE = spaces.Dict({"achieved_goal": GOAL, "desired_goal": GOAL})


def reached(achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
    return np.where((achieved == desired).all(-1), 0.0, -1.0), np.zeros(len(achieved), bool)


def numbered(states: list[int], last: int, **flags: Any) -> Rollout:
    """One column whose achieved goals are state numbers and whose desired goal is out of reach."""
    from tests.buffers.rollouts import line

    part = line([float(s) for s in states], float(last), **flags)

    def goals(obs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"achieved_goal": obs, "desired_goal": torch.full_like(obs, -1.0)}

    ended = None if part.ended is None else part.ended.replace(obs=goals(part.ended.obs))
    rows, after = part.rows.replace(obs=goals(part.rows.obs)), part.last.replace(obs=goals(part.last.obs))
    return Rollout(rows, part.start, after, ended, part.has_final_obs)


def her_buffer(capacity: int, strategy: str = "future", ratio: float = 1.0, **more: Any) -> ReplayBuffer:
    cfg = ReplayConfig(capacity=capacity, her=HindsightConfig(strategy=strategy, ratio=ratio))  # type: ignore[arg-type]
    return ReplayBuffer(cfg, spec(observation_space=SPACE, goal_reward=reached, **more))


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_stay_in_their_episode_when_the_ring_has_wrapped(strategy: str) -> None:  # case B35
    buffer = her_buffer(15, strategy)
    for begin, length in ((100, 10), (200, 20), (300, 10)):
        states = list(range(begin, begin + length))
        buffer.add(
            numbered(
                states,
                0,
                first=[0],
                truncated=[length - 1],
                finals={length - 1: float(begin + length)},
                last_first=True,
            )
        )
        batch = buffer.sample(generator(), 2000)
        state, goal = batch.obs["achieved_goal"][:, 0], batch.obs["desired_goal"][:, 0]
        assert len(state.unique()) == min(15, batch.index.max() + 1)
        assert torch.equal(
            torch.div(goal - 1, 100, rounding_mode="floor"), torch.div(state, 100, rounding_mode="floor")
        )
        if strategy == "future":
            assert (goal > state).all()
        if strategy == "final":
            assert (
                goal
                == torch.div(state, 100, rounding_mode="floor") * 100
                + torch.where(state < 200, 10, torch.where(state < 300, 20, 10))
            ).all()
        assert torch.equal(batch.next_obs["desired_goal"], batch.obs["desired_goal"])
        assert torch.equal(batch.reward, torch.where(goal == state + 1, 0.0, -1.0))


def test_every_future_goal_is_as_likely_as_any_other() -> None:
    buffer = her_buffer(20)
    buffer.add(numbered(list(range(10)), 0, first=[0], truncated=[9], finals={9: 10.0}, last_first=True))
    batch = buffer.sample(generator(), 30_000)
    start = batch.obs["achieved_goal"][:, 0] == 4
    counts = torch.bincount(batch.obs["desired_goal"][start, 0].long(), minlength=11)
    assert counts[:5].sum() == 0
    mean = counts[5:].sum() / 6
    assert (counts[5:] - mean).abs().max() < 4 * mean**0.5


def test_the_ratio_says_how_many_are_relabelled() -> None:
    buffer = her_buffer(20, ratio=0.25)
    buffer.add(numbered(list(range(10)), 10, first=[0]))
    changed = (buffer.sample(generator(), 20_000).obs["desired_goal"] != -1).float().mean()
    assert changed.item() == pytest.approx(0.25, abs=0.02)
    none = her_buffer(20, ratio=0.0)
    none.add(numbered(list(range(10)), 10, first=[0]))
    assert (none.sample(generator()).obs["desired_goal"] == -1).all()


def test_an_end_for_another_reason_than_the_goal_stays_an_end() -> None:
    """A robot that fell has fallen, whatever it wanted; one that had reached its goal would have gone on for others."""

    def rewards(achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        return np.where(achieved[:, 0] == desired[:, 0], 0.0, -1.0), achieved[:, 0] == desired[:, 0]

    cfg = ReplayConfig(capacity=20, her=HindsightConfig(strategy="episode", ratio=1.0))
    buffer = ReplayBuffer(cfg, spec(observation_space=SPACE, goal_reward=rewards))
    buffer.add(numbered([0, 1, 2], 0, first=[0], terminated=[2], finals={2: 3.0}, last_first=True))
    last = buffer.sample(generator(), 300)
    fallen = last.obs["achieved_goal"][:, 0] == 2
    assert last.terminated[fallen].all() and (last.discount[fallen] == 0).all()
    cfg = ReplayConfig(capacity=20, her=HindsightConfig(strategy="future", ratio=1.0))
    arrived = ReplayBuffer(cfg, spec(observation_space=SPACE, goal_reward=rewards))
    arrived.add(numbered([0, 1, -2], 0, first=[0], terminated=[2], finals={2: -1.0}, last_first=True))
    batch = arrived.sample(generator(), 300)
    assert batch.terminated[
        batch.obs["achieved_goal"][:, 0] == -2
    ].all()  # its only future goal is the one it had
    before = (batch.obs["achieved_goal"][:, 0] == 1) & (batch.obs["desired_goal"][:, 0] == -1)
    assert before.any() and not batch.terminated[before].any()


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_bit_flip_through_a_ring_smaller_than_the_run(
    num_envs: int, prioritized: bool, n: int
) -> None:  # cases B36, B37
    made = [lambda limit=limit: BitFlip(15, limit) for limit in (15, 9)[:num_envs]]
    env = make_env(made if num_envs > 1 else made[0])
    given = BufferSpec(
        env.observation_space,
        env.action_map.policy_space,
        env.num_envs,
        gamma=0.98,
        n_step=n,
        goal_reward=goal_reward_of(env),
    )
    her = HindsightConfig(ratio=1.0)
    buffer: ReplayBuffer = ReplayBuffer(ReplayConfig(capacity=100, her=her), given)
    if prioritized:
        buffer = PrioritizedReplay(PrioritizedConfig(capacity=100, her=her), given)
    run = sampler(env, RandomActions(env))
    for k in range(1000 // num_envs):
        buffer.add(run.collect(num_envs))
        if k % 20 == 0:
            batch = buffer.sample(generator(k), 64)
            assert batch.obs["desired_goal"].shape == batch.next_obs["achieved_goal"].shape == (64, 15)
            hit = (batch.next_obs["achieved_goal"] == batch.obs["desired_goal"]).all(-1)
            assert torch.equal(hit, batch.terminated) and torch.equal(hit, batch.discount == 0)
            lost = -(1 - 0.98 ** (batch.n - hit.long()).float()) / 0.02
            assert torch.allclose(batch.reward, lost, atol=1e-5)
            bits = (batch.next_obs["observation"] != batch.obs["observation"]).sum(-1)
            assert (bits <= batch.n).all() and ((bits - batch.n) % 2 == 0).all()
            assert torch.equal(batch.obs["observation"], batch.obs["achieved_goal"])
    env.close()


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_a_running_episode_goes_on_after_a_reload(strategy: str) -> None:  # case B36
    one = her_buffer(12, strategy)
    one.add(numbered(list(range(5)), 0, first=[0], truncated=[4], finals={4: 5.0}, last_first=True))
    one.add(numbered([10, 11, 12], 13, first=[0]))  # saved in the middle of this one
    two = her_buffer(12, strategy)
    two.load_state_dict(one.state_dict())
    for buffer in (one, two):
        buffer.add(numbered([13, 14], 0, truncated=[1], finals={1: 15.0}, last_first=True))
    a, b = (buffer.sample(generator(), 500) for buffer in (one, two))
    assert torch.equal(a.obs["desired_goal"], b.obs["desired_goal"]) and torch.equal(a.index, b.index)
    running = a.obs["achieved_goal"][:, 0] >= 10
    goals = set(a.obs["desired_goal"][running, 0].tolist())
    assert goals == ({15.0} if strategy == "final" else {11.0, 12.0, 13.0, 14.0, 15.0})


def test_an_episode_that_does_not_go_on_after_a_reload_ends_where_it_was() -> None:  # case B36
    one = her_buffer(12, "final")
    one.add(numbered([10, 11, 12], 13, first=[0]))
    two = her_buffer(12, "final")
    two.load_state_dict(one.state_dict())
    two.add(numbered([50, 51], 52, first=[0]))
    batch = two.sample(generator(), 300)
    old = batch.obs["achieved_goal"][:, 0] < 50
    assert set(batch.obs["desired_goal"][old, 0].tolist()) == {13.0}
    assert set(batch.obs["desired_goal"][~old, 0].tolist()) == {52.0}
    last = batch.obs["achieved_goal"][:, 0] == 12
    assert (batch.next_obs["achieved_goal"][last] == 13).all() and not batch.terminated[last].any()


def test_what_hindsight_needs_is_asked_for() -> None:
    her = HindsightConfig()
    with pytest.raises(ConfigError, match="keys achieved_goal and desired_goal; this one has no keys"):
        ReplayBuffer(ReplayConfig(capacity=5, her=her), spec(goal_reward=reached))
    with pytest.raises(ConfigError, match="no compute_reward"):
        ReplayBuffer(ReplayConfig(capacity=5, her=her), spec(observation_space=SPACE))
    stacked = spec(observation_space=SPACE, goal_reward=reached, stacks=(StackedLeaf("desired_goal", 1, 0),))
    with pytest.raises(ConfigError, match="goals are stacked"):
        ReplayBuffer(ReplayConfig(capacity=5, her=her), stacked)
    with pytest.raises(ValueError, match="loses its final observations"):
        her_buffer(5).add(numbered([0], 1, has_final_obs=False))
    odd = her_buffer(5)
    odd.her.goal_reward = lambda achieved, desired, info: (np.float32(-1), False)  # type: ignore[union-attr]
    odd.add(numbered([0, 1], 2, first=[0]))
    with pytest.raises(ValueError, match=r"rewards of shape \(\)"):
        odd.sample(generator())


def test_the_goal_reward_of_an_environment() -> None:
    env = make_env(lambda: BitFlip(3), num_envs=2)
    found = goal_reward_of(env)
    assert found is not None
    reward, over = found(np.eye(3), np.ones((3, 3)) * [1, 0, 0], {})
    assert reward.tolist() == [0, -1, -1] and over.tolist() == [True, False, False]
    assert goal_reward_of(make_env(CounterEnv)) is None
    scaled = make_env(lambda: BitFlip(3), wrappers=[{"type": "scale_reward", "scale": 2.0}])
    with pytest.raises(ConfigError, match="ScaleReward changes the reward"):
        goal_reward_of(scaled)


def test_stored_fields_reach_the_goal_reward() -> None:
    seen: list[Any] = []

    def rewards(achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        seen.append(info["force"])
        return -info["force"], False

    force = spaces.Box(-np.inf, np.inf, (), np.float32)
    cfg = ReplayConfig(capacity=20, her=HindsightConfig(ratio=1.0))
    buffer = ReplayBuffer(cfg, spec(observation_space=SPACE, goal_reward=rewards, extra={"force": force}))
    part = numbered([0, 1], 2, first=[0])
    buffer.add(Rollout(part.rows.replace(force=torch.tensor([[5.0], [6.0]])), part.start, part.last))
    batch: Batch = buffer.sample(generator())
    assert torch.equal(batch.reward, -batch.force) and torch.equal(
        batch.force, 5 + batch.obs["achieved_goal"][:, 0]
    )
