"""Every kind of space goes through rollout, update, normalisation, file and `act`; what cannot is refused by name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import uniarena
from tests.fakes.envs import RewardKindsEnv, SpaceEnv
from tests.learning.tiny import learn
from uniarena import Agent, Batch, ConfigError, Trainer, make_env
from uniarena.envs.spaces import LeafEncoder, register_encoder
from uniarena.trainer.events import BatchCollected

PLAIN = spaces.Box(-1.0, 1.0, (2,), np.float32)
OBSERVATIONS: dict[str, spaces.Space] = {
    "no dimension": spaces.Box(-1, 1, (), np.float32),
    "int32": spaces.Box(-5, 5, (3,), np.int32),
    "wide int64": spaces.Box(-(2**62), 2**62, (2,), np.int64),
    "float16": spaces.Box(-1, 1, (2,), np.float16),
    "bool": spaces.Box(0, 1, (2,), bool),
    "uint16": spaces.Box(0, 65535, (2,), np.uint16),
    "bytes in a row": spaces.Box(0, 255, (7,), np.uint8),
    "bytes in a table": spaces.Box(0, 255, (40, 40), np.uint8),
    "infinite table": spaces.Box(-np.inf, np.inf, (2, 5), np.float32),
    "one point": spaces.Box(0.5, 0.5, (2,), np.float32),
    "one symbol": spaces.Discrete(1),
    "far start": spaces.Discrete(4, start=1000),
    "table of numbers": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "bits": spaces.MultiBinary(5),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,)))),
    "tuple of one": spaces.Tuple((spaces.Box(-1, 1, (2,)),)),
    "keys out of order": spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Box(-1, 1, (1,)))]),
    "keys with dots": spaces.Dict({"a.c": PLAIN, "a": spaces.Dict({"b": spaces.Discrete(3)})}),
    "keys like ours": spaces.Dict({"obs": PLAIN, "reward": spaces.Discrete(2), "shape": spaces.Discrete(2)}),
}
ACTIONS: dict[str, spaces.Space] = {
    "no dimension": spaces.Box(-1, 1, (), np.float32),
    "table": spaces.Box(-1, 1, (2, 3), np.float32),
    "infinite on one side": spaces.Box(0, np.inf, (2,), np.float32),
    "infinite in one dimension": spaces.Box(np.float32([-1, -np.inf]), np.float32([1, np.inf])),
    "bounds of float32 itself": spaces.Box(
        np.finfo(np.float32).min, np.finfo(np.float32).max, (2,), np.float32
    ),
    "infinite float64": spaces.Box(-np.inf, np.inf, (2,), np.float64),
    "float64 not in float32": spaces.Box(np.array([0.1]), np.array([0.3]), dtype=np.float64),
    "tiny": spaces.Box(-1e-3, 1e-3, (2,), np.float32),
    "float16": spaces.Box(-1, 1, (2,), np.float16),
    "integers": spaces.Box(-5, 5, (2,), np.int32),
    "bytes": spaces.Box(0, 255, (2,), np.uint8),
    "one point": spaces.Box(1.0, 1.0, (1,), np.float32),
    "one choice": spaces.Discrete(1, start=5),
    "negative start": spaces.Discrete(3, start=-3),
    "table with starts": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 1], [2, -2]])),
    "int8 numbers": spaces.MultiDiscrete([3, 3], dtype=np.int8),
    "table of bits": spaces.MultiBinary((2, 2, 2)),
    "tuple": spaces.Tuple((spaces.Discrete(2, start=7), spaces.Box(-1, 1, (2,)))),
    "keys out of order": spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Box(-1, 1, (1,), np.float64))]),
    "nested": spaces.Dict(
        {
            "x": spaces.Dict({"y": spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2)))}),
            "w": spaces.Box(0, np.inf, (1,)),
        }
    ),
}
third_party = pytest.mark.filterwarnings(
    "ignore:.*Casting input x to numpy array:UserWarning", "ignore:.*Getting the length:UserWarning"
)


def few_steps(spec: Any, **options: Any) -> Agent:
    """An agent after two small PPO updates; its parameters are finite."""
    return learn(spec, "ppo", 128, n_steps=8, n_epochs=2, **options)


@third_party
@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_observations(kind: str, tmp_path: Path):  # case B26
    space = OBSERVATIONS[kind]
    agent = few_steps(lambda: SpaceEnv(space))
    loaded = Agent.load(agent.save(tmp_path / "agent"))
    inner = [list(a.observation_space.spaces) for a in (agent, loaded) if isinstance(space, spaces.Dict)]
    assert not inner or inner[0] == inner[1] == list(space.spaces)  # type: ignore[attr-defined]
    space.seed(0)
    for _ in range(3):
        obs = space.sample()
        assert agent.act(obs) == loaded.act(obs)


@third_party
@pytest.mark.parametrize("vectorization", ["serial", "sync"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_actions(kind: str, vectorization: str):  # case B15: the environment asserts membership at every step
    space = ACTIONS[kind]
    env = make_env(lambda: SpaceEnv(PLAIN, space), 4, vectorization=vectorization)
    agent = Agent.assemble(env, {"type": "ppo", "n_steps": 8, "batch_size": 16, "n_epochs": 2})
    trainer = Trainer(agent, env)
    trainer.fit(64)
    trainer.close()
    assert all(bool(p.isfinite().all()) for p in agent.model.parameters())
    obs = np.zeros(2, np.float32)
    assert space.contains(agent.act(obs)) and space.contains(agent.act(obs, deterministic=False))


@pytest.mark.parametrize("distribution", ["squashed_gaussian", "beta"])
def test_squashing_what_has_no_bounds_is_refused_by_dimension(distribution: str):  # case B15
    env = make_env(lambda: SpaceEnv(PLAIN, ACTIONS["infinite in one dimension"]))
    with pytest.raises(ConfigError, match=r"dimension 1 .*inf"):
        Agent.assemble(env, policy={"distribution": distribution})
    env.close()


def test_rewards_of_every_kind_are_stored_as_float32():  # case B18
    seen: list[torch.Tensor] = []

    class Look:
        def on_batch_collected(self, trainer: Trainer, event: BatchCollected) -> None:
            seen.append(event.rollout.rows.reward.clone())

    for vectorization in ("serial", "sync"):
        env = make_env(RewardKindsEnv, kwargs={"length": 8}, vectorization=vectorization)
        trainer = Trainer(Agent.assemble(env, {"type": "ppo", "n_steps": 8}), env, callbacks=[Look()])
        trainer.fit(8)
        trainer.close()
        assert seen[-1].dtype == torch.float32 and seen[-1].flatten().tolist() == [1.0] * 8
        assert trainer.metrics["return_mean"] == 8.0


@pytest.mark.parametrize(
    "reward", [None, "1", [1.0, 2.0], np.array([1.0, 2.0]), 1j, {"a": 1}], ids=lambda reward: str(reward)
)
@pytest.mark.parametrize("vectorization", ["serial", "sync"])
def test_a_reward_that_is_no_number_is_refused_by_what_it_is(reward: Any, vectorization: str):  # case B18
    class Pays(SpaceEnv):
        def step(self, action: Any) -> Any:
            obs, _, terminated, truncated, info = super().step(action)
            return obs, reward, terminated, truncated, info

    env = make_env(lambda: Pays(PLAIN), vectorization=vectorization)
    env.reset(seed=0)
    with pytest.raises((TypeError, ValueError), match="reward"):
        env.step(np.zeros(1, np.int64))
    env.close()


def test_bytes_reach_the_network_unscaled_unless_they_are_an_image():  # case B26
    class Shows(torch.nn.Module):
        seen: torch.Tensor

        def __init__(self, obs_dim: int, act_dim: int) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(obs_dim, act_dim)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            type(self).seen = obs
            return self.layer(obs)

    agent = few_steps(lambda: SpaceEnv(spaces.Box(0, 255, (4,), np.uint8)), policy={"network": Shows})
    agent.act(np.array([0, 1, 128, 255], np.uint8))
    assert Shows.seen.tolist() == [[0.0, 1.0, 128.0, 255.0]]


def test_huge_observations_are_warned_of_at_the_start(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
):  # case B26
    class Huge(SpaceEnv):
        def __init__(self) -> None:
            super().__init__(spaces.Box(-np.inf, np.inf, (2, 5), np.float32))

        def reset(self, **options: Any) -> Any:
            obs, info = super().reset(**options)
            return np.full_like(obs, 1e6), info

    config = {"environment": {"id": Huge}, "learner": {"type": "ppo", "n_steps": 16, "batch_size": 16}}
    limits = ["training.total_timesteps=16", "training.n_eval_episodes=1"]
    with caplog.at_level(logging.WARNING, "uniarena"):
        uniarena.train(config, limits, run_dir=tmp_path / "run", quiet=True)
        assert "1e+06" in caplog.text and "normalize_observation" in caplog.text
        caplog.clear()
        config["environment"]["wrappers"] = ["normalize_observation"]  # type: ignore[index]
        uniarena.train(config, limits, run_dir=tmp_path / "scaled", quiet=True)
        assert "1e+06" not in caplog.text


MISSION = spaces.Dict({"grid": spaces.Box(0, 1, (7, 7)), "mission": spaces.Text(40)})


class Mission(SpaceEnv):
    def __init__(self) -> None:
        super().__init__(MISSION)


def test_text_is_refused_before_a_run_begins(tmp_path: Path):  # case B97
    config = {"environment": {"id": "tests.cases.test_spaces:Mission"}, "learner": {"type": "ppo"}}
    with pytest.raises(ConfigError, match="mission") as caught:
        uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    assert "register_encoder" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_text_trains_behind_a_registered_tokeniser():  # case B97
    def letters(_: spaces.Space, text: str) -> np.ndarray:
        return np.array([ord(c) % 64 for c in text[:8].ljust(8)], np.int64)

    kept: list[Batch] = []

    class Look:
        def on_batch_collected(self, trainer: Trainer, event: BatchCollected) -> None:
            kept.append(event.rollout.rows)

    register_encoder(spaces.Text, LeafEncoder(lambda _: spaces.MultiDiscrete([64] * 8), letters))
    try:
        env = make_env(Mission, 2)
        trainer = Trainer(Agent.assemble(env, {"type": "ppo", "n_steps": 8}), env, callbacks=[Look()])
        trainer.fit(16)
        trainer.close()
    finally:
        register_encoder(spaces.Text, None)
    assert kept[0].obs["mission"].dtype == torch.int64 and kept[0].obs["mission"].shape == (8, 2, 8)


def test_a_frame_object_that_only_turns_into_an_array_is_one_everywhere():  # case B25
    """Like the lazy frames of older stacking wrappers: no array, but `np.asarray` makes one."""

    class Lazy:
        def __init__(self, frames: list[np.ndarray]) -> None:
            self.frames = frames

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.stack(self.frames).astype(dtype or np.float32)

    class Stacked(SpaceEnv):
        def __init__(self) -> None:
            super().__init__(spaces.Box(-1, 1, (3, 2), np.float32))
            self.single = spaces.Box(-1, 1, (2,), np.float32)

        def reset(self, **options: Any) -> Any:
            super().reset(**options)
            return Lazy([self.single.sample()] * 3), {}

        def step(self, action: Any) -> Any:
            _, *rest = super().step(action)
            return Lazy([self.single.sample()] * 3), *rest

    kept: list[Batch] = []

    class Look:
        def on_batch_collected(self, trainer: Trainer, event: BatchCollected) -> None:
            kept.append(event.rollout.rows)

    for vectorization in ("serial", "sync"):
        env = make_env(Stacked, 2, vectorization=vectorization)
        trainer = Trainer(Agent.assemble(env, {"type": "ppo", "n_steps": 8}), env, callbacks=[Look()])
        trainer.fit(16)
        trainer.close()
        assert kept[-1].obs.shape == (8, 2, 3, 2) and kept[-1].obs.dtype == torch.float32
        assert bool((kept[-1].obs[:, :, 0] == kept[-1].obs[:, :, 2]).all())


def test_gymnasiums_frame_stack_trains_from_yaml(tmp_path: Path):  # case B25
    text = """
    environment:
      id: CartPole-v1
      wrappers: [{type: "gymnasium.wrappers:FrameStackObservation", stack_size: 4}]
    learner: {type: ppo, n_steps: 32, batch_size: 32, n_epochs: 1}
    training: {total_timesteps: 64, n_eval_episodes: 1}
    """
    (tmp_path / "stack.yaml").write_text(text)
    result = uniarena.train(tmp_path / "stack.yaml", run_dir=tmp_path / "run", quiet=True)
    agent = Agent.load(result.run, trust=True)
    obs = gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 4).reset(seed=0)[0]
    assert agent.observation_space.shape == (4, 4) and agent.act(obs) in (0, 1)
