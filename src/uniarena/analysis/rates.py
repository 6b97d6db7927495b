"""How fast single parts are, each alone: environments with random actions, updates on data that is ready."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from uniarena.batch import Rollout, Tree, tree_map
from uniarena.buffers.rollout import RolloutBuffer
from uniarena.envs.protocol import Env
from uniarena.envs.spaces import MASK
from uniarena.explorers.uniform import UniformActions

Clock = Callable[[], float]
DRAWN = 16
"""Random actions that are drawn beforehand and given in turn."""
CHUNK = 256
"""Rows that replay is filled by."""


@dataclass(frozen=True)
class Rate:
    """So many in so many seconds.

    Attributes:
        count: environment steps, or updates.
        seconds: of the clock.
    """

    count: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.count / self.seconds if self.seconds > 0 else float("inf")


def environment_rate(env: Env, seconds: float, clock: Clock = time.perf_counter, seed: int = 0) -> Rate:
    """Environment steps (B for a step of all columns) with random actions, for about `seconds`.

    The first three steps are not counted: they allocate. At least three are.
    """
    obs = env.reset(seed=seed)
    actions = random_actions(env, seed)
    for _ in range(3):
        obs = env.step(actions(obs)).obs
    steps, started = 0, clock()
    while True:
        obs = env.step(actions(obs)).obs
        steps += 1
        elapsed = clock() - started
        if steps >= 3 and elapsed >= seconds:
            return Rate(steps * env.num_envs, elapsed)


def random_actions(env: Env, seed: int = 0) -> Callable[[Tree], Tree]:
    """Observations → random actions `[B, …]` as a policy would give them, legal ones where there are masks."""
    space, generator = env.action_map.policy_space, torch.Generator().manual_seed(seed)
    if isinstance(env.observation_space, spaces.Dict) and MASK in env.observation_space.spaces:
        uniform = UniformActions(space, "environment.action_mask")

        def legal(obs: Tree) -> Tree:
            noise = uniform.noise(1, env.num_envs, generator)
            mask = torch.as_tensor(obs[MASK]).cpu()
            return _for(env, uniform.act(tree_map(lambda leaf: leaf[0], noise), mask))

        return legal
    batch = batch_space(space, env.num_envs)
    batch.seed(seed)
    drawn = itertools.cycle([_for(env, _plain(batch.sample())) for _ in range(DRAWN)])
    return lambda obs: next(drawn)


def _plain(tree: Any) -> Tree:
    """Gymnasium's containers as ours."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    return tuple(map(_plain, tree)) if isinstance(tree, tuple) else tree


def _for(env: Env, action: Tree) -> Tree:
    if env.tensor:
        return tree_map(lambda leaf: torch.as_tensor(leaf).to(env.device), action)
    return tree_map(np.asarray, action)


def ready_data(trainer: Any) -> Rollout | None:
    """Experience for updates: a rollout of the size of an update, in memory of its own; None: replay holds some now."""
    agent, sampler = trainer.agent, trainer.sampler
    sampler.publish(agent.actor, trainer.counters.updates)
    rows = trainer.schedule.steps_per_update(sampler.columns)
    if isinstance(agent.buffer, RolloutBuffer):
        agent.buffer.forget()
        rollout = agent.observe(sampler.collect(rows)).clone()
        agent.buffer.forget()
        return rollout
    while not agent.buffer.ready:
        agent.observe(sampler.collect(max(rows, CHUNK)))
    return None


def update_rate(
    trainer: Any, ready: Rollout | None, seconds: float, clock: Clock = time.perf_counter
) -> Rate:
    """Updates of the trainer's agent for about `seconds`, at least two; they change it.

    Args:
        ready: what `ready_data` gave: on-policy updates are made on it again and again.
    """
    agent = trainer.agent
    update: Callable[[], Any] = agent.update
    if ready is not None:
        update = partial(agent.learner.update, agent._paid(ready))
    return _rate(update, 1, seconds, clock)


def act_rate(trainer: Any, seconds: float, clock: Clock = time.perf_counter) -> Rate:
    """Actions of all columns (B for one call) of the published actor on its newest observations."""
    actor, sampler = trainer.agent.actor, trainer.sampler
    device, columns = trainer.agent.device, sampler.columns
    obs = tree_map(lambda leaf: torch.as_tensor(leaf).to(device), sampler.last_obs)
    state, first = actor.initial_state(columns), torch.zeros(columns, dtype=torch.bool, device=device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        noise = actor.noise(1, columns, generator)
        row = None if noise is None else tree_map(lambda leaf: leaf[0], noise)
        return _rate(lambda: actor.act(obs, state, first, row, generator), columns, seconds, clock)


def _rate(call: Callable[[], Any], worth: int, seconds: float, clock: Clock) -> Rate:
    """Calls for about `seconds`, two at least, after one that is not counted."""
    call()
    count, started = 0, clock()
    while True:
        call()
        count += 1
        elapsed = clock() - started
        if count >= 2 and elapsed >= seconds:
            return Rate(count * worth, elapsed)


def threads_of(counts: list[int]) -> Iterator[int]:
    """Each number of torch threads in turn, set while it is at hand; afterwards it is as it was."""
    before = torch.get_num_threads()
    try:
        for count in counts:
            torch.set_num_threads(count)
            yield count
    finally:
        torch.set_num_threads(before)
