from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tests.fakes.envs import (
    CounterEnv,
    EchoEnv,
    Float64PendulumEnv,
    HybridActionEnv,
    NestedObsEnv,
    RewardKindsEnv,
    SpaceEnv,
)
from uniarena.batch import tree_leaves, tree_paths
from uniarena.envs import SerialEnvs, make_env
from uniarena.envs.column import env_seeds


def _actions(env: Any) -> np.ndarray:
    return np.zeros(env.num_envs, np.int64)


def test_every_scalar_reward_is_stored_as_float() -> None:  # case B18
    env = make_env([lambda: RewardKindsEnv(100), lambda: RewardKindsEnv(100)])
    env.reset()
    for _ in range(8):
        reward = env.step(_actions(env)).reward
        assert reward.dtype == np.float32 and reward.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("bad", ["one", np.ones(2), {"r": 1}])
def test_a_reward_that_is_no_number_is_refused(bad: Any) -> None:
    class Odd(CounterEnv):
        def step(self, action: int) -> Any:
            obs, _, *rest = super().step(action)
            return obs, bad, *rest

    env = make_env(Odd, 2)
    env.reset()
    with pytest.raises(TypeError, match="expected one number"):
        env.step(_actions(env))


def test_discrete_start_reaches_the_environment_only() -> None:  # case B13
    env = make_env(EchoEnv, 4, kwargs={"start": -1})
    obs = env.reset(seed=3)
    for _ in range(20):
        step = env.step(obs - env.action_space.start)  # type: ignore[attr-defined]
        assert step.reward.tolist() == [1.0] * 4
        obs = step.obs.copy()
        assert set(obs) <= {-1, 0, 1}


def test_float64_all_the_way_outside_float32_inside() -> None:  # case B17
    env = make_env(Float64PendulumEnv, 2)
    assert env.observation_space.dtype == np.float32 and env.action_space.dtype == np.float64
    env.reset(seed=0)
    for _ in range(210):
        step = env.step(np.full((2, 1), 3.0, np.float32))  # the env asserts dtype and bounds
        assert step.obs.dtype == np.float32


def test_nested_observations_keep_structure_order_and_dtype() -> None:  # case B20
    env = make_env(NestedObsEnv, 3)
    obs = env.reset(seed=1)
    shapes = {path: (leaf.shape, leaf.dtype) for path, leaf in tree_paths(obs)}
    assert shapes == {
        "sensors.cam": ((3, 36, 36, 3), np.uint8),
        "sensors.pos": ((3, 3), np.float32),
        "task": ((3,), np.int64),
    }
    for _ in range(3):
        assert env.step(_actions(env)).final is None
    final = env.step(_actions(env)).final
    assert final is not None and final.index.tolist() == [0, 1, 2]
    assert [leaf.shape[0] for leaf in tree_leaves(final.obs)] == [3, 3, 3]


def test_hybrid_actions_lie_in_the_space() -> None:
    env = make_env(HybridActionEnv, 2)
    env.reset(seed=0)
    action = {
        "gear": np.array([0, 2]),
        "throttle": np.array([[-1.0, 9.0], [0.5, 0.5]], np.float32),
        "rest": (np.ones((2, 2), np.int8), np.array([[0, 0], [1, 2]])),
    }
    for _ in range(6):
        env.step(action)  # the env asserts membership


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (), np.float32),
        spaces.MultiBinary(3),
        spaces.MultiDiscrete([3, 4], start=[1, 1]),
        spaces.Tuple((spaces.Discrete(3, start=2), spaces.Box(-1, 1, (2,), np.float64))),
    ],
    ids=str,
)
def test_observation_spaces_are_stored_as_given(space: spaces.Space) -> None:
    env = make_env([lambda: SpaceEnv(space), lambda: SpaceEnv(space)])
    env.reset(seed=0)
    for _ in range(5):
        obs = env.step(_actions(env)).obs
    assert [leaf.shape[0] for leaf in tree_leaves(obs)] == [2] * len(tree_leaves(obs))


