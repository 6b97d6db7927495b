"""Stacks of frames are stored once and rebuilt exactly: our wrapper, gymnasium's, every axis and padding."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.buffers.rollouts import TWO, RandomActions, generator, line, sampler, spec
from tests.fakes.envs import CounterEnv, CounterVectorEnv, MaskInfoEnv, TensorCounter
from uniarena.batch import Rollout, tree_leaves
from uniarena.buffers.frames import StackedLeaf, find_stacks
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.buffers.spec import BufferSpec
from uniarena.envs import make_env
from uniarena.envs.protocol import Env


class Pictures(gym.Env[np.ndarray, int]):
    """A picture whose every pixel tells the step; episodes of 7 steps that are only cut off."""

    def __init__(self, shape: tuple[int, ...] = (5, 6, 1)) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(2)
        self.t, self.count = 0, 0

    def _obs(self) -> np.ndarray:
        self.count += 1
        shape = self.observation_space.shape
        assert shape is not None
        return (np.arange(np.prod(shape)).reshape(shape) + 3 * self.count).astype(np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.t = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._obs(), 1.0, False, self.t == 7, {}


class Legal(RandomActions):
    """At random, or the first legal action where there is a mask."""

    def act(
        self, obs: Any, state: Any, is_first: Any, noise: Any, generator: Any
    ) -> tuple[torch.Tensor, None]:
        if not isinstance(obs, dict):
            return super().act(obs, state, is_first, noise, generator)
        return obs["action_mask"].int().argmax(-1), None


def check(env: Env, steps: int = 60, capacity: int = 40, chunk: int = 2, n: int = 1) -> ReplayBuffer:
    """Fill a buffer and compare samples with the observations as the environment gave them."""
    stacks = find_stacks(env)
    assert stacks
    made = sampler(env, Legal(env) if isinstance(env.action_map.policy_space, spaces.Discrete) else None)
    columns = made.columns
    buffer = ReplayBuffer(
        ReplayConfig(capacity=capacity * columns),
        BufferSpec(
            env.observation_space, env.action_map.policy_space, columns, gamma=0.9, n_step=n, stacks=stacks
        ),
    )
    parts: list[Rollout] = []
    for _ in range(steps // chunk):
        parts.append(made.collect(chunk * columns).clone())
        buffer.add(parts[-1])
    whole = Rollout.join(parts)
    finals = (
        {}
        if whole.ended is None
        else {(int(t), int(b)): k for k, (t, b) in enumerate(zip(whole.ended.t, whole.ended.b, strict=True))}
    )
    batch = buffer.sample(generator(), 400)
    leaves = tree_leaves(whole.rows.obs), tree_leaves(batch.obs), tree_leaves(batch.next_obs)
    for i, index in enumerate(batch.index.tolist()):
        t, b = divmod(index, columns)
        last = t + int(batch.n[i]) - 1
        for k, (given, obs, next_obs) in enumerate(zip(*leaves, strict=True)):
            assert torch.equal(obs[i], given[t, b])
            if (last, b) in finals:
                assert whole.ended is not None
                expected = tree_leaves(whole.ended.obs)[k][finals[last, b]]
            elif "next_obs" in whole.rows:
                expected = tree_leaves(whole.rows.next_obs)[k][last, b]
            else:
                expected = given[last + 1, b] if last + 1 < whole.T else tree_leaves(whole.last.obs)[k][b]
            assert torch.equal(next_obs[i], expected)
    assert batch.index.min() < (steps - capacity + 4) * columns  # also what is nearly overwritten
    env.close()
    return buffer


@pytest.mark.parametrize("padding", ["repeat", "zero"])
@pytest.mark.parametrize(
    "shape, more",
    [
        ((5, 6, 1), {}),
        ((1, 5, 6), {}),
        ((5, 6, 3), {}),
        ((5, 6), {"new_axis": True}),
        ((5, 6), {"new_axis": True, "axis": -1}),
        ((5, 6), {"axis": 1}),
        ((6,), {"n_frames": 2}),
    ],
)
@pytest.mark.parametrize("n", [1, 3])
def test_our_wrapper_in_every_form(
    shape: tuple[int, ...], more: dict[str, Any], padding: str, n: int
) -> None:
    env = make_env(
        lambda: Pictures(shape), num_envs=2, wrappers=[{"type": "frame_stack", "padding": padding, **more}]
    )
    buffer = check(env, n=n)
    frame = int(np.prod(shape))
    assert buffer.ring.frames[0].nbytes == buffer.ring.places * frame


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_stacks_under_every_autoreset_mode(mode: str) -> None:
    check(make_env(CounterVectorEnv(4, (1, 2, 3, 5), mode, "truncation"), wrappers=["frame_stack"]))


@pytest.mark.parametrize("final", ["info", "dense"])
def test_stacks_of_tensor_simulators(final: str) -> None:
    check(make_env(TensorCounter(4, (2, 3, 4, 6), "truncation", final), wrappers=["frame_stack"]))  # type: ignore[arg-type]


@pytest.mark.parametrize("vectorization", ["serial", "sync"])
@pytest.mark.parametrize("padding", ["reset", "zero"])
def test_the_stacking_wrapper_of_gymnasium_on_cartpole(padding: str, vectorization: str) -> None:  # case B25
    def make() -> gym.Env[Any, Any]:
        return gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 4, padding_type=padding)

    env = make_env(make, num_envs=2, vectorization=vectorization)
    assert find_stacks(env) == (StackedLeaf("", 4, 0, padding == "zero"),)
    buffer = check(env, steps=120, capacity=50)
    assert buffer.ring.frames[0].shape[1:] == (1, 4) and buffer.ring.layout.obs_bytes == 0


def test_the_stacking_wrapper_of_gymnasium_beside_a_mask() -> None:
    env = make_env(
        lambda: gym.wrappers.FrameStackObservation(MaskInfoEnv(), 3), num_envs=2, action_mask="info"
    )
    assert find_stacks(env) == (StackedLeaf("obs", 3, 0),)
    check(env)


def test_stacks_beside_a_mask_and_other_leaves() -> None:
    env = make_env(MaskInfoEnv, num_envs=2, wrappers=["frame_stack"], action_mask="info")
    assert [leaf.path for leaf in find_stacks(env)] == ["obs"]
    check(env)


def test_wrappers_outside_that_change_the_leaf_are_not_taken_for_stacks() -> None:
    env = make_env(
        lambda: gym.wrappers.FlattenObservation(gym.wrappers.FrameStackObservation(CounterEnv(), 3))
    )
    assert find_stacks(env) == ()
    stacked = make_env(
        lambda: gym.wrappers.FrameStackObservation(CounterEnv(), 3, padding_type=np.zeros(1, np.float32))
    )
    assert find_stacks(stacked) == ()
    assert find_stacks(make_env(CounterEnv)) == ()


def stack_spec(**more: Any) -> BufferSpec:
    box = spaces.Box(0, 255, (2,), np.uint8)
    return BufferSpec(box, TWO, stacks=(StackedLeaf("", 2, 0),), gamma=0.9, **more)


def stacked_line(frames: list[list[int]], last: list[int], first: bool = True) -> Rollout:
    part = line([0.0] * len(frames), 0.0, first=[0] if first else [])
    rows = part.rows.replace(obs=torch.tensor(frames, dtype=torch.uint8)[:, None])
    return Rollout(rows, part.start, part.last.replace(obs=torch.tensor([last], dtype=torch.uint8)))


def test_what_is_no_stack_is_refused_with_the_way_out() -> None:
    buffer = ReplayBuffer(ReplayConfig(capacity=10), stack_spec())
    with pytest.raises(ValueError, match="frame_stack to false"):
        buffer.add(stacked_line([[1, 1], [1, 2], [7, 3]], [3, 4]))
    plain = ReplayBuffer(ReplayConfig(capacity=10, frame_stack=False), stack_spec())
    plain.add(stacked_line([[1, 1], [1, 2], [7, 3]], [3, 4]))
    assert plain.size == 3 and not plain.ring.frames


def test_an_axis_that_cannot_be_cut_into_frames_is_refused() -> None:
    bad = spec(observation_space=spaces.Box(0, 1, (3, 5)), stacks=(StackedLeaf("", 2, 1),))
    with pytest.raises(ValueError, match="no stack of 2 frames along axis 1"):
        ReplayBuffer(ReplayConfig(capacity=5), bad)
    with pytest.raises(ValueError, match="not in the observation"):
        ReplayBuffer(ReplayConfig(capacity=5), spec(stacks=(StackedLeaf("cam", 2, 0),)))


def test_rows_whose_frames_came_before_the_buffer_are_not_sampled() -> None:
    buffer = ReplayBuffer(ReplayConfig(capacity=10), stack_spec())
    buffer.add(stacked_line([[8, 9], [9, 10], [10, 11]], [11, 12], first=False))
    assert set(buffer.sample(generator(), 100).index.tolist()) == {1, 2}


def test_the_oldest_rows_go_when_their_frames_are_overwritten() -> None:
    buffer = ReplayBuffer(ReplayConfig(capacity=4), stack_spec())
    frames = [[1, 1], *[[k, k + 1] for k in range(1, 12)]]
    for k, frame in enumerate(frames):
        buffer.add(stacked_line([frame], [k + 1, k + 2], first=k == 0))
        stored = range(max(0, k - 3), k + 1)
        good = {p for p in stored if p == 0 or p - 1 in stored}
        assert buffer.size == len(good) and set(buffer.sample(generator(), 60).index.tolist()) == good
