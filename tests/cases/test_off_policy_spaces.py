"""Cases B15, B17, B20, B25 and B32 through whole runs of off-policy learners: spaces, bounds, types, temperatures."""

from __future__ import annotations

import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import uniarena
from tests.fakes.envs import ContinuousTargetEnv, EchoEnv, Float64PendulumEnv, NestedObsEnv, SpaceEnv
from tests.learning.tiny import learn, score
from uniarena import Agent, Trainer, make_env
from uniarena.batch import Batch, tree_leaves
from uniarena.config import ConfigError
from uniarena.envs import UniArenaNotice

PLAIN = spaces.Box(-1.0, 1.0, (2,), np.float32)
SQUASHED = ["ddpg", "td3", "sac", "tqc", "redq", "droq"]
SHORT = {"learning_starts": 16, "batch_size": 8, "updates_per_env_step": 0.5}
INF = np.inf
WITHOUT_BOUNDS = {
    "infinite": spaces.Box(-INF, INF, (2,), np.float32),
    "float64": spaces.Box(-INF, INF, (2,), np.float64),
    "one dimension": spaces.Box(np.float32([-1, -INF]), np.float32([1, INF])),
    "one side": spaces.Box(np.float32([-1, 0]), np.float32([1, INF])),
    "as large as floats": spaces.Box(-3.4e38, 3.4e38, (2,), np.float32),
}


class Spy:
    """Keeps what the learner is given."""

    def __init__(self, agent: Agent) -> None:
        self.batches: list[Batch] = []
        inner = agent.learner.update
        agent.learner.update = lambda batch: self.batches.append(batch) or inner(batch)  # type: ignore[method-assign]


def few(make: Any, learner: str, steps: int = 64, **more: Any) -> tuple[Agent, list[Batch]]:
    """Some steps of training with finite parameters; the environment's own assertions hold meanwhile."""
    sections = {name: more.pop(name) for name in ("policy", "parts", "wrappers") if name in more}
    env = make_env(make, 2, wrappers=sections.get("wrappers", ()))
    parts = {"buffer": {"capacity": 100}, **sections.get("parts", {})}
    policy = {"hidden_sizes": [16], **sections.get("policy", {})}
    agent = Agent.assemble(env, {"type": learner, **SHORT, **more}, policy=policy, parts=parts)
    spy, trainer = Spy(agent), Trainer(agent, env)
    trainer.fit(steps)
    trainer.close()
    assert spy.batches and all(bool(p.isfinite().all()) for p in agent.learner.parameters())
    return agent, spy.batches


# -- B15 -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bounds", WITHOUT_BOUNDS)
@pytest.mark.parametrize("learner", SQUASHED)
def test_b15_without_bounds_a_squashed_policy_is_refused_before_anything_is_written(
    learner: str, bounds: str, tmp_path: Path
) -> None:
    """Case B15: by dimension, with the way out."""
    config = {
        "environment": {"id": partial(SpaceEnv, PLAIN, WITHOUT_BOUNDS[bounds])},
        "learner": {"type": learner},
    }
    with pytest.raises(ConfigError, match=r"needs finite\s+bounds") as caught:
        uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    said = " ".join(str(caught.value).split())
    assert "dimension 1" in said if "one" in bounds else "dimension 0 (and 1 more)" in said
    assert "distribution: gaussian" in said and not (tmp_path / "run").exists()


def test_b15_the_stated_way_out_works() -> None:
    """Case B15: SAC with an unsquashed Gaussian finds a target in an endless space."""
    agent = learn(
        ContinuousTargetEnv,
        "sac",
        3000,
        policy={"distribution": "gaussian", "hidden_sizes": [32]},
        parts={"explorer": {"warmup": 0}},
    )
    assert agent.act(np.ones(1, np.float32)) == pytest.approx([3.0, 3.0], abs=0.75)
    with pytest.raises(ConfigError, match="warmup: 0"):  # a random warm-up has nothing to draw from
        learn(ContinuousTargetEnv, "sac", 8, policy={"distribution": "gaussian"})


@pytest.mark.filterwarnings(
    "ignore:.*Casting input x to numpy array:UserWarning"
)  # gymnasium, of 0-d actions
@pytest.mark.parametrize("learner", ["td3", "sac"])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1e30, 1e30, (2,), np.float32),
        spaces.Box(np.float32([0, -100]), np.float32([1e-6, 900])),
        spaces.Box(-5, 5, (2,), np.int64),
        spaces.Box(-2.0, 2.0, (2,), np.float16),
        spaces.Box(-2.0, 2.0, (), np.float32),
        spaces.Box(-2.0, 2.0, (2, 3), np.float64),
        spaces.Tuple((spaces.Box(-1.0, 1.0, (2,)), spaces.Box(0.0, 9.0, (1,), np.float64))),
    ],
    ids=["huge", "uneven", "int64", "float16", "0-d", "matrix", "tuple"],
)
def test_b15_all_finite_bounds_are_like_any_others(space: Any, learner: str) -> None:
    """Case B15: the environment asserts that every action lies in its space."""
    agent, _ = few(partial(SpaceEnv, PLAIN, space), learner)
    assert space.contains(agent.act(np.zeros(2, np.float32)))


