import random
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tests.fakes.envs import CounterEnv, CounterVectorEnv, EchoEnv, MaskInfoEnv, NestedObsEnv
from uniarena.batch import tree_leaves
from uniarena.envs import Env, make_env
from uniarena.envs.native import NativeStateError, load_native, native_state

CONTROL = ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0"]
TOY = ["FrozenLake-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1"]


def continue_alike(make: Callable[[], Env], before: int = 30, after: int = 60) -> None:
    """Half a run, its state put into a new environment, the other half: the same numbers to the bit."""
    one, other = make(), make()
    try:
        one.reset(seed=1)
        draw = np.random.default_rng(0)

        def act() -> Any:
            rows = []
            for _ in range(one.num_envs):
                one.action_map.policy_space.seed(int(draw.integers(2**31)))
                rows.append(one.action_map.policy_space.sample())
            return np.stack([np.asarray(row) for row in rows])

        for _ in range(before):
            one.step(act())
        state = one.state_dict()
        assert state is not None
        assert_plain(state)
        one.step(act())  # what happens later must not be in the state
        draw = np.random.default_rng(0)
        for _ in range(before):
            act()
        one.load_state_dict(state)
        other.load_state_dict(state)
        for _ in range(after):
            action = act()
            a, b = one.step(action), other.step(action)
            same = zip(tree_leaves(a.obs), tree_leaves(b.obs), strict=True)
            assert all(np.array_equal(x, y) for x, y in same)
            for x, y in zip(a[1:6], b[1:6], strict=True):
                assert np.array_equal(x, y)
    finally:
        one.close(), other.close()


def assert_plain(value: Any) -> None:
    if isinstance(value, dict):
        assert all(isinstance(key, (str, int)) for key in value)
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            assert_plain(item)
        return
    assert value is None or isinstance(
        value, (bool, int, float, str, np.ndarray, np.generic, torch.Tensor)
    ), value
    if isinstance(value, (np.ndarray, np.generic)):
        assert value.dtype.kind in "biuf"


@pytest.mark.parametrize("how", ["serial", "sync", "async"])
@pytest.mark.parametrize("env_id", CONTROL)
def test_classic_control_continues_exactly(env_id: str, how: str) -> None:
    continue_alike(lambda: make_env(env_id, 2, vectorization=how))


@pytest.mark.parametrize("env_id", TOY)
def test_toy_text_continues_exactly(env_id: str) -> None:
    continue_alike(lambda: make_env(env_id, 2))


def test_native_cartpole_continues_exactly() -> None:
    continue_alike(lambda: make_env("CartPole-v1", 3, vectorization="native"))


@pytest.mark.parametrize("cls", [EchoEnv, NestedObsEnv, MaskInfoEnv])
@pytest.mark.parametrize("how", ["serial", "sync", "async"])
def test_plain_python_environments_continue_exactly(cls: Any, how: str) -> None:
    if cls is MaskInfoEnv:
        env = make_env(cls, 2, vectorization=how)
        env.reset()
        env.step(np.zeros(2, np.int64))
        assert env.state_dict() is not None
        env.close()
        return
    continue_alike(lambda: make_env(cls, 2, vectorization=how))


@pytest.mark.parametrize("mode", [mode.value for mode in AutoresetMode])
def test_given_vectors_continue_in_every_mode(mode: str) -> None:
    counters = [lambda n=n: CounterEnv([n, n + 1]) for n in (1, 2, 3)]
    for before in (5, 6, 7):  # with and without a reset that is due
        continue_alike(lambda: make_env(SyncVectorEnv(counters, autoreset_mode=mode)), before)
        continue_alike(lambda: make_env(CounterVectorEnv(3, (1, 2, 3), mode)), before)


def test_a_partial_reset_after_loading_keeps_the_other_observations() -> None:
    for how in ("serial", "sync", "async"):
        one, other = (make_env(CounterEnv, 2, kwargs={"length": 9}, vectorization=how) for _ in range(2))
        one.reset(seed=0)
        one.step(np.zeros(2, np.int64))
        other.load_state_dict(one.state_dict())  # type: ignore[arg-type]
        assert other.reset(mask=np.array([True, False])).tolist() == [[0.0], [1.0]]
        one.close(), other.close()


