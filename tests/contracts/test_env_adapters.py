"""One counting environment through every adapter and autoreset mode: the same real transitions, by numbers
made by hand.

Columns last 1, 2, 3 and 5 steps. In 40 real steps of a column of length L the observations before the steps
are 0, 1, …, L-1, 0, 1, …; the successor of each is one more, and it is the true one also where the episode
ends.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from tests.fakes.envs import (
    CounterEnv,
    CounterVectorEnv,
    IsaacCounter,
    LegacyBareEnv,
    LegacyFiveEnv,
    TensorCounter,
)
from uniarena.envs import Env, UniArenaNotice, WorkersConfig, make_env

LENGTHS = (1, 2, 3, 5)
Transition = tuple[
    int, int, float, bool, bool, bool
]  # obs, successor, reward, terminated, truncated, is_first


def _counters(end: str) -> list[Callable[[], CounterEnv]]:
    return [lambda n=n: CounterEnv(n, end, last_reward=7.0) for n in LENGTHS]


class _Rewarded(CounterVectorEnv):
    """The native vector counter with the same reward on the last step."""

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        return obs, np.where(terminated | truncated, 7.0, reward), terminated, truncated, info


def _sync(mode: str) -> Callable[[str], Env]:
    return lambda end: make_env(SyncVectorEnv(_counters(end), autoreset_mode=mode))


def _async(mode: str) -> Callable[[str], Env]:
    return lambda end: make_env(AsyncVectorEnv(_counters(end), autoreset_mode=mode))


def _native(mode: str) -> Callable[[str], Env]:
    return lambda end: make_env(_Rewarded(4, LENGTHS, mode, end))


def _tensor(cls: type[TensorCounter], final: Any) -> Callable[[str], Env]:
    return lambda end: make_env(cls(4, LENGTHS, end, final, last_reward=7.0))


def _legacy(cls: type[LegacyBareEnv]) -> Callable[[str], Env]:
    return lambda end: make_env([lambda n=n: cls(n, end, last_reward=7.0) for n in LENGTHS])


ADAPTERS: dict[str, Callable[[str], Env]] = {
    "serial": lambda end: make_env(_counters(end)),
    "made_sync": lambda end: make_env(_counters(end), vectorization="sync"),
    "made_async": lambda end: make_env(_counters(end), vectorization="async"),
    "two_workers": lambda end: make_env(_counters(end), vectorization=WorkersConfig(processes=2)),
    **{f"sync_{mode}": _sync(mode) for mode in ("NextStep", "SameStep", "Disabled")},
    **{f"async_{mode}": _async(mode) for mode in ("NextStep", "SameStep", "Disabled")},
    **{f"native_{mode}": _native(mode) for mode in ("NextStep", "SameStep", "Disabled")},
    "legacy_bare": _legacy(LegacyBareEnv),
    "legacy_five": _legacy(LegacyFiveEnv),
    "tensor_final": _tensor(TensorCounter, "info"),
    "tensor_dense": _tensor(TensorCounter, "dense"),
    "isaac_final": _tensor(IsaacCounter, "info"),
}


def expected(length: int, end: str, count: int) -> list[Transition]:
    """The first `count` transitions of a column, by hand."""
    rows = []
    for k in range(count):
        at = k % length
        done = at == length - 1
        reward = 7.0 if done else 1.0
        rows.append(
            (at, at + 1, reward, done and end == "termination", done and end == "truncation", at == 0)
        )
    return rows


def run(env: Env, steps: int) -> tuple[list[list[Transition]], int]:
    """Step and gather real transitions by column, as the contract says that they are to be read; and what
    was invalid.
    """
    obs, invalid = _column(env.reset(seed=0)), 0
    is_first = np.ones(env.num_envs, bool)
    found: list[list[Transition]] = [[] for _ in range(env.num_envs)]
    action = (
        torch.zeros(env.num_envs, 1, device=env.device) if env.tensor else np.zeros(env.num_envs, np.int64)
    )
    for _ in range(steps):
        step = env.step(action)
        valid = np.ones(env.num_envs, bool) if step.valid is None else np.array(step.valid)
        after = _column(step.obs)
        successor = after.copy() if step.next_obs is None else _column(step.next_obs)
        if step.final is not None:
            successor[np.asarray(step.final.index)] = _column(step.final.obs)
        reward, terminated, truncated = (_numpy(x) for x in (step.reward, step.terminated, step.truncated))
        assert reward.dtype == np.float32
        ended = np.flatnonzero(terminated | truncated)
        if step.next_obs is None:
            assert ended.tolist() == ([] if step.final is None else np.asarray(step.final.index).tolist())
        for b in range(env.num_envs):
            if not valid[b]:
                invalid += 1
                assert reward[b] == 0 and not terminated[b] and not truncated[b] and step.is_first[b]
                continue
            flags = bool(terminated[b]), bool(truncated[b]), bool(is_first[b])
            found[b].append((int(obs[b]), int(successor[b]), float(reward[b]), *flags))
        obs, is_first = after, _numpy(step.is_first)
        assert (obs[is_first] == 0).all()
    return found, invalid


def _column(obs: Any) -> np.ndarray:
    return _numpy(obs).reshape(-1)


def _numpy(array: Any) -> np.ndarray:
    return array.cpu().numpy().copy() if isinstance(array, torch.Tensor) else np.array(array)


@pytest.mark.parametrize("end", ["termination", "truncation"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter_gives_the_same_real_transitions(name: str, end: str) -> None:  # case B05, B07
    env = ADAPTERS[name](end)
    try:
        found, invalid = run(env, 40)
    finally:
        env.close()
    for length, rows in zip(LENGTHS, found, strict=True):
        assert rows == expected(length, end, len(rows))
    if "NextStep" in name:  # one step in length + 1 is only a reset
        assert [len(rows) for rows in found] == [40 - 40 // (n + 1) for n in LENGTHS]
        assert invalid == sum(40 // (n + 1) for n in LENGTHS)
    else:
        assert [len(rows) for rows in found] == [40] * 4 and invalid == 0


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_stored_transitions_are_as_many_as_true_steps(mode: str) -> None:  # case B07
    vector = CounterVectorEnv(4, LENGTHS, mode)
    env = make_env(vector)
    found, _ = run(env, 40)
    assert [len(rows) for rows in found] == vector.real_steps.tolist()


def test_without_final_observations_it_is_said_once() -> None:  # case B95
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        env = make_env(TensorCounter(4, LENGTHS))
        env.reset()
        for _ in range(10):
            step = env.step(torch.zeros(4, 1))
            assert step.next_obs is None and step.final is None
    assert [w.category for w in said] == [UniArenaNotice]
    assert "own value" in str(said[0].message)
    assert not env.has_final_obs and make_env(TensorCounter(4, LENGTHS, final="info")).has_final_obs
