"""A time limit truncates, keeps the true last observation and resets only the columns concerned."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.wrappers.columns import MODES, Columns, numpy, zeros
from uniarena.config import ConfigError
from uniarena.envs.wrappers.frame_stack import FrameStack, FrameStackConfig
from uniarena.envs.wrappers.time_limit import TimeLimit, TimeLimitConfig


def episodes(
    mode: str, limit: int, lengths: tuple[int, ...], steps: int = 25
) -> list[list[tuple[int, bool, float]]]:
    """Per column the ended episodes: (valid steps, truncated, last observation less the column's offset)."""
    env = TimeLimit(Columns(mode, lengths=lengths), TimeLimitConfig(max_episode_steps=limit))
    env.reset()
    done: list[list[tuple[int, bool, float]]] = [[] for _ in lengths]
    length = np.zeros(len(lengths), int)
    for _ in range(steps):
        step = env.step(zeros(env))
        valid = np.ones(len(lengths), bool) if step.valid is None else numpy(step.valid)
        length += valid
        last = {}
        if step.final is not None:
            last = {int(b): float(step.final.obs[k, 0]) for k, b in enumerate(step.final.index)}
        elif step.next_obs is not None:
            last = {b: float(step.next_obs[b, 0]) for b in range(len(lengths))}
        ended = numpy(step.terminated) | numpy(step.truncated)
        for b in np.flatnonzero(ended):
            done[b].append((int(length[b]), bool(step.truncated[b]), last[b] % 10))
            length[b] = 0
            if bool(step.truncated[b]):
                assert bool(step.is_first[b]) and float(step.obs[b, 0]) % 10 == 0
                assert float(step.reward[b]) == done[b][-1][0]
    return done


@pytest.mark.parametrize("mode", MODES)
def test_only_longer_episodes_are_cut_and_their_last_observation_is_kept(mode: str):
    done = episodes(mode, limit=3, lengths=(2, 3, 5, 100))
    assert all(episode == (2, False, 2.0) for episode in done[0])
    assert all(episode == (3, False, 3.0) for episode in done[1])  # ended by itself on the very step
    for column in done[2:]:
        assert len(column) == 8 and all(episode == (3, True, 3.0) for episode in column)


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_of_one_and_one_that_is_never_reached(mode: str):
    assert all(episode == (1, True, 1.0) for column in episodes(mode, 1, (2, 5)) for episode in column)
    assert all(not truncated for column in episodes(mode, 6, (2, 5)) for _, truncated, _ in column)


@pytest.mark.parametrize("mode", MODES)
def test_stacked_frames_below_the_limit_are_right_at_the_cut(mode: str):
    env = TimeLimit(
        FrameStack(Columns(mode, lengths=(9, 2)), FrameStackConfig(n_frames=2)),
        TimeLimitConfig(max_episode_steps=3),
    )
    env.reset()
    for _ in range(2):
        env.step(zeros(env))
    step = env.step(zeros(env))
    last = (
        step.next_obs[0] if step.next_obs is not None else step.final.obs[step.final.index.tolist().index(0)]
    )
    assert last.tolist() == [2, 3] and step.obs[0].tolist() == [10, 10] and bool(step.truncated[0])
    assert env.step(zeros(env)).obs[0].tolist() == [10, 11]


def test_the_device_is_asked_only_when_a_column_could_be_over(monkeypatch: pytest.MonkeyPatch):
    env = TimeLimit(Columns("tensor_dense", lengths=(1000, 1000)), TimeLimitConfig(max_episode_steps=50))
    env.reset()
    asked = []
    real = torch.Tensor.any
    monkeypatch.setattr(torch.Tensor, "any", lambda self, *a, **k: asked.append(1) or real(self, *a, **k))
    for _ in range(100):
        env.step(zeros(env))
    assert len(asked) <= 4


@pytest.mark.parametrize("mode", ["next_step", "tensor_dense"])
def test_counters_are_saved_state(mode: str):
    def make() -> TimeLimit:
        env = TimeLimit(Columns(mode, lengths=(100, 3)), TimeLimitConfig(max_episode_steps=5))
        env.reset()
        return env

    env, other = make(), make()
    for _ in range(3):
        env.step(zeros(env))
    other.load_state_dict(env.state_dict())
    for _ in range(9):
        a, b = env.step(zeros(env)), other.step(zeros(other))
        assert numpy(a.truncated).tolist() == numpy(b.truncated).tolist()


def test_a_backend_without_partial_reset_is_answered_with_its_own_option():
    inner = Columns("same_step")
    inner.partial_reset = False
    with pytest.raises(ConfigError, match="cannot reset single environments") as caught:
        TimeLimit(inner, TimeLimitConfig(max_episode_steps=200))
    assert "environment.max_episode_steps: 200" in str(caught.value)
    with pytest.raises(ConfigError, match="max_episode_steps is 0"):
        TimeLimitConfig(max_episode_steps=0)
