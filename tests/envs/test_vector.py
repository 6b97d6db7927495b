import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from tests.fakes.envs import CounterEnv, CounterVectorEnv, EchoEnv, NestedObsEnv, RewardKindsEnv, SpaceEnv
from uniarena.batch import tree_leaves, tree_map
from uniarena.config import ConfigError
from uniarena.envs import Env, UniArenaNotice, VectorEnvs, WorkerError, make_env

MODES = [mode.value for mode in AutoresetMode]


@pytest.fixture
def opened() -> Iterator[Callable[[Env], Env]]:
    """Closes what a test opens."""
    envs: list[Env] = []

    def keep(env: Env) -> Env:
        envs.append(env)
        return env

    yield keep
    for env in envs:
        env.close()


def _zeros(env: Env) -> np.ndarray:
    return np.zeros(env.num_envs, np.int64)


@pytest.mark.parametrize("how", ["serial", "sync", "async"])
def test_the_same_seed_gives_the_same_run_in_every_local_form(how: str, opened: Any) -> None:
    reference, env = opened(make_env(EchoEnv, 3)), opened(make_env(EchoEnv, 3, vectorization=how))
    for seed in (4, 5):
        a, b = reference.reset(seed=seed), env.reset(seed=seed)
        for _ in range(20):
            assert np.array_equal(a, b)
            one, other = reference.step(a.copy()), env.step(b.copy())
            assert np.array_equal(one.reward, other.reward)
            a, b = one.obs, other.obs


@pytest.mark.parametrize("how", ["sync", "async"])
def test_nested_observations_are_batched_alike(how: str, opened: Any) -> None:  # case B20, B66
    reference, env = opened(make_env(NestedObsEnv, 2)), opened(make_env(NestedObsEnv, 2, vectorization=how))
    reference.reset(seed=0), env.reset(seed=0)
    for t in range(9):
        one, other = reference.step(_zeros(env)), env.step(_zeros(env))
        for a, b in zip(tree_leaves(one.obs), tree_leaves(other.obs), strict=True):
            assert np.array_equal(a, b) and a.dtype == b.dtype
        if t % 4 == 3:
            assert one.final is not None and other.final is not None
            pairs = zip(tree_leaves(one.final.obs), tree_leaves(other.final.obs), strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_nested_and_float64_observations_in_all_modes(kind: Any, mode: str, opened: Any) -> None:
    space = spaces.Dict(
        {
            "x": spaces.Box(-1, 1, (2,), np.float64),
            "t": spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(0, 255, (2, 2), np.uint8))),
        }
    )
    env = opened(make_env(kind([lambda: SpaceEnv(space)] * 2, autoreset_mode=mode)))
    stored = env.observation_space
    env.reset(seed=0)
    for _ in range(11):
        step = env.step(_zeros(env))
        rows = [step.obs] + ([step.final.obs] if step.final is not None else [])
        for tree in rows:
            assert tree["x"].dtype == np.float32 and isinstance(tree["t"], tuple)
            assert all(
                stored.contains(tree_map(lambda leaf, b=b: leaf[b], tree)) for b in range(len(tree["x"]))
            )


@pytest.mark.parametrize(
    "leaf", [spaces.Text(4), spaces.Graph(spaces.Discrete(2), None), spaces.Sequence(spaces.Discrete(2))]
)
@pytest.mark.parametrize("how", ["serial", "async"])
def test_unsupported_spaces_are_refused_before_a_worker_starts(leaf: Any, how: str) -> None:  # case B66
    with pytest.raises(ConfigError, match=type(leaf).__name__):
        make_env(lambda: SpaceEnv(leaf), 2, vectorization=how)
    assert not multiprocessing.active_children()