# -- B17 -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("learner", ["ddpg", "td3", "sac", "tqc"])
def test_b17_float64_spaces(learner: str) -> None:
    """Case B17: the environment asserts the type and the bounds of every action; all of ours is float32."""
    wrappers = ["normalize_observation", "normalize_reward"]
    agent, batches = few(Float64PendulumEnv, learner, 500, wrappers=wrappers, updates_per_env_step=0.2)
    for batch in batches[:3]:
        floats = [leaf for name in batch for leaf in tree_leaves(batch[name]) if leaf.is_floating_point()]
        assert {leaf.dtype for leaf in floats} == {torch.float32}
    assert {p.dtype for p in agent.learner.parameters()} == {torch.float32}
    action = agent.act(np.array([1.0, 0.0, 0.5]))
    assert action.dtype == np.float64 and agent.action_map.env_space.contains(action)


# -- B20 -----------------------------------------------------------------------------------------------------------
class Nested(SpaceEnv):
    """The nested observation with any action space."""

    def __init__(self, action: spaces.Space[Any]) -> None:
        super().__init__(NestedObsEnv().observation_space, action)


@pytest.mark.parametrize(
    ("learner", "buffer"),
    [("dqn", "replay"), ("rainbow", "prioritized"), ("sac", "replay"), ("td3", "prioritized")],
)
def test_b20_nested_observations_through_replay(learner: str, buffer: str, tmp_path: Path) -> None:
    """Case B20: replay, normalisation, and an agent's file; keys keep their order."""
    action = spaces.Discrete(3, start=2) if learner in ("dqn", "rainbow") else PLAIN
    agent, batches = few(
        partial(Nested, action),
        learner,
        wrappers=["normalize_observation"],
        parts={"buffer": {"type": buffer, "capacity": 100}},
        n_step=3,
    )
    obs = batches[-1]["obs"]
    assert list(obs) == ["sensors", "task"] and list(obs["sensors"]) == ["cam", "pos"]
    assert obs["sensors"]["cam"].dtype == torch.uint8 and obs["sensors"]["cam"].shape == (8, 36, 36, 3)
    assert list(batches[-1]["next_obs"]["sensors"]) == ["cam", "pos"]
    loaded = Agent.load(agent.save(tmp_path / "agent"))
    assert list(loaded.observation_space["sensors"].spaces) == ["cam", "pos"]  # type: ignore[index]
    agent.observation_space.seed(1)
    for _ in range(3):
        obs = agent.observation_space.sample()
        shuffled = {"task": obs["task"], "sensors": dict(reversed(obs["sensors"].items()))}
        assert np.array_equal(loaded.act(obs), agent.act(shuffled)) and action.contains(agent.act(obs))


OBSERVATIONS = {
    "start": spaces.Discrete(4, start=-2),
    "numbers": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary((2, 2)),
    "0-d": spaces.Box(-1.0, 1.0, (), np.float32),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,), np.float64))),
    "booleans": spaces.Box(0, 1, (3,), np.bool_),
    "int64": spaces.Box(-5, 5, (3,), np.int64),
}


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_b20_every_observation_space_through_replay(kind: str) -> None:
    """Case B20: values come back from replay as they went in."""
    space = OBSERVATIONS[kind]
    _, batches = few(partial(SpaceEnv, space), "dqn", n_step=2)
    for leaf in tree_leaves(batches[-1]["obs"]):
        assert leaf.shape[0] == 8 and leaf.dtype != torch.float64
    if kind == "start":
        assert set(batches[-1]["obs"].tolist()) <= {0, 1, 2, 3} | {-2, -1}


# -- B25 -----------------------------------------------------------------------------------------------------------
class Lazy:
    """Frames that only become an array when they are asked for one, as older stacking wrappers give them."""

    def __init__(self, frames: list[np.ndarray]) -> None:
        self.frames = frames

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.stack(self.frames).astype(dtype or np.float32)


