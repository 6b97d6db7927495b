"""Episode returns and lengths across chunk borders, equal to a plain loop."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from uniarena.batch import Batch, Rollout
from uniarena.sampling.episodes import EpisodeTracker


def chunk(
    reward: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor, valid: torch.Tensor
) -> Rollout:
    shape = reward.shape
    rows = Batch(shape, reward=reward, terminated=terminated, truncated=truncated, valid=valid)
    empty = Batch((shape[1],), is_first=torch.zeros(shape[1], dtype=torch.bool))
    return Rollout(rows, empty, empty)


@given(
    seed=st.integers(0, 10_000), steps=st.integers(1, 12), columns=st.integers(1, 3), cuts=st.integers(1, 4)
)
def test_equals_a_plain_loop_over_any_chunking(seed: int, steps: int, columns: int, cuts: int) -> None:
    gen = torch.Generator().manual_seed(seed)
    total = steps * cuts
    reward = torch.randint(-3, 4, (total, columns), generator=gen).float()
    terminated = torch.rand(total, columns, generator=gen) < 0.2
    truncated = torch.rand(total, columns, generator=gen) < 0.1
    valid = torch.rand(total, columns, generator=gen) < 0.9
    terminated, truncated = terminated & valid, truncated & valid
    expected, sums, lengths = [], [0.0] * columns, [0] * columns
    for t in range(total):
        for b in range(columns):
            if valid[t, b]:
                sums[b] += reward[t, b].item()
                lengths[b] += 1
            if terminated[t, b] or truncated[t, b]:
                expected.append((b, sums[b], lengths[b]))
                sums[b], lengths[b] = 0.0, 0
    tracker, found = EpisodeTracker(), []
    for start in range(0, total, steps):
        part = slice(start, start + steps)
        other = EpisodeTracker()  # state survives a save between chunks
        other.load_state_dict(tracker.state_dict())
        tracker = other
        found += tracker.update(chunk(reward[part], terminated[part], truncated[part], valid[part]))
    assert [(e.env, e.episode_return, e.length) for e in found] == expected


def test_an_episode_that_a_declared_boundary_cut_is_not_reported() -> None:
    """Three columns end in the last row: by termination, by their own time limit, and by the boundary."""
    reward, none = torch.ones(3, 3), torch.zeros(3, 3, dtype=torch.bool)
    terminated, truncated = none.clone(), none.clone()
    terminated[2, 0], truncated[2, 1:] = True, True
    rollout = chunk(reward, terminated, truncated, ~none)
    cut = replace(rollout, last=rollout.last.replace(cut=torch.tensor([False, False, True])))
    tracker = EpisodeTracker()
    assert [(e.env, e.episode_return) for e in tracker.update(cut)] == [(0, 3.0), (1, 3.0)]
    again = tracker.update(chunk(reward, none, terminated | truncated, ~none))
    assert [e.length for e in again] == [3, 3, 3], "the cut episode must not leak into the next one"


def test_returns_are_in_the_reward_before_wrappers_changed_it() -> None:
    reward, done = torch.ones(2, 1), torch.tensor([[False], [True]])
    none = torch.zeros_like(done)
    rollout = chunk(reward, done, none, torch.tensor([[True], [True]]))
    raw = replace(rollout, rows=rollout.rows.replace(info={"raw_reward": reward * 7}))
    assert EpisodeTracker().update(raw)[0].episode_return == 14.0


def test_further_reward_streams_are_summed_beside() -> None:
    reward, done = torch.ones(2, 1), torch.tensor([[False], [True]])
    none = torch.zeros_like(done)
    found = EpisodeTracker().update(chunk(reward, done, none, ~none), {"intrinsic_return": reward * 0.5})
    assert found[0].episode_return == 2.0 and found[0].totals == {"intrinsic_return": 1.0}