def _partial(mode: str) -> dict[str, Callable[[], VectorEnv]]:
    counters = [lambda: CounterEnv(4)] * 3
    return {
        "sync": lambda: SyncVectorEnv(counters, autoreset_mode=mode),
        "async": lambda: AsyncVectorEnv(counters, autoreset_mode=mode),
        "native": lambda: CounterVectorEnv(3, (4, 4, 4), mode),
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sync", "async", "native"])
def test_partial_reset(kind: str, mode: str, opened: Any) -> None:
    env = opened(make_env(_partial(mode)[kind]()))
    env.reset(seed=0)
    for _ in range(3):
        env.step(_zeros(env))
    mask = np.array([True, False, False])
    if kind == "native" and mode != "Disabled":
        assert not env.partial_reset
        with pytest.raises(ValueError, match="cannot reset single environments"):
            env.reset(mask=mask)
        assert env.reset(mask=np.ones(3, bool)).tolist() == [[0.0]] * 3
        return
    assert env.partial_reset
    assert env.reset(mask=mask).tolist() == [[0.0], [3.0], [3.0]]
    step = env.step(_zeros(env))
    assert step.final.index.tolist() == [1, 2] and step.valid is None
    assert env.reset(mask=~mask).tolist() == [[1.0], [0.0], [0.0]]
    step = env.step(_zeros(env))  # the pending autoreset of those two is off
    assert step.valid is None and step.obs.tolist() == [[2.0], [1.0], [1.0]]


def test_an_end_found_by_reset_is_not_reset_again(opened: Any) -> None:
    env = opened(make_env(CounterVectorEnv(1, (1,), "NextStep")))
    env.reset()
    env.step(_zeros(env))
    env.reset()
    assert env.step(_zeros(env)).valid is None


def test_episode_lengths_and_returns(opened: Any) -> None:  # case B09
    env = opened(make_env(SyncVectorEnv([lambda: CounterEnv(3)], autoreset_mode="SameStep")))
    env.reset()
    lengths, returns, length, total = [], [], 0, 0.0
    for _ in range(15):
        step = env.step(_zeros(env))
        length, total = length + 1, total + float(step.reward[0])
        if step.terminated[0]:
            lengths.append(length), returns.append(total)
            length, total = 0, 0.0
    assert lengths == [3] * 5 and returns == [3.0] * 5


@pytest.mark.parametrize("how", ["sync", "async"])
def test_metrics_travel_as_floats_whatever_came_first(how: str, opened: Any) -> None:
    class Metrics(CounterEnv):
        def step(self, action: int) -> Any:
            obs, reward, terminated, truncated, _ = super().step(action)
            half = self.difficulty + 0.5 if self.difficulty else 0  # an int in column 0, a float in column 1
            info = {"metrics": {"half": half, "name": "text"}, "is_success": terminated, "junk": object}
            return obs, reward, terminated, truncated, info

    def make(difficulty: int) -> CounterEnv:
        env = Metrics(2)
        env.difficulty = difficulty
        return env

    env = opened(make_env([lambda: make(0), lambda: make(1)], vectorization=how))
    env.reset()
    assert {k: v.tolist() for k, v in env.step(_zeros(env)).info.items()} == {
        "metrics/half": [0.0, 1.5],
        "is_success": [0.0, 0.0],
    }
    assert env.step(_zeros(env)).info["is_success"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("mode", MODES)
def test_metrics_of_a_vector_environment_as_it_is(mode: str, opened: Any) -> None:
    makes = [lambda: CounterEnv(2, metrics=True), lambda: CounterEnv(3)]
    env = opened(make_env(SyncVectorEnv(makes, autoreset_mode=mode)))
    env.reset()
    rows = [env.step(_zeros(env)) for _ in range(2)]
    assert [row.info["metrics/progress"][0] for row in rows] == [1.0, 2.0]
    assert [row.info["is_success"][0] for row in rows] == [0.0, 1.0]
    assert np.isnan(rows[0].info["metrics/progress"][1])


@pytest.mark.parametrize("how", ["serial", "sync", "async"])
def test_base_attributes_in_all_vector_modes(how: str, opened: Any) -> None:  # case B69
    env = opened(make_env(CounterEnv, 2, vectorization=how, wrappers=[gym.Wrapper] * 3))
    env.set_attr("difficulty", 3)
    assert env.get_attr("difficulty") == [3, 3] and env.call("double", 2) == [7, 7]
    env.set_attr("actions", [1, 2])  # a list is one value for all
    assert env.get_attr("actions") == [[1, 2]] * 2


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_base_attributes_of_a_given_vector_environment(kind: Any, opened: Any) -> None:
    env = opened(make_env(kind([lambda: gym.Wrapper(CounterEnv())] * 2)))
    env.set_attr("difficulty", 3)
    assert env.get_attr("difficulty") == [3, 3] and env.call("double", 2) == [7, 7]


def test_base_attributes_of_a_native_one(opened: Any) -> None:
    env = opened(make_env(RecordEpisodeStatistics(CounterVectorEnv(2))))
    env.set_attr("end", "truncation")
    assert env.get_attr("end") == ["truncation"]
    env.reset()
    assert env.step(_zeros(env)).truncated.tolist() == [True, False]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_every_scalar_reward_passes(how: str, opened: Any) -> None:  # case B18
    env = opened(make_env(RewardKindsEnv, kwargs={"length": 100}, vectorization=how))
    env.reset()
    assert [env.step(_zeros(env)).reward.tolist() for _ in range(8)] == [[1.0]] * 8


def test_final_observation_of_a_worker_that_reuses_its_array(opened: Any) -> None:
    class InPlace(CounterEnv):
        shown = np.zeros(1, np.float32)

        def _obs(self) -> np.ndarray:
            self.shown[0] = self.t
            return self.shown

    for how in ("sync", "async"):
        env = opened(make_env(InPlace, kwargs={"length": 2}, vectorization=how))
        env.reset()
        env.step(_zeros(env))
        assert env.step(_zeros(env)).final.obs.tolist() == [[2.0]]


def test_same_step_without_final_observations_is_an_error(opened: Any) -> None:
    class Lost(CounterVectorEnv):
        def step(self, actions: Any) -> Any:
            return (*super().step(actions)[:4], {})

    env = opened(make_env(Lost(2, (1, 2), "SameStep")))
    env.reset()
    with pytest.raises(ValueError, match="final_obs"):
        env.step(_zeros(env))


def test_dense_final_observations_are_understood(opened: Any) -> None:
    class Dense(CounterVectorEnv):
        def step(self, actions: Any) -> Any:
            *rest, info = super().step(actions)
            if info:
                filled = [[0.0] if row is None else row for row in info["final_obs"]]
                info = {"final_obs": np.array(filled, np.float32)}
            return (*rest, info)

    env = opened(make_env(Dense(3, (1, 2, 2), "SameStep")))
    env.reset()
    assert env.step(_zeros(env)).final.obs.tolist() == [[1.0]]
    assert env.step(_zeros(env)).final.obs.tolist() == [[1.0], [2.0], [2.0]]


def test_a_vector_environment_that_does_not_say_how_it_resets(opened: Any) -> None:
    vector = CounterVectorEnv(2, (1, 2), "NextStep")
    vector.metadata = {}
    with pytest.warns(UniArenaNotice, match="autoreset_mode"):
        env = opened(make_env(vector))
    env.reset()
    env.step(_zeros(env))
    assert env.step(_zeros(env)).valid.tolist() == [False, True]


def test_a_killed_worker_of_a_given_one_is_named_and_close_leaves_no_process() -> None:
    env = make_env(AsyncVectorEnv([CounterEnv] * 2))
    assert isinstance(env, VectorEnvs)
    env.reset()
    process = env.vector.processes[1]  # type: ignore[attr-defined]
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with pytest.raises(WorkerError, match=r"1 \(exit code -9\)"):
        for _ in range(2):
            env.step(_zeros(env))
    env.close()
    assert not multiprocessing.active_children()


_SCRIPT = """
import gymnasium as gym, multiprocessing, numpy as np
from uniarena.envs import make_env

class Local(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}
    def step(self, action):
        return np.ones(1, np.float32), 1.0, False, False, {}

if __name__ == "__main__":
    gym.register("OnlyInTheParent-v0", entry_point=Local, max_episode_steps=2)
    multiprocessing.set_start_method("spawn")
    for spec in ("OnlyInTheParent-v0", lambda: Local()):
        env = make_env(spec, 2, vectorization="async")
        env.reset(seed=0)
        steps = [env.step(np.zeros(2, np.int64)) for _ in range(2)]
        env.close()
        print(steps[-1].truncated.tolist())
"""


def test_ids_and_lambdas_of_the_parent_work_in_spawned_workers(tmp_path: Path) -> None:  # case B65
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[True, True]", "[False, False]"]


def test_render_gives_the_first_frame(opened: Any) -> None:
    for how in ("sync", "async"):
        assert opened(make_env(CounterEnv, vectorization=how)).render() is None
        env = opened(make_env(CounterEnv, 2, kwargs={"render_mode": "rgb_array"}, vectorization=how))
        env.reset()
        assert env.render().shape == (8, 8, 3)


@pytest.mark.parametrize("how", ["serial", "native"])
def test_cartpole_by_its_native_entry_point(how: str, opened: Any) -> None:
    env = opened(make_env("CartPole-v1", 3, vectorization=how, max_episode_steps=4))
    env.reset(seed=0)
    ends = [bool(env.step(_zeros(env)).truncated.all()) for _ in range(4)]
    assert ends == [False, False, False, True]