class Phase(Enum):
    NIGHT = 1
    DAY = 2


class _Everything(CounterEnv):
    """Attributes of every kind that is plain."""

    def __init__(self) -> None:
        super().__init__()
        self.deque = deque([1, 2], maxlen=3)
        self.nested = {"a": [1, (2.5, None)], 3: {"x": np.arange(3)}, (0, 1): "tuple key"}
        self.ordered = OrderedDict(z=1, a=2)
        self.legacy, self.python, self.torch = np.random.RandomState(0), random.Random(0), torch.Generator()
        self.scalar, self.words, self.tensor = np.float32(2), np.array(["ab", "c"]), torch.arange(3.0)
        self.phase = Phase.NIGHT
        self.function, self.cls, self.own = len, CounterEnv, self.double
        self.part = type("Part", (), {})()
        self.part.speed, self.part.owner = 1.0, self

    def step(self, action: int) -> Any:
        obs, _, *rest = super().step(action)
        self.deque.append(self.t)
        self.nested["a"].append(self.t)
        self.phase = Phase.DAY if self.phase is Phase.NIGHT else Phase.NIGHT
        self.part.speed *= 1.5
        self.tensor += 1
        draws = (self.legacy.rand(), self.python.random(), torch.rand(1, generator=self.torch).item())
        reward = sum(draws) + self.part.speed + sum(self.deque) + self.phase.value + self.nested["a"][-1]
        return obs, reward + float(self.tensor.sum()) + self.np_random.random(), *rest


def test_every_kind_of_plain_attribute() -> None:
    continue_alike(lambda: make_env(_Everything, 2), before=7)


def test_attributes_come_back_as_they_were() -> None:
    one, other = _Everything(), _Everything()
    one.reset(seed=0), other.reset(seed=9)
    one.step(0)
    other.later = 3  # type: ignore[attr-defined]
    load_native(other, native_state(one))  # type: ignore[arg-type]
    assert other.nested.keys() == one.nested.keys() and other.nested[3]["x"].tolist() == [0, 1, 2]
    assert other.deque == one.deque and other.deque.maxlen == 3 and type(other.ordered) is OrderedDict
    assert other.phase is Phase.DAY and other.words.tolist() == ["ab", "c"]
    assert type(other.scalar) is np.float32 and other.function is len and other.cls is CounterEnv
    assert other.part.owner is other and not hasattr(other, "later")


def _with(**attributes: Any) -> CounterEnv:
    env = CounterEnv()
    for name, value in attributes.items():
        setattr(env, name, value)
    env.reset(seed=0)
    return env


_shared = np.zeros(3)


@pytest.mark.parametrize(
    "attributes",
    [
        {"iterator": iter([1])},
        {"file": open(__file__)},  # noqa: SIM115
        {"a": _shared, "b": _shared},
        {"a": _shared, "b": _shared[1:]},
        {"a": (shared := [1]), "b": shared},
        {"objects": np.array([None, {}], object)},
        {"system": random.SystemRandom()},
        {"closure": (lambda box: lambda: box)([1])},
        {"things": [CounterEnv()]},
        {"slotted": type("S", (), {"__slots__": ("x",)})()},
        {"kind": {1, 2}},
        {"mapped": np.frombuffer(b"abcd", np.uint8)},
        {"parameter": torch.nn.Parameter(torch.zeros(1))},
        {"module": torch.nn.Linear(1, 1)},
        {"local": Enum("Local", "A B").A},
    ],
    ids=lambda a: next(iter(a)),
)
def test_what_cannot_be_read_surely_gives_no_state(attributes: dict[str, Any]) -> None:
    assert native_state(_with(**attributes)) is None
    env = make_env(lambda: _with(**attributes))
    env.reset()
    assert env.state_dict() is None


