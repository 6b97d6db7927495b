"""The same wrapper list on real backends: single, vector, worker processes, tensor simulators."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.fakes.envs import CounterEnv, CounterVectorEnv, TensorCounter
from tests.wrappers.columns import numpy, zeros
from uniarena.config import ConfigError
from uniarena.envs import Env, make_env
from uniarena.envs.wrappers.normalize import AlreadyNormalizedError

LENGTHS = (2, 3)
PIPELINE = [
    "normalize_observation",
    {"type": "frame_stack", "n_frames": 2},
    {"type": "scale_reward", "scale": 0.5},
    {"type": "clip_reward", "high": 0.25},
    {"type": "sticky_actions", "probability": 0.1},
    "normalize_reward",
]
BACKENDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "serial": ([lambda n=n: CounterEnv(n) for n in LENGTHS], {}),
    "sync": ([lambda n=n: CounterEnv(n) for n in LENGTHS], {"vectorization": "sync"}),
    "async": ([lambda n=n: CounterEnv(n) for n in LENGTHS], {"vectorization": "async"}),
    "next_step": (lambda: CounterVectorEnv(2, LENGTHS, "NextStep"), {}),
    "same_step": (lambda: CounterVectorEnv(2, LENGTHS, "SameStep"), {}),
    "disabled": (lambda: CounterVectorEnv(2, LENGTHS, "Disabled"), {}),
    "tensor": (lambda: TensorCounter(2, LENGTHS, end="termination", final="dense"), {}),
    "tensor_final": (lambda: TensorCounter(2, LENGTHS, end="termination", final="info"), {}),
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def build(backend: str, wrappers: list[Any]) -> Env:
    spec, options = BACKENDS[backend]
    return make_env(spec, 2 if isinstance(spec, list) else 1, wrappers=wrappers, **options)


def real_steps(env: Env, steps: int) -> list[list[tuple[list[float], float, list[float]]]]:
    """Per column the valid transitions (obs, reward, true successor)."""
    obs = numpy(env.reset(seed=0))
    rows: list[list[tuple[list[float], float, list[float]]]] = [[], []]
    for _ in range(steps):
        step = env.step(zeros(env))
        after = numpy(step.next_obs if step.next_obs is not None else step.obs)
        if step.final is not None:
            after[numpy(step.final.index)] = numpy(step.final.obs)
        for b in range(2):
            if step.valid is None or bool(step.valid[b]):
                rows[b].append((obs[b].tolist(), float(step.reward[b]), after[b].tolist()))
        obs = numpy(step.obs)
    return rows


def test_all_backends_give_the_same_wrapped_transitions(backend: str):
    env = build(backend, PIPELINE)
    assert isinstance(env, Env) and env.normalization.keys() == {"observation", "reward"}
    try:
        rows = real_steps(env, 12)
    finally:
        env.close()
    for b, length in enumerate(LENGTHS):
        episode = [([max(t - 1, 0), t], 0.25, [t, t + 1]) for t in range(length)]
        assert rows[b][: 2 * length] == episode * 2


def test_a_time_limit_works_or_names_the_backends_own_option(backend: str):
    wrappers = [{"type": "time_limit", "max_episode_steps": 2}, *PIPELINE]
    if backend in ("next_step", "same_step", "tensor", "tensor_final"):
        with pytest.raises(ConfigError, match=r"environment\.max_episode_steps: 2"):
            build(backend, wrappers)
        return
    env = build(backend, wrappers)
    rows = real_steps(env, 8)
    env.close()
    cut = [([max(t - 1, 0), t], 0.25, [t, t + 1]) for t in range(2)]
    assert rows[0][:4] == rows[1][:4] == cut * 2


def test_gymnasiums_own_vector_cartpole_cannot_be_cut_from_outside():
    with pytest.raises(ConfigError, match="cannot reset single environments"):
        make_env(
            "CartPole-v1",
            2,
            vectorization="native",
            wrappers=[{"type": "time_limit", "max_episode_steps": 9}],
        )


@pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])
def test_attributes_and_methods_are_reached_through_three_wrappers(vectorization: str):  # case B69
    wrappers = ["normalize_observation", "frame_stack", "clip_reward"]
    env = make_env(CounterEnv, 2, vectorization=vectorization, wrappers=wrappers)
    try:
        env.reset(seed=0)
        assert list(env.get_attr("difficulty")) == [0, 0]
        env.set_attr("difficulty", 5)
        assert list(env.get_attr("difficulty")) == [5, 5]
        assert list(env.call("double", 4)) == [13, 13]
    finally:
        env.close()


def test_native_state_goes_through_the_whole_pipeline():
    def run(env: Env, steps: int) -> list[list[float]]:
        rows = []
        for k in range(steps):
            step = env.step(np.full(2, k % 2))
            rows.append([*step.obs.ravel().tolist(), *step.truncated.tolist()])
        return rows

    wrappers = [
        {"type": "time_limit", "max_episode_steps": 7},
        {"type": "frame_stack", "n_frames": 3},
        {"type": "sticky_actions", "probability": 0.5},
    ]
    env, other = (make_env("CartPole-v1", 2, wrappers=wrappers) for _ in range(2))
    env.reset(seed=1)
    run(env, 11)
    state = env.state_dict()
    other.reset(seed=9)
    other.load_state_dict(state)
    assert run(env, 30) == run(other, 30)


def test_a_backend_without_native_state_has_none_through_wrappers_either(monkeypatch: pytest.MonkeyPatch):
    env = make_env(CounterEnv, wrappers=["frame_stack", "normalize_reward"])
    monkeypatch.setattr(env.env.env, "state_dict", lambda: None)
    assert env.state_dict() is None


@pytest.mark.parametrize("vectorization", ["serial", "sync", "async"])
def test_gymnasiums_own_normalizer_inside_is_not_doubled(vectorization: str):  # case B55
    options: dict[str, Any] = {"vectorization": vectorization}
    with pytest.raises(AlreadyNormalizedError, match="gymnasium's NormalizeObservation is inside"):
        make_env(
            CounterEnv, 2, wrappers=[gym.wrappers.NormalizeObservation, "normalize_observation"], **options
        )
    with pytest.raises(AlreadyNormalizedError, match="gymnasium's NormalizeReward is inside"):
        make_env(CounterEnv, 2, wrappers=[gym.wrappers.NormalizeReward, "normalize_reward"], **options)
    env = make_env(CounterEnv, 2, wrappers=[gym.wrappers.NormalizeReward, "normalize_observation"], **options)
    env.close()


def test_wrapper_settings_are_checked_with_their_path():
    with pytest.raises(ConfigError) as caught:
        make_env(CounterEnv, wrappers=["clip_reward", {"type": "frame_stack", "n_frame": 3}])
    assert "environment.wrappers.1.n_frame" in str(caught.value) and "n_frames" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        make_env(CounterEnv, wrappers=[{"type": "sticky_actions", "probability": 3}])
    assert "environment.wrappers.0.probability" in str(caught.value)


def test_a_users_wrapper_in_one_file_is_named_by_import_path():
    env = make_env(
        CounterEnv, 2, wrappers=[{"type": "tests.wrappers.users_wrapper:Shift", "by": 3.0}, "frame_stack"]
    )
    assert env.reset(seed=0)[0].tolist() == [3, 3, 3, 3]
    for _ in range(2):
        step = env.step(np.zeros(2, int))
        assert step.obs[0, -1] > 3
    step = env.step(np.zeros(2, int))
    assert step.final.obs[0].tolist() == [3, 4, 5, 6]


def test_gymnasiums_frame_stack_is_an_array():  # case B25
    env = make_env("CartPole-v1", 2, wrappers=[lambda env: gym.wrappers.FrameStackObservation(env, 3)])
    obs = env.reset(seed=0)
    assert isinstance(obs, np.ndarray) and obs.shape == (2, 3, 4) and obs.dtype == np.float32


def test_video_of_a_real_environment(tmp_path):
    env = make_env(
        CounterEnv, kwargs={"render_mode": "rgb_array"},
        wrappers=[{"type": "record_video", "folder": str(tmp_path), "format": "gif"}],
    )  # fmt: skip
    env.reset(seed=0)
    for _ in range(4):
        env.step(np.zeros(1, int))
    env.close()
    assert len(list(tmp_path.glob("*.gif"))) == 2