def test_the_same_object_twice_is_refused() -> None:  # case B88
    shared = CounterEnv()
    with pytest.raises(ValueError, match=r"environments 0 and 1 of .* are the same object"):
        make_env([lambda: shared] * 4)
    with pytest.raises(ValueError, match="same object"):
        make_env([lambda: gym.Wrapper(shared), lambda: shared])
    with pytest.raises(ValueError, match="same object"):
        make_env(lambda: shared, 4)
    with pytest.raises(ValueError, match="same object"):
        make_env([lambda: shared] * 2, vectorization="sync")


def test_columns_with_other_spaces_are_refused() -> None:
    with pytest.raises(ValueError, match=r"environment 1 of .* has observation_space Discrete"):
        make_env([CounterEnv, EchoEnv])


def test_final_observation_survives_an_environment_that_reuses_its_array() -> None:
    class InPlace(CounterEnv):
        shown = np.zeros(1, np.float32)

        def _obs(self) -> np.ndarray:
            self.shown[0] = self.t
            return self.shown

    env = make_env(InPlace, kwargs={"length": 2})
    env.reset()
    env.step(_actions(env))
    step = env.step(_actions(env))
    assert step.final is not None and step.final.obs.tolist() == [[2.0]] and step.obs.tolist() == [[0.0]]


def test_final_observation_is_the_receivers() -> None:
    env = make_env(CounterEnv, 2, kwargs={"length": 1})
    env.reset()
    first = env.step(_actions(env)).final
    env.step(_actions(env))
    assert first is not None and first.obs.tolist() == [[1.0], [1.0]]
    first.obs[:] = 9
    assert env.step(_actions(env)).final.obs.tolist() == [[1.0], [1.0]]  # type: ignore[union-attr]


def test_columns_get_distinct_seeds_that_do_not_depend_on_their_number() -> None:
    env = make_env(CounterEnv, 4)
    env.reset(seed=5)
    seeds = [column[-1] for column in env.get_attr("seeds")]
    assert len(set(seeds)) == 4 and seeds == env_seeds(5, 100)[:4] and env_seeds(6, 4) != env_seeds(5, 4)
    env.reset()
    assert [column[-1] for column in env.get_attr("seeds")] == [None] * 4
    assert len(set(env_seeds(0, 10_000))) == 10_000


def test_spaces_are_seeded_with_their_environment() -> None:
    env = make_env(lambda: gym.Wrapper(CounterEnv()))
    assert isinstance(env, SerialEnvs)
    draws = []
    for _ in range(2):
        env.reset(seed=1)
        draws.append([env.envs[0].unwrapped.action_space.sample() for _ in range(20)])
    assert draws[0] == draws[1]


def test_the_seed_given_at_construction_is_that_of_the_first_reset() -> None:
    one, other = make_env(EchoEnv, 2, seed=3), make_env(EchoEnv, 2)
    assert np.array_equal(one.reset(), other.reset(seed=3))


def test_metrics_and_success_become_arrays() -> None:
    env = make_env([lambda: CounterEnv(2, metrics=True), lambda: CounterEnv(2)])
    env.reset()
    first = env.step(_actions(env)).info
    assert {name: value.tolist()[0] for name, value in first.items()} == {
        "metrics/progress": 1.0,
        "is_success": 0.0,
    }
    assert all(value.dtype == np.float32 and np.isnan(value[1]) for value in first.values())
    assert env.step(_actions(env)).info["is_success"][0] == 1.0


def test_without_metrics_info_costs_nothing() -> None:
    env = make_env(CounterEnv, 2)
    env.reset()
    assert env.step(_actions(env)).info is env.step(_actions(env)).info


def test_partial_reset_touches_the_named_columns_only() -> None:
    env = make_env(CounterEnv, 3, kwargs={"length": 9})
    env.reset()
    env.step(_actions(env))
    assert env.reset(mask=np.array([False, True, False])).tolist() == [[1.0], [0.0], [1.0]]
    assert env.step(_actions(env)).obs.tolist() == [[2.0], [1.0], [2.0]]