class _Shares(CounterEnv):
    """As MinAtar does: a reset with a seed gives two parts the same generator, which they had apart before."""

    def __init__(self) -> None:
        super().__init__(9)
        self.random = np.random.RandomState()
        self.part = type("Part", (), {})()
        self.part.random = np.random.RandomState()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.random = self.part.random = np.random.RandomState(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Any:
        obs, _, *rest = super().step(action)
        return obs, self.random.rand() + 10 * self.part.random.rand(), *rest


def test_what_two_parts_share_is_shared_again() -> None:
    continue_alike(lambda: make_env(_Shares, 2), before=4)
    apart, joined, other = _Shares(), _Shares(), _Shares()
    joined.reset(seed=1)
    load_native(joined, native_state(apart))  # type: ignore[arg-type]
    assert joined.random is not joined.part.random
    load_native(other, native_state(apart))  # type: ignore[arg-type]
    assert [joined.step(0)[1] for _ in range(3)] == [other.step(0)[1] for _ in range(3)]


def test_one_object_in_the_place_of_two_is_refused() -> None:
    one, other = _with(), _with()
    one.a, one.b = (type("Part", (), {})() for _ in range(2))  # type: ignore[attr-defined]
    other.a = other.b = type("Part", (), {})()  # type: ignore[attr-defined]
    with pytest.raises(
        NativeStateError, match=r"CounterEnv\.b is an object that another attribute holds too"
    ):
        load_native(other, native_state(one))  # type: ignore[arg-type]


def test_enclosed_constants_do_no_harm() -> None:
    scale = 2.0
    assert native_state(_with(reward_fn=lambda r: r * scale)) is not None


def test_an_environment_speaks_for_itself() -> None:
    class Own(CounterEnv):
        def __init__(self) -> None:
            super().__init__(9)
            self.engine = iter([1])  # opaque

        def state_dict(self) -> dict[str, Any]:
            return {"t": self.t}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.t = state["t"]

    continue_alike(lambda: make_env(Own, 2), before=4)
    continue_alike(lambda: make_env(Own, 2, max_episode_steps=5, vectorization="async"), before=4)

    class Sometimes(Own):
        def state_dict(self) -> Any:
            return None

    assert native_state(Sometimes()) is None


def test_wrappers_are_part_of_the_state() -> None:
    continue_alike(lambda: make_env(CounterEnv, 2, kwargs={"length": 50}, max_episode_steps=7), before=5)


def test_a_state_of_something_else_is_refused() -> None:
    state = native_state(_with())
    assert state is not None
    with pytest.raises(NativeStateError, match="EchoEnv"):
        load_native(EchoEnv(), state)
    with pytest.raises(NativeStateError, match="wrapper layers"):
        load_native(gym.Wrapper(CounterEnv()), state)
    env = make_env(CounterEnv, 3)
    env.reset()
    with pytest.raises(ValueError, match="2 environments given"):
        env.load_state_dict({"envs": [state, state], "obs": None})


def test_spaces_continue_sampling() -> None:
    one, other = _with(), _with()
    one.action_space.seed(3)
    [one.action_space.sample() for _ in range(5)]
    load_native(other, native_state(one))  # type: ignore[arg-type]
    assert [one.action_space.sample() for _ in range(20)] == [other.action_space.sample() for _ in range(20)]


def test_given_workers_have_no_native_state() -> None:
    env = make_env(AsyncVectorEnv([CounterEnv]))
    env.reset()
    assert env.state_dict() is None
    env.close()


@pytest.mark.extra("box2d")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Box2D's bindings die where one is an error
def test_box2d_has_none() -> None:
    env = make_env("LunarLander-v3")
    env.reset(seed=0)
    assert env.state_dict() is None


@pytest.mark.slow
@pytest.mark.extra("mujoco")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Reacher-v5"])
def test_mujoco_continues_exactly(env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it runs
    continue_alike(lambda: make_env(env_id, 2), before=12, after=120)


@pytest.mark.extra("minatar")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"])
def test_minatar_continues_exactly(name: str) -> None:
    continue_alike(lambda: make_env(f"MinAtar/{name}-v1", 2), before=60, after=200)


def test_drawing_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = make_env("CartPole-v1", kwargs={"render_mode": "rgb_array"})
    env.reset(seed=0)
    assert env.render() is not None and env.state_dict() is not None
    env.close()


def test_spaces_module_is_constant() -> None:
    assert (
        native_state(_with(library=spaces, kind=np.dtype(np.float32), spec=gym.spec("CartPole-v1")))
        is not None
    )
