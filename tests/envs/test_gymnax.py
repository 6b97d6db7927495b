"""Gymnax through dlpack: `gymnax/ID`."""

from typing import Any

import pytest
import torch

from uniarena import Agent, Trainer
from uniarena.config import ConfigError
from uniarena.envs import TensorEnvs, make_env
from uniarena.envs.checker import check_env
from uniarena.envs.simulators.cartpole import TensorCartPole

pytestmark = [
    pytest.mark.slow,
    pytest.mark.extra("gymnax"),
    pytest.mark.filterwarnings("ignore"),
]


def _put(env: TensorEnvs, state: torch.Tensor) -> None:
    """Begin all episodes of gymnax's cart-poles in these states `[B, 4]`."""
    import jax.numpy as jnp

    sim: Any = env.sim
    x, x_dot, theta, theta_dot = (jnp.asarray(column.numpy(), jnp.float32) for column in state.unbind(1))
    sim._state = sim._state.replace(x=x, x_dot=x_dot, theta=theta, theta_dot=theta_dot)


def test_its_cartpole_is_ours() -> None:
    env, ours = make_env("gymnax/CartPole-v1", 16), TensorCartPole(16)
    assert isinstance(env, TensorEnvs) and env.has_final_obs and env.env_id == "gymnax/CartPole-v1"
    env.reset(seed=0)
    ours.reset(seed=0)
    _put(env, ours.state)
    generator, ends = torch.Generator().manual_seed(0), 0
    for _ in range(30):
        action = torch.randint(2, (16,), generator=generator)
        step = env.step(action)
        _, reward, terminated, truncated, info = ours.step(action)
        assert torch.allclose(step.next_obs, info["next_obs"], atol=1e-5)  # type: ignore[arg-type]
        assert torch.equal(step.terminated, terminated) and torch.equal(step.truncated, truncated)
        assert torch.equal(step.reward, reward) and step.obs.dtype == torch.float32
        ended = terminated | truncated
        assert torch.equal(step.is_first, ended)
        assert torch.equal(step.obs[~ended], step.next_obs[~ended])  # type: ignore[index]
        assert (step.obs[ended].abs() <= 0.05).all()
        ends += int(ended.sum())
        _put(env, ours.state)
    assert ends


def test_nothing_is_copied() -> None:
    env = make_env("gymnax/Pendulum-v1", 8)
    obs = env.reset(seed=0)
    assert obs.data_ptr() == env.get_attr("_obs")[0].unsafe_buffer_pointer()
    step = env.step(torch.zeros(8, 1))
    assert step.obs.data_ptr() == env.get_attr("_obs")[0].unsafe_buffer_pointer()


def test_limits_parameters_seeds_and_partial_resets() -> None:
    env = make_env("gymnax/CartPole-v1", 4, max_episode_steps=3, kwargs={"gravity": 0.0})
    first = env.reset(seed=5).clone()
    zeros = torch.zeros(4, dtype=torch.int64)
    steps = [env.step(zeros) for _ in range(4)]
    assert [bool(step.truncated.all()) for step in steps] == [False, False, True, False]
    before = steps[-1].obs.clone()
    mask = torch.tensor([True, False, False, True])
    after = env.reset(mask=mask)
    assert torch.equal(after[~mask], before[~mask]) and not torch.equal(after[mask], before[mask])
    assert torch.equal(env.reset(seed=5), first)
    with pytest.raises(ConfigError, match=r"no parameter wind.*gravity"):
        make_env("gymnax/CartPole-v1", 2, kwargs={"wind": 1.0})
    with pytest.raises(ConfigError, match="Nowhere"):
        make_env("gymnax/Nowhere-v1", 2)


def test_native_state_continues_exactly() -> None:
    one, other = (make_env("gymnax/CartPole-v1", 8) for _ in range(2))
    one.reset(seed=0)
    actions = torch.randint(2, (60, 8), generator=torch.Generator().manual_seed(0))
    for action in actions[:30]:
        one.step(action)
    state = one.state_dict()
    assert state is not None
    other.load_state_dict(state)
    for action in actions[30:]:
        a, b = one.step(action), other.step(action)
        assert torch.equal(a.obs, b.obs) and torch.equal(a.next_obs, b.next_obs)  # type: ignore[arg-type]


def test_it_trains_and_passes_the_checker() -> None:
    assert [str(problem) for problem in check_env("gymnax/Pendulum-v1")] == []
    env = make_env("gymnax/CartPole-v1", 32)
    trainer = Trainer(Agent.assemble(env, {"type": "ppo", "n_steps": 16, "batch_size": 128}), env)
    trainer.fit(4 * 512)
    assert trainer.metrics["return_mean"] > 5