def test_attributes_of_the_base_are_reached_through_wrappers() -> None:  # case B69
    class Forwarding(gym.Wrapper):
        def __getattr__(self, name: str) -> Any:  # an old habit that would swallow a set
            return getattr(self.env, name)

    env = make_env(CounterEnv, 2, wrappers=[gym.Wrapper, Forwarding, gym.Wrapper])
    env.set_attr("difficulty", 3)
    assert env.get_attr("difficulty") == [3, 3]
    assert [e.unwrapped.difficulty for e in env.envs] == [3, 3]  # type: ignore[attr-defined]
    assert env.call("double", 2) == [7, 7]
    env.set_attr("brand_new", [1])
    assert env.get_attr("brand_new") == [[1], [1]]
    with pytest.raises(AttributeError, match="nowhere"):
        env.get_attr("nowhere")


def test_errors_of_an_environment_name_it() -> None:
    class Breaks(CounterEnv):
        def step(self, action: int) -> Any:
            raise RuntimeError("boom")

    env = make_env([CounterEnv, Breaks])
    env.reset()
    with pytest.raises(RuntimeError, match="boom") as caught:
        env.step(_actions(env))
    assert any("environment 1" in note for note in caught.value.__notes__)


def test_a_four_tuple_step_is_explained() -> None:
    class FourTuple(CounterEnv):
        def step(self, action: int) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated or truncated, info

    env = make_env(FourTuple)
    env.reset()
    with pytest.raises(TypeError, match="terminated, truncated, info"):
        env.step(_actions(env))


def test_a_reset_without_info_is_explained() -> None:
    class Bare(CounterEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=seed)[0]

    with pytest.raises(TypeError, match=r"return observation, {}"):
        make_env(Bare, action_mask="none").reset()


def test_observations_that_do_not_fit_are_named() -> None:
    class Wrong(CounterEnv):
        def _obs(self) -> np.ndarray:
            return np.zeros(3, np.float32)

    with pytest.raises(ValueError, match=r"observation has shape \(3,\); expected \(1,\)"):
        make_env(Wrong).reset()


def test_closing_twice_is_harmless_and_closes_once() -> None:
    class Closes(CounterEnv):
        closed = 0

        def close(self) -> None:
            type(self).closed += 1

    env = make_env(Closes, 2)
    env.close()
    env.close()
    assert Closes.closed == 2


def test_render_gives_a_frame_where_asked_for() -> None:
    assert make_env(CounterEnv).render() is None
    frame = make_env(CounterEnv, kwargs={"render_mode": "rgb_array"}).render()
    assert frame is not None and frame.shape == (8, 8, 3)


def test_keys_keep_the_order_that_the_environment_states() -> None:  # case B20
    space = spaces.Dict([("z", spaces.Box(-1, 1, (1,), np.float64)), ("a", spaces.Discrete(2))])
    for how in ("serial", "sync"):
        env = make_env(lambda: SpaceEnv(space), 2, vectorization=how)
        assert list(env.observation_space.spaces) == list(env.reset()) == ["z", "a"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])
@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_a_flag_of_none_is_not_taken_for_false(vectorization: str, flag: str) -> None:
    def make() -> gym.Env:
        env = gym.make("CartPole-v1").unwrapped
        step = env.step

        def said(action: Any) -> Any:
            obs, reward, _, _, info = step(action)
            flags = (None if flag == name else False for name in ("terminated", "truncated"))
            return obs, reward, *flags, info

        env.step = said  # type: ignore[method-assign]
        return env

    env = make_env(make, 1, vectorization=vectorization)
    try:
        env.reset(seed=0)
        with pytest.raises(Exception, match=f"{flag}=None; expected a bool"):
            env.step(np.zeros(1, np.int64))
    finally:
        env.close()
