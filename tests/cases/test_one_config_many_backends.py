"""One YAML text, only its `environment` changed, trains on every backend; an agent of one acts the same in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import uniarena
from uniarena import Agent, make_env
from uniarena.sampling.evaluation import evaluate_agent

REST = """
learner:
  type: ppo
  n_steps: 32
  batch_size: 256
  n_epochs: 8
  learning_rate: 3e-3
  gamma: 0.95
  gae_lambda: 0.9
training: {total_timesteps: 8192, n_eval_episodes: 5, eval_every_env_steps: 8192}
"""
TENSOR = "examples.tensor_cartpole:TensorCartPole"
BACKENDS = {
    "serial": "{id: CartPole-v1, num_envs: 16, wrappers: [normalize_observation]}",
    "sync": "{id: CartPole-v1, num_envs: 16, vectorization: sync, wrappers: [normalize_observation]}",
    "async": "{id: CartPole-v1, num_envs: 4, vectorization: async, wrappers: [normalize_observation]}",
    "native": "{id: CartPole-v1, num_envs: 16, vectorization: native, wrappers: [normalize_observation]}",
    "tensor": f"{{id: '{TENSOR}', num_envs: 16, wrappers: [normalize_observation]}}",
    "envpool": "{id: CartPole-v1, num_envs: 16, vectorization: envpool, wrappers: [normalize_observation]}",
}
POOL = [pytest.mark.extra("envpool"), pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning")]
EACH = [pytest.param(name, marks=POOL) if name == "envpool" else name for name in BACKENDS]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Backend → its run, filled as tests ask for it."""
    return {}


def run_of(name: str, runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    if name not in runs:
        folder = tmp_path_factory.mktemp(name)
        config = folder / "config.yaml"
        config.write_text(f"environment: {BACKENDS[name]}\n{REST}")
        runs[name] = uniarena.train(config, run_dir=folder / "run", quiet=True).run
    return runs[name]


def options(name: str) -> dict[str, Any]:
    how = name if name in ("sync", "async", "native", "envpool") else "auto"
    return {"vectorization": how, "wrappers": ["normalize_observation"]}


def env_id(name: str) -> str:
    return TENSOR if name == "tensor" else "CartPole-v1"


def returns_in(name: str, agent: Agent) -> tuple[float, ...]:
    env = make_env(env_id(name), 4, **options(name))
    try:
        return evaluate_agent(agent, env, 8, seed=5).returns
    finally:
        env.close()


@pytest.mark.parametrize("name", EACH)
def test_it_trains(name: str, runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory):
    agent = Agent.load(run_of(name, runs, tmp_path_factory), trust=True)
    assert np.mean(returns_in(name, agent)) > 60  # a random policy earns 22


@pytest.mark.parametrize("name", EACH)
def test_an_agent_of_the_serial_one_acts_the_same(
    name: str, runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
):
    agent = Agent.load(run_of("serial", runs, tmp_path_factory))
    at_home, here = returns_in("serial", agent), returns_in(name, agent)
    if name in ("serial", "sync", "async"):  # the same environments from the same seeds
        assert here == at_home
    assert np.mean(here) > 60
    env = make_env(env_id(name), 4, **options(name))
    obs = env.reset(seed=0)
    acted = agent.act(obs)
    env.close()
    rows = np.asarray(obs.cpu() if isinstance(obs, torch.Tensor) else obs)
    assert acted.dtype == np.int64 and acted.tolist() == [int(agent.act(row)) for row in rows]


def test_an_agent_of_the_tensor_one_acts_the_same_in_gymnasium(
    runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
):
    agent = Agent.load(run_of("tensor", runs, tmp_path_factory), trust=True)
    assert np.mean(returns_in("serial", agent)) > 60
    simulator = make_env(TENSOR, 6)
    obs = simulator.reset(seed=1)
    expected = agent.act(obs)
    assert expected.tolist() == agent.act(obs.numpy()).tolist() == agent.act(obs.double().numpy()).tolist()


def test_one_agent_starts_another_on_another_backend(
    runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
):
    """`agent.init_from` takes networks and statistics along; the first evaluation is as good as the last was."""
    source = run_of("serial", runs, tmp_path_factory)
    config = tmp_path / "config.yaml"
    config.write_text(f"environment: {BACKENDS['tensor']}\n{REST}\nagent: {{init_from: '{source}'}}\n")
    few = ["training.total_timesteps=256", "learner.learning_rate=1e-6"]
    result = uniarena.train(config, few, run_dir=tmp_path / "run", quiet=True)
    assert result.eval is not None and result.eval.return_mean > 60
