"""Q-networks with memory: targets and burn-in by hand, what they learn, what they are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.contracts.doors import Cue
from tests.learning.tiny import learn, score
from uniarena import Agent, Trainer, make_env
from uniarena.batch import Batch
from uniarena.buffers.sequence import SequenceReplay
from uniarena.config import ConfigError
from uniarena.learners.off_policy.dqn import DQN
from uniarena.ops.td import n_step_sums

GRU = {"type": "gru", "hidden_size": 16}
FAST = {"batch_size": 16, "learning_starts": 300, "updates_per_env_step": 0.1, "learning_rate": 5e-3}
BUFFER = {"length": 6, "burn_in": 2}


def agent(learner: Any = "dqn", buffer: dict[str, Any] | None = None, **parts: Any) -> Agent:
    kept = {"memory": GRU, "buffer": {"capacity": 200, **(BUFFER if buffer is None else buffer)}, **parts}
    return Agent.assemble(make_env(Cue, 2), learner, {"hidden_sizes": [8]}, parts=kept)


# -- learning ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "settings",
    [
        {"type": "lstm", "double": True, "dueling": True},
        {"type": "gru", "n_step": 3},
        pytest.param(
            {"type": "gru", "returns": "iqn", "n_fractions": 8, "n_quantiles": 8}, marks=pytest.mark.slow
        ),
    ],
    ids=["double dueling lstm", "n-step gru", "quantiles"],
)
def test_a_cue_is_remembered(settings: dict[str, Any]) -> None:
    settings = dict(settings)
    kind = settings.pop("type")
    parts = {"memory": {**GRU, "type": kind}, "buffer": {"capacity": 4_000, **BUFFER}}
    found = learn(Cue, "dqn", 4_000, policy={"hidden_sizes": [16]}, parts=parts, **{**FAST, **settings})
    assert score(found, Cue, 40).return_mean == 1.0


# -- by hand -------------------------------------------------------------------------------------------------------
def test_rewards_are_summed_up_to_the_end_of_a_sequence() -> None:
    reward = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 9.0]])
    discount = torch.tensor([[0.5, 0.5], [0.5, 0.0], [0.5, 9.0]])
    real = torch.tensor([[True, True], [True, True], [True, False]])
    total, product, last = n_step_sums(reward, discount, real, 2)
    assert total.tolist() == [[2.0, 2.0], [4.0, 2.0], [4.0, 9.0]]
    assert product.tolist() == [[0.25, 0.0], [0.25, 0.0], [0.5, 9.0]]
    assert last.tolist() == [[1, 1], [2, 1], [2, 2]]
    assert n_step_sums(reward, discount, real, 1)[0] is reward


def sequence(learner: DQN, valid: list[bool], first: bool, state: torch.Tensor) -> Batch:
    """One column of rows t = 0, 1, … with burn-in 2; the reward is t, nothing terminates."""
    steps = len(valid)
    t = torch.arange(float(steps))[:, None, None].expand(steps, 1, 2) / 10
    real = torch.tensor(valid)[:, None]
    begun = torch.zeros(steps, 1, dtype=torch.bool)
    begun[0] = first
    return Batch(
        (steps, 1),
        obs=t,
        next_obs=t + 0.1,
        action=torch.zeros(steps, 1, dtype=torch.int64),
        reward=torch.arange(float(steps))[:, None],
        discount=torch.full((steps, 1), 0.9),
        terminated=torch.zeros(steps, 1, dtype=torch.bool),
        is_first=begun,
        valid=real,
        weight=(real & (torch.arange(steps)[:, None] >= 2)).float(),
        state={"h": state.expand(steps, 1, 1, 16)},
    )


@torch.no_grad()
def test_a_target_is_the_value_of_the_history_that_was() -> None:
    """Burn-in from the stored state, then row by row; each network with a state of its own."""
    found = agent(buffer={"length": 3, "burn_in": 2})
    learner, network = found.learner, found.model.network
    slow = learner.target.module
    for parameter in slow.parameters():
        parameter.mul_(0.7)
    stored = torch.randn(1, 1, 16)
    batch = sequence(learner, [True] * 4 + [False], False, stored)
    made = learner.targets(batch)
    assert made.shape == (3, 1) and torch.equal(made.obs, batch.obs[2:])
    state, own = {"h": stored}, {"h": stored}
    for t in range(5):
        obs = batch.obs[t]
        if t >= 3:
            expected = batch.reward[t - 1] + 0.9 * slow.params(obs, own, None)[0].max(-1).values
            assert torch.allclose(made.target[t - 3, :, 0], expected, atol=1e-5)
        if t < 2:
            state = network.params(obs, state, None)[1]
        own = slow.params(obs, own, None)[1]
    assert torch.allclose(made.state["h"][0], state["h"], atol=1e-6)


@torch.no_grad()
def test_a_burn_in_that_lacks_rows_begins_with_the_episode_or_empty() -> None:
    found = agent(buffer={"length": 3, "burn_in": 2})
    for first in (True, False):  # False: the rows before are no longer stored
        batch = sequence(found.learner, [False, True, True, True, True], first, torch.randn(1, 1, 16))
        made = found.learner.targets(batch)
        _, state = found.model.network.params(batch.obs[1], None, None)
        assert torch.allclose(made.state["h"][0], state["h"], atol=1e-6)


def test_padding_changes_nothing() -> None:
    found = agent(buffer={"length": 3, "burn_in": 2})
    batch = sequence(found.learner, [True, True, True, True, False], True, torch.zeros(1, 1, 16))
    noise = batch.replace(
        **{
            name: torch.where(batch.valid.reshape(5, 1, *(1,) * (batch[name].dim() - 2)), batch[name], 7.0)
            for name in ("obs", "next_obs", "reward")
        }
    )
    losses = []
    for each in (batch, noise):
        loss, metrics = found.learner.loss(found.learner.targets(each))
        losses.append(float(loss.detach()))
        assert len(metrics["surprise"]) == 2
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


# -- assembly ------------------------------------------------------------------------------------------------------
def test_memory_brings_replay_of_sequences_that_keep_their_states() -> None:
    env = make_env(Cue, 2)
    found = agent({"type": "dqn", "learning_starts": 20, "batch_size": 4, "updates_per_env_step": 0.1})
    assert isinstance(found.buffer, SequenceReplay) and found.learner.records == ("state",)
    trainer = Trainer(found, env)
    trainer.fit(80)
    batch = found.buffer.sample(torch.Generator().manual_seed(0))
    assert batch.state["h"].shape == (8, 4, 1, 16) and trainer.counters.updates > 0
    moved = batch.valid[0] & ~batch.is_first[0]
    assert batch.state["h"][0][moved].abs().sum() > 0
    trainer.close()


@pytest.mark.parametrize("kind", ["replay", "prioritized"])
def test_single_rows_are_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="learn from sequences") as caught:
        agent(buffer={"type": kind})
    assert caught.value.path == "agent.buffer.type"


def test_learners_without_networks_with_memory_say_so() -> None:
    with pytest.raises(ConfigError, match="no networks with memory"):
        Agent.assemble(make_env("Pendulum-v1"), "td3", parts={"memory": GRU})


@pytest.mark.parametrize("options", [{"noisy": True, "dueling": True}, {"returns": "c51", "n_step": 2}])
def test_options_of_the_family_go_with_memory(options: dict[str, Any]) -> None:
    """Acting row by row and learning from sequences agree on Q, noise left out."""
    env = make_env(Cue, 2)
    found = agent(
        {"type": "dqn", "learning_starts": 20, "batch_size": 4, "updates_per_env_step": 0.1, **options}
    )
    trainer = Trainer(found, env)
    trainer.fit(60)
    obs, state = torch.randn(5, 2, 2), found.model.initial_state(2)
    first = torch.zeros(5, 2, dtype=torch.bool)
    first[3] = True
    found.model.eval()
    with torch.no_grad():
        whole = found.model.q(obs, state, first)
        for t in range(5):
            q, state = found.actor.policy._mean.step(obs[t], state, first[t])
            assert torch.allclose(whole[t], q, atol=1e-5)
    trainer.close()
