"""What samplers keep from chunk to chunk, and what they leave to others: in this process, and in one beside it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from tests.fakes.envs import CounterEnv, TensorCounter
from uniarena.agent import Agent
from uniarena.batch import tree_leaves
from uniarena.config import SamplingConfig
from uniarena.envs import make_env
from uniarena.sampling import Ahead, LocalSampler, Sampler, build_sampler
from uniarena.trainer import Trainer

PPO = {"type": "ppo", "n_steps": 8, "batch_size": 8, "n_epochs": 1}


both = pytest.mark.parametrize("how", ["local", "pipelined"])


def sampler_of(env: Any, how: Any = "local", **parts: Any) -> Any:
    agent = Agent.assemble(env, PPO, **parts)
    sampler = build_sampler(agent, env, SamplingConfig(type=how))
    sampler.publish(agent.actor, 0)
    return sampler


class LearningEnv(CounterEnv):
    """Trains a network of its own in every step, as environments with a learned reward do."""

    def __init__(self) -> None:
        super().__init__(5)
        self.net = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def step(self, action: int) -> Any:
        obs, _, *rest = super().step(action)
        error = (self.net(torch.as_tensor(obs)) - 1.0).square().mean()
        self.optimizer.zero_grad()
        error.backward()
        self.optimizer.step()
        return obs, float(error.detach()), *rest


@both
def test_an_environment_may_train_networks_of_its_own(how: str) -> None:
    sampler = sampler_of(make_env(LearningEnv), how)
    reward = sampler.collect(30).rows.reward
    assert (reward > 0).any() and reward[-1] < reward[0]
    sampler.close()


def test_what_a_simulator_makes_in_a_step_can_be_changed_outside_of_it() -> None:
    """A reset in place between two chunks, as a declared boundary does."""
    simulator = TensorCounter(2, [3, 4], "truncation", "dense")
    sampler = sampler_of(make_env(simulator))
    sampler.collect(8)
    simulator.obs_buf.zero_()
    simulator.reward_buf.add_(1.0)


@both
def test_memory_is_kept_from_chunk_to_chunk(how: str) -> None:
    """Where one chunk is collected while another is learned from, they take turns."""
    make = lambda num_envs: TensorCounter(num_envs, [3, 4], "truncation", "dense")  # noqa: E731
    sampler = sampler_of(make_env(make, 2), how)
    pointers = [
        [
            leaf.data_ptr()
            for name in ("obs", "action", "reward", "next_obs", "valid")
            for leaf in tree_leaves(rows[name])
        ]
        for rows in (sampler.collect(12, False, Ahead(12, 10_000)).rows for _ in range(4))
    ]
    assert pointers[:2] == pointers[2:]
    assert (pointers[0] == pointers[1]) == (how == "local")
    sampler.close()


@pytest.mark.parametrize("network", ["mlp", "tests.fakes.models:RecurrentToy"])
def test_an_actor_on_another_device_sees_and_does_the_same(network: str) -> None:
    """Here both devices are one; what is tested is the way there and back."""
    rollouts = []
    for crosses in (False, True):
        sampler = sampler_of(make_env("CartPole-v1", 3), policy={"network": network})
        sampler.crosses = crosses
        sampler.collect(9)
        rollouts.append(sampler.collect(30))
    for name in rollouts[0].rows:
        for a, b in zip(
            tree_leaves(rollouts[0].rows[name]), tree_leaves(rollouts[1].rows[name]), strict=True
        ):
            assert torch.equal(a, b), name


@both
def test_rollouts_gathered_for_one_batch_may_differ_in_what_the_environment_said(how: Any) -> None:
    """Success is told at the end of an episode only, so most chunks have no such figure."""

    class Rarely(CounterEnv):
        def step(self, action: int) -> Any:
            obs, reward, terminated, truncated, _ = super().step(action)
            return obs, reward, terminated, truncated, {"is_success": True} if terminated else {}

    env = make_env(lambda: Rarely(5))
    agent = Agent.assemble(env, {**PPO, "n_steps": 2, "train_batch_size": 6})
    seen = []
    update = agent.learner.update
    agent.learner.update = lambda rollout: (seen.append(rollout.rows.info["is_success"]), update(rollout))[1]  # type: ignore
    trainer = Trainer(agent, env, sampling=SamplingConfig(type=how))
    trainer.fit(6)
    trainer.close()
    assert np.nan_to_num(seen[0].flatten().numpy(), nan=-1).tolist() == [-1, -1, -1, -1, 1, -1]


class Drawing(torch.nn.Module):
    """Adds noise of the global stream to its logits, also when it acts."""

    def __init__(self, obs_dim: int, act_dim: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(obs_dim, act_dim)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layer(obs) + torch.randn(())


def test_asking_for_the_form_of_an_action_moves_no_stream() -> None:
    sampler = sampler_of(
        make_env("CartPole-v1", 2), policy={"network": f"{__name__}:Drawing"}, value={"network": "mlp"}
    )
    torch.manual_seed(0)
    sampler.collect(4)
    moved = torch.get_rng_state()
    torch.manual_seed(0)
    sampler.collect(4)  # of the same size: no question is asked
    assert torch.equal(torch.get_rng_state(), moved)


@both
def test_without_an_actor_nothing_is_collected(how: Any) -> None:
    env = make_env("CartPole-v1", 2)
    agent = Agent.assemble(env, PPO)
    sampler = build_sampler(agent, env, SamplingConfig(type=how))
    with pytest.raises(RuntimeError, match="publish an actor first"):
        sampler.collect(8)
    sampler.publish(agent.actor, 0)
    assert sampler.collect(8).T == 4
    sampler.close()
    sampler.close()


class SelfPlay(CounterEnv):
    """Asks the agent that is being trained, in the middle of a chunk."""

    agent: Any = None

    def step(self, action: Any) -> Any:
        for deterministic in (True, False) if self.agent is not None else ():
            self.agent.act(self.observation_space.sample(), deterministic=deterministic)
        return super().step(action)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", SelfPlay])
def test_log_probs_of_a_chunk_need_no_pass_and_are_those_of_one(
    env_id: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env(env_id, 2)
    agent = Agent.assemble(env, PPO)
    sampler = build_sampler(agent, env, SamplingConfig(type="local"))
    sampler.publish(agent.actor, 0)
    env.set_attr("agent", agent)
    with monkeypatch.context() as patch:
        patch.setattr(agent.actor.policy, "log_prob", None)  # nobody may ask
        rollout = sampler.collect(20)
    env.set_attr("agent", None)
    torch.testing.assert_close(rollout.rows.log_prob, agent.actor.log_prob(rollout.rows), atol=1e-5, rtol=0)
    sampler.close()


@both
def test_a_state_goes_on_in_a_sampler_that_is_newly_made(how: Any) -> None:
    def made() -> tuple[Agent, Sampler]:
        env = make_env("CartPole-v1", 2)
        agent = Agent.assemble(env, PPO)
        sampler = build_sampler(agent, env, SamplingConfig(type=how))
        sampler.publish(agent.actor, 0)
        return agent, sampler

    agent, sampler = made()
    sampler.collect(30, False, Ahead(30, 1000))
    saved, streams = copy.deepcopy(sampler.state_dict()), copy.deepcopy(agent.streams.state_dict())
    following = sampler.collect(30, False, Ahead(30, 1000)).clone()
    sampler.close()
    agent, sampler = made()
    agent.streams.load_state_dict(streams)
    sampler.load_state_dict(saved)
    again = sampler.collect(30, False, Ahead(30, 1000))
    for name in ("obs", "action", "reward", "is_first", "log_prob"):
        assert torch.equal(following.rows[name], again.rows[name]), name
    sampler.close()


@both
def test_the_state_of_the_other_kind_is_refused(how: Any) -> None:
    other = {"local": "pipelined", "pipelined": "local"}[how]
    env = make_env("CartPole-v1", 2)
    sampler, theirs = sampler_of(env, how), sampler_of(make_env("CartPole-v1", 2), other)
    theirs.collect(8, False, Ahead(8, 100))
    with pytest.raises(ValueError, match=f"set sampling.type to {other}"):
        sampler.load_state_dict(theirs.state_dict())
    sampler.close()
    theirs.close()


def test_a_seed_reaches_environments_and_what_their_spaces_sample() -> None:
    def first(seed: int, how: str) -> list[Any]:
        env = make_env("CartPole-v1", 2, vectorization=how)
        agent = Agent.assemble(env, PPO, seed=seed)
        sampler = LocalSampler(env, agent.streams)
        found = [np.asarray(sampler.last_obs).tolist(), int(env.action_space.sample())]
        if how == "native":
            found.append(env.vector.action_space.sample().tolist())  # type: ignore[attr-defined]
        return found

    for how in ("sync", "native"):
        assert first(1, how) == first(1, how) != first(2, how)
