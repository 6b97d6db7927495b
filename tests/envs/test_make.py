import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TransformReward

from tests.fakes.envs import CounterEnv, CounterVectorEnv, SpaceEnv, TensorCounter
from uniarena import registry
from uniarena.config import ConfigError
from uniarena.envs import (
    Env,
    LeafEncoder,
    SerialEnvs,
    TensorEnvs,
    UniArenaNotice,
    VectorEnvs,
    make_env,
    register_encoder,
)
from uniarena.envs import ids as ids_module


def _zeros(env: Env) -> np.ndarray:
    return np.zeros(env.num_envs, np.int64)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's module on the path, which registers an id when it is imported."""
    name = "users_own_module"
    (tmp_path / f"{name}.py").write_text(
        "import gymnasium\n"
        "from tests.fakes.envs import CounterEnv as MyEnv, CounterVectorEnv as MyVector\n"
        "def factory(length=4):\n    return MyEnv(length)\n"
        "gymnasium.register('UsersOwn-v0', entry_point=MyEnv, kwargs={'length': 2})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)
    gym.registry.pop("UsersOwn-v0", None)


@pytest.mark.parametrize("form", ["MyEnv", "factory", "UsersOwn-v0"])
def test_import_paths_of_classes_functions_and_ids(module: str, form: str) -> None:
    env = make_env(f"{module}:{form}", 3, kwargs={"length": 2})
    assert isinstance(env, SerialEnvs) and env.num_envs == 3 and env.env_id == f"{module}:{form}"
    env.reset()
    env.step(_zeros(env))
    assert env.step(_zeros(env)).terminated.all()


def test_import_paths_of_vector_classes_get_the_number(module: str) -> None:
    env = make_env(f"{module}:MyVector", 5)
    assert isinstance(env, VectorEnvs) and env.num_envs == 5


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:MyEnv", "there is no module 'no_such_module'"),
        ("users_own_module:MyEnf", "did you mean users_own_module:MyEnv"),
    ],
)
def test_wrong_import_paths_are_explained(module: str, path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(path)


def test_ids_of_tensor_simulators() -> None:
    gym.register("UsersSim-v0", entry_point=_GymSim)
    try:
        env = make_env("UsersSim-v0", vectorization="tensor", kwargs={"num_envs": 7})
        assert isinstance(env, TensorEnvs) and env.num_envs == 7
        with pytest.raises(ConfigError, match="no tensor form"):
            make_env("Acrobot-v1", vectorization="tensor")
    finally:
        gym.registry.pop("UsersSim-v0")


class _GymSim(TensorCounter, gym.Env):
    """A tensor simulator that claims to be a Gymnasium environment, as Isaac Lab's do."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, final="dense")


def test_registered_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._registered["env"], "my_counter", CounterEnv)
    env = make_env("my_counter", 2)
    assert env.env_id == "my_counter" and env.num_envs == 2


def test_unknown_ids_get_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean CartPole-v1"):
        make_env("CartPool-v1")


def test_old_ids_become_todays_with_a_notice() -> None:
    with pytest.warns(UniArenaNotice, match="CartPole-v1 is used in its place"):
        env = make_env("CartPole-v0")
    assert env.env_id == "CartPole-v1"


@pytest.mark.parametrize("env_id", ["pettingzoo/simple_spread_v3", "pistonball_v6", "mpe2/simple_tag_v3"])
def test_ids_of_several_agents_are_answered(env_id: str) -> None:
    with pytest.raises(ConfigError, match="several agents"):
        make_env(env_id)


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("MinAtar/Breakout-v1", "minatar", "minatar"),
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
        ("BabyAI-GoToObj-v0", "minigrid", "minigrid"),
        ("dm_control/cartpole-swingup", "dm_control", "dm-control"),
        ("metaworld/reach-v3", "metaworld", "metaworld"),
        ("envpool/Pong-v5", "envpool", "envpool"),
        ("procgen/coinrun", "envpool", "envpool"),
        ("procgen-coinrun-v0", "envpool", "envpool"),
        ("gym/CartPole-v1", "gym", "legacy-gym"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    env_id: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError) as caught:
        make_env(env_id)
    assert package in str(caught.value) and f'pip install "uniarena[{extra}]"' in str(caught.value)


def test_objects_of_every_kind() -> None:
    assert isinstance(make_env(CounterEnv()), SerialEnvs)
    assert isinstance(make_env(CounterVectorEnv(3), 3), VectorEnvs)
    assert isinstance(make_env(TensorCounter(3, final="dense")), TensorEnvs)
    assert isinstance(make_env(lambda: CounterVectorEnv(3)), VectorEnvs)
    assert isinstance(make_env(lambda: CounterEnv(), 2), SerialEnvs)
    ours = make_env(CounterEnv, 2)
    assert make_env(ours) is ours


@pytest.mark.parametrize(
    ("spec", "options", "path"),
    [
        (CounterEnv(), {"num_envs": 2}, "num_envs"),
        (CounterVectorEnv(3), {"num_envs": 2}, "num_envs"),
        ([CounterEnv, CounterEnv], {"num_envs": 3}, "num_envs"),
        (CounterEnv, {"num_envs": 0}, "num_envs"),
        (CounterEnv, {"vectorization": "parallel"}, "vectorization"),
        (CounterEnv, {"vectorization": "tensor"}, "vectorization"),
        (CounterEnv, {"vectorization": "native"}, "vectorization"),
        ("Acrobot-v1", {"vectorization": "native"}, "vectorization"),
        (CounterVectorEnv(3), {"vectorization": "async"}, "vectorization"),
        (CounterVectorEnv(3), {"max_episode_steps": 3}, "max_episode_steps"),
        (CounterVectorEnv(3), {"wrappers": [gym.Wrapper]}, "wrappers"),
        (CounterEnv, {"kwargs": {"lenght": 3}}, "kwargs.lenght"),
        (lambda length=1: CounterEnv(length), {"kwargs": {"lenght": 3}}, "kwargs.lenght"),
        ("CartPole-v1", {"kwargs": {"gravity": 3}}, "kwargs.gravity"),
        (CounterEnv(), {"kwargs": {"length": 3}}, "kwargs"),
        (CounterEnv, {"wrappers": ["time_limit_of_mine"]}, "wrappers"),
    ],
)
def test_what_cannot_work_names_the_config_path(spec: Any, options: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_env(spec, **options)
    assert caught.value.path.startswith(f"environment.{path}"), caught.value.path


def test_the_time_limit_replaces_the_one_of_an_id() -> None:
    for limit in (3, 700):
        env = make_env("CartPole-v1", max_episode_steps=limit)
        assert env.envs[0].get_wrapper_attr("_max_episode_steps") == limit  # type: ignore[attr-defined]
    env = make_env(CounterEnv, kwargs={"length": 9}, max_episode_steps=2)
    env.reset()
    env.step(_zeros(env))
    assert env.step(_zeros(env)).truncated.tolist() == [True]


@pytest.mark.parametrize("how", ["serial", "sync", "async"])
def test_gymnasium_wrappers_go_around_each_environment(how: str) -> None:
    wrappers = [
        {"type": "gymnasium.wrappers:TimeLimit", "max_episode_steps": 1},
        lambda env: TransformReward(env, lambda reward: 2 * reward),
    ]
    env = make_env(CounterEnv, 2, wrappers=wrappers, vectorization=how)
    try:
        env.reset()
        step = env.step(_zeros(env))
        assert step.truncated.all() and step.reward.tolist() == [2.0, 2.0]
    finally:
        env.close()


def test_our_wrappers_come_after_gymnasiums() -> None:
    ours = {"type": "scale_reward", "scale": 0.5}
    env = make_env(CounterEnv, 2, wrappers=[gym.Wrapper, ours])
    env.reset()
    assert env.step(_zeros(env)).reward.tolist() == [0.5, 0.5]
    with pytest.raises(ConfigError, match="list gymnasium wrappers first"):
        make_env(CounterEnv, 2, wrappers=[ours, gym.Wrapper])


def test_wrappers_by_any_spelling() -> None:
    env = make_env(CounterEnv, 2, wrappers=["NormalizeObservation", "normalize_reward"])
    assert type(env).__name__ == "NormalizeReward"


def test_a_failing_wrapper_closes_what_was_made() -> None:
    class Closes(CounterEnv):
        closed = 0

        def close(self) -> None:
            type(self).closed += 1

    with pytest.raises(ConfigError):
        make_env(Closes, 2, wrappers=[{"type": "scale_reward", "nonsense": 1}])
    assert Closes.closed == 2


def test_text_is_refused_or_encoded_by_a_registered_tokeniser() -> None:  # case B97
    space = spaces.Dict({"grid": spaces.Box(0, 1, (7, 7)), "mission": spaces.Text(40)})
    for how in ("serial", "sync", "async"):
        with pytest.raises(ConfigError, match="'mission' is Text"):
            make_env(lambda: SpaceEnv(space), 2, vectorization=how)
    with pytest.raises(ConfigError, match="Text"):
        make_env(SyncVectorEnv([lambda: SpaceEnv(space)]))

    def letters(_: spaces.Space, text: str) -> np.ndarray:
        return np.array([ord(c) % 64 for c in text[:8].ljust(8)], np.int64)

    register_encoder(spaces.Text, LeafEncoder(lambda _: spaces.MultiDiscrete([64] * 8), letters))
    try:
        env = make_env(lambda: SpaceEnv(space), 2)
        obs = env.reset(seed=0)
        assert obs["mission"].shape == (2, 8) and obs["mission"].dtype == np.int64
        assert env.observation_space["mission"] == spaces.MultiDiscrete([64] * 8)  # type: ignore[index]
        assert env.step(_zeros(env)).obs["mission"].dtype == np.int64
    finally:
        register_encoder(spaces.Text, None)


def test_a_fixed_mission_is_left_out_and_an_instruction_is_not() -> None:
    from uniarena.envs.minigrid import without_fixed_mission

    class Mission(spaces.Text):
        ordered_placeholders: Any = None

    grid = {"image": spaces.Box(0, 255, (2, 2, 3), np.uint8)}
    fixed = SpaceEnv(spaces.Dict({**grid, "mission": Mission(9)}))
    with pytest.warns(UniArenaNotice, match="mission"):
        env = without_fixed_mission(fixed, "MiniGrid-Empty")
    assert list(env.observation_space.spaces) == ["image"]  # type: ignore[attr-defined]
    assert list(env.reset(seed=0)[0]) == ["image"]
    asked = Mission(9)
    asked.ordered_placeholders = [["red", "blue"]]
    kept = without_fixed_mission(SpaceEnv(spaces.Dict({**grid, "mission": asked})), "BabyAI-GoTo")
    assert type(kept.observation_space["mission"]) is spaces.Text  # type: ignore[index]
    with pytest.raises(ConfigError, match="'mission' is Text"):
        make_env(
            lambda: without_fixed_mission(SpaceEnv(spaces.Dict({**grid, "mission": asked})), "BabyAI-GoTo")
        )


def test_procgen_names_become_envpool_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids_module, "_import", lambda *_: None)
    tasks = {name: ids_module.resolve(name).task for name in ("procgen/coinrun-easy", "procgen-starpilot-v0")}
    assert tasks == {"procgen/coinrun-easy": "CoinrunEasy-v0", "procgen-starpilot-v0": "StarpilotHard-v0"}
