"""What a buffer tells of the rows after a transition: the action that followed, and what the episode paid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.fakes.envs import CounterEnv
from uniarena import Agent, make_env
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.buffers.sequence import SequenceConfig, SequenceReplay
from uniarena.buffers.spec import BufferSpec
from uniarena.sampling import LocalSampler

ASKED = ("next_action", "return_to_go")


def filled(steps: int, kind: Any = ReplayBuffer, cfg: Any = None, columns: int = 2, **fields: Any) -> Any:
    """Episodes of 3 and 2 steps by turns, whose observation is the number of the step and whose last reward is 5."""
    end = fields.pop("end", "termination")
    env = make_env(lambda: CounterEnv([3, 2], end=end, last_reward=5.0), columns)
    agent = Agent.assemble(env, {"type": "ppo"})
    sampler = LocalSampler(env, agent.streams)
    sampler.publish(agent.actor, 0)
    spec = BufferSpec(
        spaces.Box(0.0, np.inf, (1,)), spaces.Discrete(2), columns, gamma=0.5, asked=ASKED, **fields
    )
    buffer = kind(cfg or kind.Config(capacity=100), spec)
    rows = sampler.collect(steps * columns).clone()
    # the action tells its row: 10 · column + step
    action = torch.arange(steps)[:, None] + 10 * torch.arange(columns)
    buffer.add(rows.__class__(rows.rows.replace(action=action), rows.start, rows.last, rows.ended))
    env.close()
    return buffer, rows


def by_hand(rows: Any, step: int, column: int) -> tuple[bool, float]:
    """Whether an action followed, and the rest of the episode with γ = 0.5."""
    if step >= rows.T:
        return False, 0.0
    over = bool(rows.rows.terminated[step, column] | rows.rows.truncated[step, column])
    rest = 0.0 if over else 0.5 * by_hand(rows, step + 1, column)[1]
    return not over and step + 1 < rows.T, float(rows.rows.reward[step, column]) + rest


@pytest.mark.parametrize("end", ["termination", "truncation"])
def test_the_action_that_followed_and_the_rest_of_the_episode(end: str) -> None:
    buffer, rows = filled(6, end=end)
    batch = buffer.sample(torch.Generator().manual_seed(0), 200)
    found = [by_hand(rows, int(a) % 10, int(a) // 10) for a in batch.action]
    assert batch.followed.tolist() == [followed for followed, _ in found]
    assert {True, False} == set(batch.followed.tolist())
    assert torch.equal(batch.next_action[batch.followed], batch.action[batch.followed] + 1)
    assert batch.return_to_go.tolist() == pytest.approx([rest for _, rest in found])


def test_after_several_steps_it_is_the_action_after_the_last() -> None:
    buffer, _ = filled(6, n_step=2)
    batch = buffer.sample(torch.Generator().manual_seed(0), 100)
    inside = batch.followed
    assert bool(inside.any())
    assert torch.equal(batch.next_action[inside], batch.action[inside] + batch.n[inside])


def test_returns_follow_what_is_added() -> None:
    buffer, rows = filled(5)
    before = buffer.sample(torch.Generator().manual_seed(0), 50).return_to_go
    buffer.add(rows)
    after = buffer.sample(torch.Generator().manual_seed(0), 200)
    assert len(after.return_to_go) == 200 and float(before.max()) == 5.0
    assert bool((after.return_to_go[after.terminated] == 5.0).all())


def test_sequences_have_them_too() -> None:
    cfg = SequenceConfig(capacity=100, length=3, burn_in=0)
    buffer, _ = filled(6, SequenceReplay, cfg)
    batch = buffer.sample(torch.Generator().manual_seed(0), 50)
    ends = batch.valid & batch.terminated
    assert batch.return_to_go.shape == (3, 50) and bool((batch.return_to_go[ends] == 5.0).all())


def test_nobody_asked_and_nothing_is_given() -> None:
    spec = BufferSpec(spaces.Box(0.0, np.inf, (1,)), spaces.Discrete(2), 1)
    buffer = ReplayBuffer(ReplayConfig(capacity=10), spec)
    _, rows = filled(5, columns=1)
    buffer.add(rows)
    assert {"next_action", "followed", "return_to_go"}.isdisjoint(buffer.sample(size=4))
