"""The example simulator: the physics of Gymnasium's cart-pole, no copies, resumed bit for bit."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch

from examples.tensor_cartpole import TensorCartPole, make
from uniarena.envs import make_env
from uniarena.envs.checker import check_env


def test_the_physics_is_that_of_gymnasium():
    ours = TensorCartPole(3)
    ours.reset(seed=0)
    theirs = gym.make("CartPole-v1").unwrapped
    rng = np.random.default_rng(0)
    state = ours.state[1].numpy().astype(np.float64)
    theirs.reset()
    theirs.state = tuple(state)
    for _ in range(200):
        action = rng.integers(0, 2, 3)
        _, reward, terminated, truncated, info = ours.step(torch.from_numpy(action))
        obs, their_reward, over, _, _ = theirs.step(int(action[1]))
        np.testing.assert_allclose(info["next_obs"][1].numpy(), obs, rtol=1e-4, atol=1e-5)
        assert (float(reward[1]), bool(terminated[1]), bool(truncated[1])) == (their_reward, over, False)
        if over:
            return
    raise AssertionError("the pole never fell")


def test_ends_are_true_observations_and_begin_anew():
    env = TensorCartPole(8, max_episode_steps=6)
    env.reset(seed=0)
    for _ in range(6):
        obs, _, terminated, truncated, info = env.step(torch.zeros(8, dtype=torch.int64))
    assert truncated.all() and not terminated.any()
    assert (obs.abs() <= 0.05).all() and (info["next_obs"][:, 1] < -0.5).all()
    assert (env.steps == 0).all()


def test_a_mask_resets_only_its_instances():
    env = TensorCartPole(4)
    env.reset(seed=0)
    for _ in range(3):
        env.step(torch.ones(4, dtype=torch.int64))
    before = env.state.clone()
    obs, _ = env.reset(mask=torch.tensor([True, False, False, True]))
    assert (obs[1:3] == before[1:3]).all() and (obs[[0, 3]] != before[[0, 3]]).any()
    assert env.steps.tolist() == [0, 3, 3, 0]


def test_its_tensors_reach_the_sampler_without_a_copy():
    sim = make(num_envs=2048)
    env = make_env(sim)
    assert env.tensor and env.num_envs == 2048 and env.has_final_obs
    assert env.reset(seed=0).data_ptr() == sim.state.data_ptr()
    step = env.step(torch.zeros(2048, dtype=torch.int64))
    assert step.obs.data_ptr() == sim.state.data_ptr()
    assert step.next_obs.data_ptr() == sim.next_state.data_ptr()
    assert step.reward.data_ptr() == sim.reward.data_ptr()
    assert step.final is None


def test_a_saved_simulator_goes_on_bit_for_bit():
    wrappers = [{"type": "time_limit", "max_episode_steps": 20}, {"type": "frame_stack", "n_frames": 2}]
    env, other = (make_env(make(16), wrappers=wrappers) for _ in range(2))
    actions = torch.randint(0, 2, (60, 16), generator=torch.Generator().manual_seed(0))
    env.reset(seed=3)
    other.reset(seed=4)
    for action in actions[:25]:
        env.step(action)
    other.load_state_dict(env.state_dict())
    for action in actions[25:]:
        a, b = env.step(action), other.step(action)
        assert torch.equal(a.obs, b.obs) and torch.equal(a.next_obs, b.next_obs)
        assert torch.equal(a.truncated, b.truncated)


def test_the_checker_finds_nothing():
    assert check_env(make) == []
    assert check_env("examples.tensor_cartpole:TensorCartPole", kwargs={"num_envs": 3}) == []
