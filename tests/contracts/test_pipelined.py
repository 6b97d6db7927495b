"""A chunk in flight: the loop, the state and an exact resume need no more than what every sampler has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contracts.doors import Pipelined
from tests.resume.runs import differ
from uniarena import checkpoint
from uniarena.agent import Agent
from uniarena.envs import make_env
from uniarena.seeding import seed_globals
from uniarena.trainer import Trainer

CHUNK = 4 * 16


class Watch:
    """Keeps the parameters that each chunk was collected with, and those after each update."""

    def __init__(self) -> None:
        self.after: list[torch.Tensor] = []
        self.used: list[torch.Tensor] = []

    def on_training_start(self, trainer: Any, event: Any) -> None:
        self.after.append(_weight(trainer.agent.actor))

    def on_update_end(self, trainer: Any, event: Any) -> None:
        self.after.append(_weight(trainer.agent.actor))

    def on_batch_collected(self, trainer: Any, event: Any) -> None:
        self.used.append(_weight(trainer.sampler.flying))  # of the chunk that is in flight now


def _weight(actor: Any) -> torch.Tensor:
    return next(actor.policy.network.parameters()).detach().clone()


def build(folder: Path | None, *callbacks: Any) -> Trainer:
    seed_globals(7)
    env = make_env("CartPole-v1", 4, wrappers=["normalize_observation", "normalize_reward"])
    agent = Agent.assemble(
        env,
        {"type": "ppo", "n_steps": 16, "n_epochs": 2, "batch_size": 32},
        policy={"hidden_sizes": [8]},
        parts={"intrinsic": {"type": "rnd", "hidden_sizes": [8], "feature_dim": 4}},
        seed=7,
    )
    trainer = Trainer(agent, env, callbacks=callbacks, run_dir=folder)
    trainer.sampler = Pipelined(trainer.sampler)  # type: ignore[assignment]
    return trainer


def test_each_chunk_is_collected_with_what_was_published_two_updates_before() -> None:
    watch = Watch()
    trainer = build(None, watch)
    trainer.fit(4 * CHUNK)
    # while update k runs, chunk k + 1 is in flight with the parameters after update k − 1
    assert len(watch.used) == 4 and len(watch.after) == 5
    for k, used in enumerate(watch.used, start=1):
        assert torch.equal(used, watch.after[k - 1])
    assert not torch.equal(watch.after[0], watch.after[1])


@pytest.mark.parametrize("at", [1, 3])
def test_resumed_with_a_chunk_in_flight_it_ends_bit_for_bit_as_uninterrupted(at: int, tmp_path: Path) -> None:
    class Save:
        def on_iteration_end(self, trainer: Trainer, event: Any) -> None:
            if trainer.counters.iterations == at:
                trainer.save()

    whole = build(tmp_path, Save())
    whole.fit(6 * CHUNK)
    state, meta = checkpoint.load(tmp_path / "checkpoints" / str(at * CHUNK))
    assert meta["counters"]["iterations"] == at
    torch.manual_seed(0)
    resumed = build(None, Save())
    resumed.sampler.publish(resumed.agent.actor, 0)  # there must be actors to load into
    resumed.load_state_dict(state)
    resumed.fit(6 * CHUNK)
    assert [*differ(whole.state_dict(), resumed.state_dict(), "state")] == []
