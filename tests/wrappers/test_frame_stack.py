"""Frame stacks are checked against a plain list of frames per column, on every kind of backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.wrappers.columns import MODES, Columns, numpy, zeros
from uniarena.batch import tree_map
from uniarena.config import ConfigError
from uniarena.envs.spaces import leaf_spaces
from uniarena.envs.wrappers.frame_stack import FrameStack, FrameStackConfig

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ROW = spaces.Box(-np.inf, np.inf, (1, 4), np.float32)
HWC = spaces.Box(0, 255, (6, 7, 3), np.uint8)
CHW = spaces.Box(0, 255, (1, 6, 7), np.uint8)


def stacked(frames: list[np.ndarray], n: int, axis: int, new_axis: bool, zero: bool) -> np.ndarray:
    """The oracle: the last n frames of an episode."""
    before = [frames[0] * 0 if zero else frames[0]] * (n - len(frames))
    last = (before + frames)[-n:]
    return np.stack(last, axis) if new_axis else np.concatenate(last, axis)


def check_against_lists(mode: str, space: Any, cfg: FrameStackConfig, axis: int, steps: int = 14) -> int:
    """Step a stacked and a bare environment side by side; returns how many final stacks were compared."""
    env, bare = FrameStack(Columns(mode, space), cfg), Columns(mode, space)
    oracle = lambda frames: stacked(frames, cfg.n_frames, axis, cfg.new_axis, cfg.padding == "zero")  # noqa: E731
    got, obs = numpy(env.reset()), numpy(bare.reset())
    history = [[obs[b]] for b in range(bare.num_envs)]
    finals = 0
    for _ in range(steps + 1):
        for b in range(bare.num_envs):
            np.testing.assert_array_equal(got[b], oracle(history[b]))
            assert got[b].dtype == space.dtype and got.shape[1:] == env.observation_space.shape
        step, plain = env.step(zeros(env)), bare.step(zeros(bare))
        if plain.final is not None:
            for k, b in enumerate(plain.final.index):
                np.testing.assert_array_equal(
                    numpy(step.final.obs[k]), oracle([*history[b], numpy(plain.final.obs[k])])
                )
                finals += 1
        if plain.next_obs is not None:
            for b in range(bare.num_envs):
                np.testing.assert_array_equal(
                    numpy(step.next_obs[b]), oracle([*history[b], numpy(plain.next_obs[b])])
                )
                finals += 1
        got, obs = numpy(step.obs), numpy(plain.obs)
        for b in range(bare.num_envs):
            history[b] = [obs[b]] if plain.is_first[b] else [*history[b], obs[b]]
    return finals


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", ["repeat", "zero"])
@pytest.mark.parametrize(
    ("space", "options", "axis"),
    [
        (VECTOR, {}, 0),
        (VECTOR, {"new_axis": True}, 0),
        (ROW, {"axis": 0}, 0),
        (HWC, {}, 2),
        (CHW, {}, 0),
        (HWC, {"axis": -1, "new_axis": True}, 3),
    ],
)
def test_stacks_equal_a_list_of_frames(mode: str, padding: str, space: Any, options: dict, axis: int):
    cfg = FrameStackConfig(n_frames=3, padding=padding, **options)
    assert check_against_lists(mode, space, cfg, axis) > 5


@pytest.mark.parametrize("mode", MODES)
def test_channel_first_vector_frames_have_right_final_stack(mode: str):  # case B23
    env = FrameStack(Columns(mode, ROW, lengths=[2, 3] * 4), FrameStackConfig(n_frames=2, axis=0))
    assert env.observation_space.shape == (2, 4)
    env.reset()
    steps = [env.step(zeros(env)) for _ in range(1)]
    step = env.step(zeros(env))
    assert tuple(step.obs.shape) == (8, 2, 4)
    last = step.final.obs if step.final is not None else step.next_obs[::2]
    assert tuple(last.shape) == (4, 2, 4)
    for k, b in enumerate(range(0, 8, 2)):
        assert last[k][:, 0].tolist() == [40 * b + 1, 40 * b + 2]
    assert steps[0].final is None


def test_dict_observations_are_stacked_key_by_key_and_masks_and_integers_pass():
    space = spaces.Dict(
        {
            "cam": HWC,
            "sensors": spaces.Tuple((VECTOR, spaces.Discrete(200))),
            "action_mask": spaces.Box(0, 127, (2,), np.int8),
        }
    )
    env = FrameStack(Columns("same_step", space), FrameStackConfig(n_frames=2))
    shapes = {path: leaf.shape for path, leaf in leaf_spaces(env.observation_space)}
    assert shapes == {"cam": (6, 7, 6), "sensors.0": (6,), "sensors.1": (), "action_mask": (2,)}
    env.reset()
    step = env.step(zeros(env))
    assert step.obs["sensors"][0][1].tolist() == [40] * 3 + [41] * 3
    assert step.obs["sensors"][1][1] == 41 and step.obs["action_mask"].shape == (3, 2)
    assert env.observation_space.contains(tree_map(lambda leaf: leaf[1], step.obs))


def test_keys_choose_the_leaves():
    space = spaces.Dict({"a": VECTOR, "b": VECTOR})
    env = FrameStack(Columns("same_step", space), FrameStackConfig(n_frames=4, keys=("b",)))
    assert env.observation_space["a"].shape == (3,) and env.observation_space["b"].shape == (12,)
    with pytest.raises(ConfigError, match=r"'c' is no leaf.*'a', 'b'"):
        FrameStack(Columns("same_step", space), FrameStackConfig(keys=("c",)))


@pytest.mark.parametrize("shape", [(84, 84), (3, 84, 3), (5, 6)])
def test_an_axis_that_could_be_several_is_refused(shape: tuple[int, ...]):
    space = spaces.Box(0, 255, shape, np.uint8)
    with pytest.raises(ConfigError, match="more than one axis") as caught:
        FrameStack(Columns("same_step", space), FrameStackConfig())
    assert "frame_stack.axis" in str(caught.value) and "new_axis" in str(caught.value)


def test_an_axis_out_of_range_and_an_empty_choice_are_refused():
    with pytest.raises(ConfigError, match=r"axis is 2.*\(3,\)"):
        FrameStack(Columns("same_step", VECTOR), FrameStackConfig(axis=2))
    with pytest.raises(ConfigError, match="no leaf of the observation space"):
        FrameStack(Columns("same_step", spaces.Discrete(3)), FrameStackConfig())
    with pytest.raises(ConfigError, match="n_frames is 0"):
        FrameStackConfig(n_frames=0)


@pytest.mark.parametrize("mode", ["same_step", "tensor_dense"])
def test_a_partial_reset_begins_only_its_own_stacks(mode: str):
    env = FrameStack(Columns(mode, VECTOR, lengths=(9, 9)), FrameStackConfig(n_frames=2))
    env.reset()
    env.step(zeros(env))
    mask = np.array([False, True])
    obs = env.reset(mask=torch.from_numpy(mask) if env.tensor else mask)
    assert obs[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert obs[1].tolist() == [50] * 6


@pytest.mark.parametrize("mode", MODES)
def test_a_saved_stack_goes_on_as_if_never_interrupted(mode: str):
    env = FrameStack(Columns(mode, VECTOR), FrameStackConfig(n_frames=3))
    env.reset()
    for _ in range(4):
        env.step(zeros(env))
    state = env.state_dict()
    other = FrameStack(Columns(mode, VECTOR), FrameStackConfig(n_frames=3))
    other.reset()
    other.load_state_dict(state)
    for _ in range(6):
        a, b = env.step(zeros(env)), other.step(zeros(other))
        np.testing.assert_array_equal(numpy(a.obs), numpy(b.obs))
        assert (a.final is None) == (b.final is None)
        if a.final is not None:
            np.testing.assert_array_equal(numpy(a.final.obs), numpy(b.final.obs))


@pytest.mark.parametrize("mode", ["same_step", "tensor_same_step"])
def test_stepping_reuses_two_buffers_and_final_observations_are_fresh(mode: str):
    env = FrameStack(Columns(mode, VECTOR), FrameStackConfig(n_frames=3))
    seen, finals = {_pointer(env.reset())}, []
    for _ in range(9):
        step = env.step(zeros(env))
        seen.add(_pointer(step.obs))
        if step.final is not None:
            finals.append((step.final.obs, numpy(step.final.obs)))
    assert len(seen) == 2
    assert finals and all(np.array_equal(kept, copy) for kept, copy in finals)


def test_bounds_of_the_space_hold_for_zero_padding():
    space = spaces.Box(1.0, 2.0, (2,), np.float32)
    env = FrameStack(Columns("same_step", space), FrameStackConfig(n_frames=2, padding="zero"))
    assert env.observation_space.low.min() == 0 and env.observation_space.high.max() == 2


def _pointer(array: Any) -> int:
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data
