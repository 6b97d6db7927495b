"""The counting environment behind every adapter, sampled for real, and what its numbers must be, made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from torch import Tensor

from tests.fakes.envs import CounterEnv, CounterVectorEnv, TensorCounter
from uniarena.agent import Agent
from uniarena.batch import Batch, Rollout
from uniarena.envs import Env, make_env
from uniarena.sampling import LocalSampler

LENGTHS = (1, 2, 3, 5)
Make = Callable[[Sequence[int], str], Env]


def _counters(lengths: Sequence[int], end: str) -> list[Callable[[], CounterEnv]]:
    return [lambda n=n: CounterEnv(n, end) for n in lengths]


def _tensor(final: Any) -> Make:
    return lambda lengths, end: make_env(TensorCounter(len(lengths), lengths, end, final))


def _gymnasium(kind: type, mode: str) -> Make:
    return lambda lengths, end: make_env(kind(_counters(lengths, end), autoreset_mode=mode))


def _native(mode: str) -> Make:
    return lambda lengths, end: make_env(CounterVectorEnv(len(lengths), lengths, mode, end))


MODES = ("NextStep", "SameStep", "Disabled")
FORMS: dict[str, Make] = {
    "serial": lambda lengths, end: make_env(_counters(lengths, end)),
    **{f"sync_{mode}": _gymnasium(SyncVectorEnv, mode) for mode in MODES},
    **{f"native_{mode}": _native(mode) for mode in MODES},
    "async_NextStep": _gymnasium(AsyncVectorEnv, "NextStep"),
    "tensor_final": _tensor("info"),
    "tensor_dense": _tensor("dense"),
}
"""Name → (lengths of the columns' episodes, how they end) → the environment."""


@dataclass
class Sampled:
    """An agent whose value function is fixed, and the sampler it acts through."""

    agent: Agent
    sampler: LocalSampler

    def collect(self, steps: int) -> Rollout:
        """`steps` vector steps."""
        return self.sampler.collect(steps * self.sampler.columns)

    def targets(self, rollout: Rollout) -> Batch:
        """The rows that the learner's loss gets, with `advantage` and `target` [T, B]."""
        self.agent.buffer.add(rollout)
        rows, _ = self.agent.learner.targets(self.agent.buffer.sample())
        return rows


def sampled(env: Env, value: Callable[[Tensor], Tensor], **learner: Any) -> Sampled:
    """PPO with γ = 0.9 and raw advantages, whose value of obs `[N, 1]` is `value(count [N])`."""
    fields = {"gamma": 0.9, "normalize_advantage": False, **learner}
    agent = Agent.assemble(env, {"type": "ppo", **fields}, policy={"hidden_sizes": [4]})
    agent.model.value = lambda obs, *_: value(obs[:, 0])  # type: ignore[method-assign]
    sampler = LocalSampler(env, agent.streams, agent.learner.records)
    sampler.publish(agent.actor, 0)
    return Sampled(agent, sampler)


def ten(count: Tensor) -> Tensor:
    """V(s) = 10."""
    return torch.full_like(count, 10.0)


def own(count: Tensor) -> Tensor:
    """V(s) = s: the count itself, so that a value tells which observation it is of."""
    return count.clone()


@dataclass(frozen=True)
class Transition:
    """One real step of a column."""

    at: int
    after: int
    reward: float
    terminated: bool
    truncated: bool


def transitions(length: int, end: str, count: int) -> list[Transition]:
    """The first `count` real steps of a column of episodes of that length, by hand."""
    found = []
    for k in range(count):
        at, over = k % length, k % length == length - 1
        found.append(Transition(at, at + 1, 1.0, over and end == "termination", over and end == "truncation"))
    return found


def gae_of(
    steps: Sequence[Transition], value: Callable[[float], float], gamma: float, lam: float
) -> list[float]:
    """Advantages of consecutive steps of one column, episode by episode, written as in the paper: a plain loop."""
    found, following = [0.0] * len(steps), 0.0
    for k in reversed(range(len(steps))):
        s = steps[k]
        delta = s.reward + gamma * value(s.after) * (not s.terminated) - value(s.at)
        found[k] = delta + (0.0 if s.terminated or s.truncated else gamma * lam * following)
        following = found[k]
    return found
