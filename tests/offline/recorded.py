"""Behaviour to learn from: what an untrained policy does in an environment, in the buffer of another agent."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any, ClassVar

from uniarena import Agent, make_env
from uniarena.batch import Rollout
from uniarena.buffers.replay import ReplayBuffer
from uniarena.buffers.sequence import SequenceReplay
from uniarena.buffers.spec import BufferSpec
from uniarena.config import config
from uniarena.sampling import LocalSampler


def behaviour(spec: Any, rows: int, columns: int = 8, seed: int = 0) -> Rollout:
    """`[rows, columns]` of a policy whose actions are all but uniform, or wide Gaussians."""
    env = make_env(spec, columns)
    agent = Agent.assemble(env, {"type": "ppo"}, seed=seed)
    sampler = LocalSampler(env, agent.streams)
    sampler.publish(agent.actor, 0)
    found = sampler.collect(rows * columns).clone()
    env.close()
    return found


def given(spec: Any, learner: dict[str, Any], rollout: Rollout, **parts: Any) -> Agent:
    """An agent whose buffer holds this data."""
    env = make_env(spec, rollout.B)
    policy = parts.pop("policy", {"hidden_sizes": [32]})
    buffer = {"capacity": rollout.T * rollout.B, **parts.pop("buffer", {})}
    agent = Agent.assemble(env, learner, policy=policy, parts={"buffer": buffer, **parts})
    agent.buffer.add(rollout)
    env.close()
    return agent


class Kills:
    """Ends its process without warning in the middle of an iteration, where the environment variable says so."""

    def __init__(self) -> None:
        self.left = int(os.environ.get("KILL_AFTER", "0"))

    def on_update_end(self, trainer: Any, event: Any) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


@config
class RecordedConfig:
    """Which behaviour, and what is drawn of it."""

    env: str = "Pendulum-v1"  # that was stepped
    rows: int = 50  # of each of the columns
    length: int | None = None  # of sequences; null: single rows


class Recorded:
    """Fixed data: random behaviour, gathered anew whenever it is made, and always the same."""

    Config: type = RecordedConfig
    gives_sequences: ClassVar[bool] = True
    fixed: ClassVar[bool] = True

    def __init__(self, cfg: RecordedConfig, spec: BufferSpec) -> None:
        rollout = behaviour(cfg.env, cfg.rows, 4)
        spec = BufferSpec(**{**vars(spec), "columns": 4})
        size = {"capacity": cfg.rows * 4}
        if cfg.length is None:
            self.rows: Any = ReplayBuffer(ReplayBuffer.Config(**size), spec)
        else:
            self.rows = SequenceReplay(SequenceReplay.Config(**size, length=cfg.length, burn_in=0), spec)
        self.rows.add(rollout)
        self.sample, self.recent = self.rows.sample, self.rows.recent
        self.reprioritise = self.rows.reprioritise
        self.size, self.ready = self.rows.size, True

    def observations(self) -> Iterator[Any]:
        """All of them."""
        yield self.rows.recent(10_000).flatten().obs

    def add(self, rollout: Rollout) -> None:
        """Nothing can be added."""
        assert rollout.T == 0

    def state_dict(self) -> dict[str, Any]:
        return {"size": self.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == self.state_dict()
