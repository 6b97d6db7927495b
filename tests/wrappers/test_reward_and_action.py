"""Reward clip and scale, action rescale, clip and stickiness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.wrappers.columns import MODES, Columns, numpy, zeros
from uniarena.config import ConfigError
from uniarena.envs.wrappers.action import (
    ClipAction,
    ClipActionConfig,
    RescaleAction,
    RescaleActionConfig,
    StickyActions,
    StickyActionsConfig,
)
from uniarena.envs.wrappers.reward import ClipReward, ClipRewardConfig, ScaleReward, ScaleRewardConfig

BOX = spaces.Box(np.array([0.0, -2.0]), np.array([10.0, 2.0]), dtype=np.float64)


@pytest.mark.parametrize("mode", MODES)
def test_rewards_are_scaled_then_clipped_and_the_raw_one_is_kept(mode: str):
    inner = Columns(mode, lengths=(9, 9))
    env = ClipReward(ScaleReward(inner, ScaleRewardConfig(scale=-0.5)), ClipRewardConfig(low=-1.2, high=0.0))
    env.reset()
    rows = []
    for _ in range(4):
        step = env.step(zeros(env))
        rows.append((numpy(step.reward).tolist(), numpy(step.info["raw_reward"]).tolist()))
    assert [raw[0] for _, raw in rows] == [1, 2, 3, 4]
    np.testing.assert_allclose([row[0] for row, _ in rows], [-0.5, -1.0, -1.2, -1.2])
    assert numpy(inner._reward).tolist() == [4, 4]  # the environment's own memory is untouched
    assert step.reward.dtype == (torch.float32 if env.tensor else np.float32)


def test_senseless_reward_settings_are_refused():
    with pytest.raises(ConfigError, match="low < high"):
        ClipRewardConfig(low=1.0, high=1.0)
    for scale in (0.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="finite number other than 0"):
            ScaleRewardConfig(scale=scale)


def test_rescale_sets_the_one_action_map_of_the_pipeline():
    inner = Columns("same_step", action_space=BOX)
    env = ClipReward(RescaleAction(inner, RescaleActionConfig()), ClipRewardConfig())
    assert env.action_map is inner.action_map and env.action_map.rescale
    assert env.action_map.policy_space.low.tolist() == [-1, -1]
    assert env.action_map(np.array([[0.0, 1.0]], np.float32)).tolist() == [[5.0, 2.0]]
    assert env.action_space is BOX


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Discrete(3), "expected a Box"),
        (spaces.Box(np.float32([0, -np.inf]), np.float32([1, np.inf])), r"dimension\(s\) \[1\]"),
        (spaces.Dict({"go": spaces.Box(0.0, np.inf, (2,))}), r"'go'.*\[0, 1\]"),
    ],
)
def test_rescale_without_bounds_is_refused_by_dimension(space: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        RescaleAction(Columns("same_step", action_space=space), RescaleActionConfig())


@pytest.mark.parametrize("mode", ["same_step", "tensor_dense"])
def test_clip_follows_the_space_that_the_policy_acts_in(mode: str):
    inner = Columns(mode, action_space=BOX)
    env = ClipAction(inner, ClipActionConfig())
    env.reset()
    wild = np.full((3, 2), 50.0, np.float32)
    env.step(torch.from_numpy(wild) if env.tensor else wild)
    assert inner.actions[-1].tolist() == [[10.0, 2.0]] * 3
    outer = RescaleAction(env, RescaleActionConfig())  # now the policy acts in [-1, 1]
    outer.step(torch.from_numpy(wild) if env.tensor else wild)
    assert inner.actions[-1].tolist() == [[1.0, 1.0]] * 3
    with pytest.raises(ConfigError, match="expected a Box"):
        ClipAction(Columns("same_step"), ClipActionConfig())


def sticky_run(
    mode: str, seed: int | None, steps: int = 300, lengths: tuple[int, ...] = (10**6,) * 8
) -> np.ndarray:
    """Executed actions `[T, B]` of a policy that counts."""
    inner = Columns(mode, lengths=lengths, action_space=spaces.Discrete(10**6))
    env = StickyActions(inner, StickyActionsConfig(probability=0.25))
    env.reset(seed=seed)
    for k in range(steps):
        rows = np.full(env.num_envs, k)
        env.step(torch.from_numpy(rows) if env.tensor else rows)
    return np.array(inner.actions)


@pytest.mark.parametrize("mode", ["same_step", "tensor_same_step"])
def test_a_quarter_of_the_actions_repeat_the_last_executed_one(mode: str):
    executed = sticky_run(mode, seed=1)
    repeated = executed[1:] == executed[:-1]
    assert (executed[0] == 0).all()
    fresh = executed[1:] == np.arange(1, len(executed))[:, None]
    assert (repeated | fresh).all()
    assert abs(repeated.mean() - 0.25) < 4 * (0.25 * 0.75 / repeated.size) ** 0.5
    np.testing.assert_array_equal(executed, sticky_run(mode, seed=1))
    assert (executed != sticky_run(mode, seed=2)).any()


@pytest.mark.parametrize("mode", MODES)
def test_the_first_action_of_an_episode_is_never_an_old_one(mode: str):
    inner = Columns(mode, lengths=(2, 3, 5), action_space=spaces.Discrete(10**6))
    env = StickyActions(inner, StickyActionsConfig(probability=0.9))
    env.reset(seed=0)
    first, checked = np.ones(3, bool), 0
    for k in range(60):
        rows = np.full(3, k)
        step = env.step(torch.from_numpy(rows) if env.tensor else rows)
        assert (inner.actions[-1][first] == k).all()
        checked += int(first.sum())
        first = numpy(step.is_first)
    assert checked > 30


@pytest.mark.parametrize("mode", ["same_step", "tensor_dense"])
def test_sticky_noise_and_the_last_action_are_saved_state(mode: str):
    space = spaces.Dict({"a": spaces.Box(0.0, 1.0, (2,), np.float32), "b": spaces.Discrete(9)})

    def make() -> tuple[Columns, StickyActions]:
        inner = Columns(mode, action_space=space)
        env = StickyActions(inner, StickyActionsConfig(probability=0.5))
        env.reset(seed=3)
        return inner, env

    def go(env: Any, k: int) -> None:
        rows: Any = {"a": np.full((3, 2), k / 100, np.float32), "b": np.full(3, k % 9)}
        env.step({key: torch.from_numpy(leaf) for key, leaf in rows.items()} if env.tensor else rows)

    (inner, env), (other_inner, other) = make(), make()
    for k in range(7):
        go(env, k)
    state = env.state_dict()
    assert state is not None
    for k in range(7, 27):
        go(env, k)
    other.load_state_dict(state)
    for k in range(7, 27):
        go(other, k)
    for a, b in zip(inner.actions[7:], other_inner.actions, strict=True):
        np.testing.assert_array_equal(a["a"], b["a"])
        np.testing.assert_array_equal(a["b"], b["b"])


def test_a_probability_outside_its_range_is_refused():
    with pytest.raises(ConfigError, match="0 ≤ probability < 1"):
        StickyActionsConfig(probability=1.0)
