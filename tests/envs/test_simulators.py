"""The tensor forms that ship, step for step beside Gymnasium's own environments."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import uniarena
from uniarena import assembly
from uniarena.assembly import environment
from uniarena.config import ConfigError, load
from uniarena.envs import TensorEnvs, make_env
from uniarena.envs.checker import check_env
from uniarena.envs.native import native_state
from uniarena.envs.simulators import TENSOR_FORMS, tensor_form
from uniarena.envs.simulators.cartpole import TensorCartPole
from uniarena.envs.simulators.pendulum import TensorPendulum

IDS = list(TENSOR_FORMS)


def _actions(sim: Any, count: int, generator: torch.Generator) -> torch.Tensor:
    if isinstance(sim.action_space, gym.spaces.Discrete):
        return torch.randint(2, (count, sim.num_envs), generator=generator)
    return torch.rand(count, sim.num_envs, 1, generator=generator) * 5 - 2.5  # beyond the bounds too


def _put(env: gym.Env, state: torch.Tensor) -> None:
    """Begin an episode of Gymnasium's in the same state."""
    env.reset()
    env.unwrapped.state = state.numpy().copy()  # type: ignore[attr-defined]


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("kwargs", [{}, {"max_episode_steps": 7}])
def test_steps_are_those_of_gymnasium(env_id: str, kwargs: dict[str, Any]) -> None:
    count, steps = 6, 60 if kwargs else 560
    sim = tensor_form(env_id)(count, **kwargs)  # type: ignore[misc]
    theirs = [gym.make(env_id, **kwargs) for _ in range(count)]
    obs = sim.reset(seed=3)
    for b, env in enumerate(theirs):
        _put(env, sim.state[b])
    if env_id == "CartPole-v1" and not kwargs:
        sim.state[0], theirs[0].unwrapped.state = 0.0, np.zeros(4)  # type: ignore[attr-defined]
    generator, ends = torch.Generator().manual_seed(4), [0, 0]
    for action in _actions(sim, steps, generator):
        if env_id == "CartPole-v1":  # one column is balanced up to the limit, the others fall
            action[0] = (sim.state[0, 2] + 0.3 * sim.state[0, 3] + 0.1 * sim.state[0, 1] > 0).long()
        obs, reward, terminated, truncated, info = sim.step(action)
        for b, env in enumerate(theirs):
            given = action[b].item() if action.dim() == 1 else action[b].numpy()
            expected, pay, over, cut, _ = env.step(given)
            np.testing.assert_allclose(info["next_obs"][b], expected, rtol=0, atol=1e-6)
            assert reward[b].item() == pytest.approx(pay, abs=1e-6)
            assert (bool(terminated[b]), bool(truncated[b])) == (over, cut)
            if over or cut:
                ends[cut] += 1
                _put(env, sim.state[b])
            else:
                assert torch.equal(obs[b], info["next_obs"][b])
                inner: Any = env.unwrapped
                assert np.allclose(sim.state[b], inner.state, rtol=0, atol=1e-12)
                inner.state = sim.state[b].numpy().copy()  # an unstable system magnifies the last bit
    assert ends[1] and (ends[0] or env_id == "Pendulum-v1" or kwargs)
    assert obs.dtype == torch.float32 and reward.dtype == torch.float32


@pytest.mark.parametrize("env_id", IDS)
def test_spaces_and_first_states_are_those_of_gymnasium(env_id: str) -> None:
    sim, theirs = tensor_form(env_id)(20_000), gym.make(env_id)  # type: ignore[misc]
    assert sim.observation_space == theirs.observation_space and sim.action_space == theirs.action_space
    sim.reset(seed=0)
    drawn = np.stack([_state(theirs, seed) for seed in range(300)])
    low, high = torch.tensor(sim.low), torch.tensor(sim.high)
    assert bool((sim.state >= low).all()) and bool((sim.state <= high).all())
    assert (drawn >= low.numpy()).all() and (drawn <= high.numpy()).all()
    width = high - low
    assert torch.allclose(sim.state.mean(0) / width, torch.zeros(1).double(), atol=0.01)
    assert torch.allclose(sim.state.std(0) / width, torch.full((1,), 12**-0.5).double(), atol=0.01)


def _state(env: gym.Env, seed: int) -> Any:
    env.reset(seed=seed)
    return env.unwrapped.state  # type: ignore[attr-defined]


def test_options_of_the_environments() -> None:
    sim, theirs = (
        TensorCartPole(1, sutton_barto_reward=True),
        gym.make("CartPole-v1", sutton_barto_reward=True),
    )
    sim.reset(seed=0)
    _put(theirs, sim.state[0])
    for _ in range(11):
        reward, terminated = sim.step(torch.ones(1, dtype=torch.int64))[1:3]
        assert reward.item() == theirs.step(1)[1]
        if terminated:
            break
    assert reward.item() == -1.0
    heavy, light = TensorPendulum(1, g=20.0), TensorPendulum(1)
    for each in (heavy, light):
        each.state.copy_(torch.tensor([[1.0, 0.0]]))
        each.step(torch.zeros(1, 1))
    assert heavy.state[0, 1] == pytest.approx(2 * light.state[0, 1].item())


