"""Adapters of packages that are extras: each is run where its package is installed."""

import ctypes.util
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from uniarena.batch import tree_leaves
from uniarena.config import ConfigError
from uniarena.envs import Env, UniArenaNotice, make_env

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def walk(env: Env, steps: int = 30, seed: int = 0) -> list[Any]:
    """Random steps; every observation lies in the stated space."""
    env.reset(seed=seed)
    space = env.action_map.policy_space
    space.seed(0)
    rows = []
    for _ in range(steps):
        action = np.stack([np.asarray(space.sample()) for _ in range(env.num_envs)])
        step = env.step(action)
        rows.append([np.array(leaf) for leaf in (*tree_leaves(step.obs), step.reward, step.terminated)])
    env.close()
    return rows


def _same(one: list[Any], other: list[Any]) -> bool:
    return all(
        np.array_equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)
    )


@pytest.mark.extra("envpool")
def test_envpool_gives_whole_episodes() -> None:
    env = make_env("envpool/CartPole-v1", 3, max_episode_steps=5)
    obs = env.reset(seed=1).copy()
    zeros = np.zeros(3, np.int64)
    for round_ in range(3):
        for t in range(5):
            step = env.step(zeros)
            assert step.valid is None and step.truncated.tolist() == [t == 4] * 3
        assert step.final is not None and step.final.index.tolist() == [0, 1, 2]
        assert np.array_equal(step.final.obs, step.obs) and not step.is_first.any()
        step = env.step(zeros)
        assert step.valid is not None and not step.valid.any() and step.is_first.all()
        assert not step.reward.any() and (np.abs(step.obs) <= 0.05).all(), round_
    again = env.reset(seed=1)
    assert np.array_equal(obs, again) and len({row.tobytes() for row in again}) == 3
    part = env.reset(mask=np.array([False, True, False])).copy()
    assert np.array_equal(part[0], again[0]) and not np.array_equal(part[1], again[1])
    env.close(), env.close()


@pytest.mark.extra("envpool")
def test_envpool_terminations_are_followed_by_a_reset_only_row() -> None:
    env = make_env("CartPole-v1", 4, vectorization="envpool")
    env.reset(seed=0)
    ended = np.zeros(4, bool)
    for _ in range(60):
        step = env.step(np.ones(4, np.int64))
        assert np.array_equal(ended, np.zeros(4, bool) if step.valid is None else ~step.valid)
        assert np.array_equal(ended, step.is_first)
        ended = step.terminated | step.truncated
        if ended.any():
            assert step.final is not None and (np.abs(step.final.obs[:, 2]) > 0.2).all()
    env.close()


@pytest.mark.extra("envpool")
def test_envpool_by_object_and_by_mistake() -> None:
    import envpool

    env = make_env(envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=2))
    with pytest.warns(UniArenaNotice, match="keeps the seeds"):
        env.reset(seed=3)
    assert env.step(np.zeros((2, 1), np.float32)).obs.shape == (2, 3)
    env.close()
    with pytest.raises(ConfigError, match="did you mean envpool/"):
        make_env("envpool/CartPol-v1")
    with pytest.raises(ConfigError, match="batch_size"):
        make_env(envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, batch_size=2))


@pytest.mark.extra("envpool")
@pytest.mark.parametrize("task", ["Pong-v5", "HalfCheetah-v4", "MiniGrid-Empty-5x5-v0", "CheetahRun-v1"])
def test_envpool_tasks_repeat_under_a_seed(task: str) -> None:
    assert _same(*(walk(make_env(f"envpool/{task}", 2)) for _ in range(2)))


@pytest.mark.extra("envpool")
def test_procgen_runs_or_names_the_system_library_it_lacks() -> None:
    if ctypes.util.find_library("Qt5Gui"):
        assert walk(make_env("procgen/coinrun-easy", 2))[0][0].dtype == np.uint8
    else:
        with pytest.raises(ImportError, match="Qt 5"):
            make_env("procgen/coinrun-easy", 2)


@pytest.mark.extra("atari")
def test_atari() -> None:
    env = make_env("ALE/Pong-v5", 2)
    assert env.observation_space == spaces.Box(0, 255, (210, 160, 3), np.uint8)
    walk(env)
    native = make_env("ALE/Pong-v5", 2, vectorization="native")
    assert len(walk(native)) == 30


@pytest.mark.extra("minatar")
def test_minatar() -> None:
    assert _same(*(walk(make_env("MinAtar/Breakout-v1", 2)) for _ in range(2)))


@pytest.mark.extra("minigrid")
def test_minigrid() -> None:
    env = make_env("MiniGrid-Empty-5x5-v0", 2)
    assert set(env.observation_space.spaces) == {"direction", "image"}  # type: ignore[attr-defined]
    walk(env)
    with pytest.raises(ConfigError, match="'mission' is Text"):
        make_env("BabyAI-GoToObj-v0")


@pytest.mark.extra("dm-control")
def test_dm_control() -> None:
    assert _same(*(walk(make_env("dm_control/cartpole-swingup", 2)) for _ in range(2)))
    env = make_env("dm_control/cartpole-balance", 1, max_episode_steps=4)
    env.reset(seed=0)
    ends = [bool(env.step(np.zeros((1, 1), np.float32)).truncated[0]) for _ in range(4)]
    assert ends == [False, False, False, True]
    with pytest.raises(ValueError, match="cartpole-swingup"):
        make_env("dm_control/cartpole-fly")


@pytest.mark.extra("metaworld")
def test_metaworld() -> None:
    env = make_env("metaworld/reach-v3", 2)
    assert env.observation_space.shape == (39,)
    walk(env)