class LazyStack(gym.Wrapper[Any, Any, Any, Any]):
    """A stacking wrapper of a user, whose observations are `Lazy`."""

    def __init__(self, env: gym.Env[Any, Any], n: int = 4) -> None:
        super().__init__(env)
        self.observation_space, self.n = spaces.Box(-INF, INF, (n, 4), np.float32), n
        self.kept: list[np.ndarray] = []

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        self.kept = [obs] * self.n
        return Lazy(self.kept), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        self.kept = [*self.kept[1:], obs]
        return Lazy(self.kept), *rest


@pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])
@pytest.mark.parametrize("how", ["gymnasium", "ours", "lazy"])
def test_b25_dqn_on_stacked_frames_keeps_each_once(how: str, vectorization: str) -> None:
    """Case B25: whatever object the stack is, it is converted once; known stacks cost one frame a step."""
    wrappers: list[Any] = {
        "gymnasium": [{"type": "gymnasium.wrappers:FrameStackObservation", "stack_size": 4}],
        "ours": [{"type": "frame_stack", "n_frames": 4, "new_axis": True, "axis": 0}],
        "lazy": [LazyStack],
    }[how]
    env = make_env("CartPole-v1", 2, vectorization=vectorization, wrappers=wrappers)
    learner = {"type": "dqn", **SHORT, "n_step": 2}
    agent = Agent.assemble(env, learner, policy={"hidden_sizes": [8]}, parts={"buffer": {"capacity": 60}})
    spy, trainer = Spy(agent), Trainer(agent, env)
    trainer.fit(100)
    trainer.close()
    obs, later = spy.batches[-1]["obs"], spy.batches[-1]["next_obs"]
    assert obs.shape == (8, 4, 4) and obs.dtype == torch.float32
    one = spy.batches[-1]["n"] == 1
    assert torch.equal(later[one][:, :3], obs[one][:, 1:]), "the next stack goes on from this one"
    ring = agent.buffer.ring
    stored = ring.layout.obs_bytes + sum(each.nbytes for each in ring.stacked)
    assert stored == (64 if how == "lazy" else 16)


# -- B32 -----------------------------------------------------------------------------------------------------------
def two_actions(**fields: Any) -> tuple[Agent, dict[str, float]]:
    env = make_env(partial(EchoEnv, n=2, length=1), 4)
    section = {
        "type": "sac",
        "learning_starts": 40,
        "batch_size": 32,
        "gamma": 0.9,
        "learning_rate": 1e-2,
        **fields,
    }
    agent = Agent.assemble(env, section, policy={"hidden_sizes": [16]}, parts={"buffer": {"capacity": 800}})
    trainer = Trainer(agent, env)
    trainer.fit(800)
    trainer.close()
    return agent, trainer.metrics


def test_b32_the_default_entropy_of_two_actions_can_be_kept() -> None:
    """Case B32: the temperature stays small, and the policy may prefer what is right."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UniArenaNotice)
        agent, metrics = two_actions()
    assert 0.0 < metrics["alpha"] < 2.0 and abs(metrics["q"]) < 20.0
    assert [agent.act(symbol) for symbol in (0, 1)] == [0, 1]


@pytest.mark.parametrize("share", [0.98, 1.0, 1.5])
def test_b32_an_entropy_that_is_hard_or_impossible_to_keep(share: float) -> None:
    """Case B32: told, once, and bounded; nothing becomes infinite."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UniArenaNotice)
        fields = {
            "target_entropy": share * math.log(2.0),
            "alpha_learning_rate": 0.2,
            "alpha_bounds": [1e-6, 5.0],
        }
        agent, metrics = two_actions(**fields)
    said = [str(w.message) for w in told if "target_entropy" in str(w.message)]
    assert metrics["alpha"] <= 5.0 + 1e-4 and math.isfinite(metrics["q"])
    assert len(said) == (share >= 1.0) or (share < 1.0 and len(said) <= 1)
    assert all(bool(p.isfinite().all()) for p in agent.learner.parameters())


@pytest.mark.parametrize("bound", [1e-3, 1e-6, 1e3])
def test_b32_bounds_of_any_size_give_the_same_temperature(bound: float) -> None:
    """Case B32: the same task in other units."""

    class Scaled(ContinuousTargetEnv):
        def step(self, action: np.ndarray) -> Any:
            obs, _, *rest = super().step(action)
            return obs, -float(np.abs(action / bound - 0.5).sum()), *rest

    spec = partial(Scaled, bound=bound, target=0.0)
    agent = learn(spec, "sac", 1600)
    assert agent.act(np.ones(1, np.float32)) / bound == pytest.approx([0.5, 0.5], abs=0.25)
    assert agent.learner.temperature.alpha < 1.0
    assert score(agent, spec, 1).return_mean > -0.5