@pytest.mark.parametrize("env_id", IDS)
def test_the_id_with_vectorization_tensor(env_id: str) -> None:
    env = make_env(env_id, 8, vectorization="tensor", max_episode_steps=3)
    assert isinstance(env, TensorEnvs) and env.tensor and env.num_envs == 8 and env.env_id == env_id
    env.reset(seed=0)
    zeros = torch.zeros(8, dtype=torch.int64) if env_id == "CartPole-v1" else torch.zeros(8, 1)
    steps = [env.step(zeros) for _ in range(4)]
    assert [bool(step.truncated.all()) for step in steps] == [False, False, True, False]
    assert env.factory(3, seed=1).num_envs == 3  # type: ignore[attr-defined]
    env.set_attr("g" if env_id == "Pendulum-v1" else "length", 1.0)
    assert check_env(env) == []


def test_an_id_without_a_tensor_form() -> None:
    with pytest.raises(ConfigError, match=r"Acrobot-v1.*no tensor form.*CartPole-v1, Pendulum-v1"):
        make_env("Acrobot-v1", 8, vectorization="tensor")


def test_a_seed_gives_the_same_episodes_again() -> None:
    one, other = TensorCartPole(5), TensorCartPole(5)
    assert torch.equal(one.reset(seed=1), other.reset(seed=1))
    action = torch.ones(5, dtype=torch.int64)
    for _ in range(30):  # resets within the episodes too
        pair = one.step(action)[0], other.step(action)[0]
    assert torch.equal(*pair)
    assert not torch.equal(one.reset(), other.reset(seed=2))


def test_partial_resets_leave_the_others_alone() -> None:
    env = make_env("Pendulum-v1", 4, vectorization="tensor")
    env.reset(seed=0)
    before = env.step(torch.ones(4, 1)).obs.clone()
    mask = torch.tensor([False, True, False, True])
    obs = env.reset(mask=mask)
    assert torch.equal(obs[~mask], before[~mask]) and not torch.equal(obs[mask], before[mask])
    assert env.get_attr("steps")[0].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("env_id", IDS)
def test_native_state_continues_exactly(env_id: str) -> None:
    one, other = (make_env(env_id, 16, vectorization="tensor", max_episode_steps=9) for _ in range(2))
    sim = one.sim  # type: ignore[attr-defined]
    actions = _actions(sim, 40, torch.Generator().manual_seed(0))
    one.reset(seed=0)
    for action in actions[:20]:
        one.step(action)
    state = one.state_dict()
    assert state is not None and native_state(sim) is not None
    expected = [
        torch.cat([one.step(action).obs, one.step(action).next_obs]).clone() for action in actions[20:]
    ]
    other.load_state_dict(state)
    found = [
        torch.cat([other.step(action).obs, other.step(action).next_obs]).clone() for action in actions[20:]
    ]
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.extra("video")
@pytest.mark.parametrize("env_id", IDS)
def test_pictures_are_gymnasiums(env_id: str) -> None:
    assert tensor_form(env_id)(2).render() is None  # type: ignore[misc]
    env = make_env(env_id, 2, vectorization="tensor", kwargs={"render_mode": "rgb_array"})
    env.reset(seed=0)
    first = env.render()
    assert first is not None and first.dtype == np.uint8 and first.shape[-1] == 3
    action = torch.ones(2, dtype=torch.int64) if env_id == "CartPole-v1" else torch.ones(2, 1)
    for _ in range(5):
        env.step(action)
    assert not np.array_equal(first, env.render())
    env.close()


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "meta", 1.5])
def test_a_device_that_is_not_here(device: Any) -> None:
    with pytest.raises(ConfigError, match=f"no device '{device}' here.*there is cpu") as caught:
        make_env("CartPole-v1", 2, vectorization="tensor", kwargs={"device": device})
    assert caught.value.path == "environment.kwargs.device"


def test_a_config_puts_it_beside_the_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(environment, "make_env", lambda *args, **options: given.append(options["kwargs"]))
    monkeypatch.setattr(assembly, "choose_device", lambda wanted: f"where {wanted} says")
    section = {"id": "CartPole-v1", "num_envs": 8, "vectorization": "tensor"}

    def device(**more: Any) -> Any:
        environment.build_env(load(["ppo/cartpole", {"environment": {**section, **more}}]))
        return given[-1].get("device")

    assert device() == "where auto says"
    assert device(kwargs={"device": "cpu"}) == "cpu"
    assert device(vectorization="native") is None


def test_a_run_in_a_tensor_environment_trains_evaluates_and_resumes(tmp_path: Path) -> None:
    config = {
        "environment": {"id": "CartPole-v1", "vectorization": "tensor", "num_envs": 64},
        "learner": {"type": "ppo", "n_steps": 16, "batch_size": 256, "n_epochs": 2, "learning_rate": 1e-3},
        "training": {"total_timesteps": 4096, "save_every_env_steps": 2048, "n_eval_episodes": 4},
    }
    whole = uniarena.train(config, run_dir=tmp_path / "whole", quiet=True)
    assert whole.eval is not None and whole.eval.return_mean > 5
    uniarena.train(config, ["training.total_timesteps=2048"], run_dir=tmp_path / "half", quiet=True)
    uniarena.resume(tmp_path / "half", ["training.total_timesteps=4096"], quiet=True)
    agents = [uniarena.Agent.load(tmp_path / name / "checkpoints" / "4096") for name in ("whole", "half")]
    pairs = zip(*(agent.model.parameters() for agent in agents), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
