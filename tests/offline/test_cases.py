"""B78, B81, B83: ends without flags, terminal rows in a row, step formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.offline.episodes import keyed
from uniarena.data import DataConfig, load, records
from uniarena.data.rows import END, FIXED, JUMP, LIMIT

FORMS = [pytest.param(".npz"), pytest.param(".hdf5", marks=pytest.mark.extra("offline"))]


def walk(lengths: list[int], seed: int = 0) -> np.ndarray:
    """Slow random walks that each begin far from where the one before ended."""
    rng = np.random.default_rng(seed)
    parts = [np.cumsum(rng.normal(size=(n, 3)) * 0.1, axis=0) + 40 * k for k, n in enumerate(lengths)]
    return np.concatenate(parts).astype(np.float32)


def thousand(path: Path) -> Path:
    """B78: 1000 rows of 3 episodes, the second of which ends without a flag."""
    terminals = np.zeros(1000, bool)
    terminals[[399, 999]] = True
    actions = np.random.default_rng(1).normal(size=(1000, 2)).astype(np.float32)
    return keyed(
        path, observations=walk([400, 300, 300]), actions=actions, rewards=np.ones(1000), terminals=terminals
    )


@pytest.mark.parametrize("suffix", FORMS)
def test_an_end_without_a_flag_is_left_out_and_counted(tmp_path: Path, suffix: str) -> None:
    data = load(thousand(tmp_path / f"b78{suffix}"))
    assert (len(data), data.lengths.tolist()) == (999, [400, 299, 300])
    assert data.account.dropped == {JUMP: 1}
    assert np.flatnonzero(data.truncated).tolist() == [698]  # what the row before leads to is known
    assert np.flatnonzero(data.terminated).tolist() == [399, 998]


@pytest.mark.parametrize("suffix", FORMS)
def test_the_user_chooses_how_ends_are_found(tmp_path: Path, suffix: str) -> None:
    path = str(thousand(tmp_path / f"b78{suffix}"))
    jumps = load(DataConfig(path=path, boundary="jump", jump=20.0))
    assert (jumps.account.dropped, jumps.account.lengths.tolist()) == ({JUMP: 1}, [400, 300, 300])
    fixed = load(DataConfig(path=path, boundary="fixed_length", episode_length=350))
    assert fixed.account.lengths.tolist() == [350, 50, 350, 250]
    assert fixed.account.dropped == {FIXED: 2}
    assert len(fixed) == 998


@pytest.mark.parametrize("suffix", FORMS)
@pytest.mark.parametrize("explicit", [False, True])
def test_terminal_rows_in_a_row(tmp_path: Path, suffix: str, explicit: bool) -> None:
    obs = np.arange(5, dtype=np.float32)[:, None]
    more: dict[str, Any] = {"next_observations": obs + 1} if explicit else {}
    terminals = np.array([0, 1, 1, 0, 0])
    path = keyed(
        tmp_path / f"b81{suffix}",
        observations=obs,
        actions=np.zeros((5, 1), np.float32),
        rewards=np.arange(5.0),
        terminals=terminals,
        **more,
    )
    data = load(path)
    assert data.account.lengths.tolist() == [2, 1, 2]
    assert data.terminated.tolist() == [False, True, True, False, False][: len(data)]
    assert data.truncated.tolist() == [False] * (len(data) - 1) + [True]
    assert data.account.dropped == ({} if explicit else {END: 1})
    assert data.next_obs(np.arange(len(data)))[data.rows.known].ravel().tolist() == (
        [1, 2, 3, 4, 5] if explicit else [1, 4]
    )
    assert data.unknown_finals == (0 if explicit else 2)


def test_a_time_limit_without_its_last_observation_is_no_transition(tmp_path: Path) -> None:
    obs, n = walk([4, 4]), 8
    timeouts = np.array([0, 0, 0, 1, 0, 0, 0, 1])
    given = {"observations": obs, "actions": np.zeros((n, 1), np.float32), "rewards": np.ones(n)}
    path = keyed(tmp_path / "a.npz", **given, terminals=np.zeros(n), timeouts=timeouts)
    data = load(path)
    assert (data.lengths.tolist(), data.account.dropped) == ([3, 3], {LIMIT: 2})
    assert data.truncated.tolist() == [False, False, True] * 2
    np.testing.assert_array_equal(data.next_obs(np.arange(6)), obs[[1, 2, 3, 5, 6, 7]])
    explicit = keyed(
        tmp_path / "b.npz",
        **given,
        terminals=np.zeros(n),
        timeouts=timeouts,
        next_observations=np.concatenate([obs[1:4], [[9, 9, 9]], obs[5:8], [[8, 8, 8]]]),
    )
    assert (load(explicit).lengths.tolist(), load(explicit).account.dropped) == ([4, 4], {})


def test_a_next_observation_of_the_next_episode_is_seen_through(tmp_path: Path) -> None:
    obs, n = walk([4, 4]), 8
    path = keyed(
        tmp_path / "a.npz",
        observations=obs,
        next_observations=np.concatenate([obs[1:], obs[-1:] + 1]),
        actions=np.zeros((n, 1), np.float32),
        rewards=np.ones(n),
        terminals=np.zeros(n),
        timeouts=np.array([0, 0, 0, 1, 0, 0, 0, 1]),
    )
    data = load(path)
    assert data.lengths.tolist() == [3, 4]
    assert list(data.account.dropped.values()) == [1]


def test_ends_that_only_next_observations_tell_are_certain(tmp_path: Path) -> None:
    obs, n = walk([30, 30]), 60
    after = np.concatenate([obs[1:30], obs[29:30] + 0.01, obs[31:], obs[-1:] + 0.01])
    path = keyed(
        tmp_path / "a.npz",
        observations=obs,
        next_observations=after,
        actions=np.zeros((n, 1), np.float32),
        rewards=np.ones(n),
        terminals=np.zeros(n),
    )
    data = load(path)
    assert (data.lengths.tolist(), data.account.dropped) == ([30, 30], {})
    assert np.flatnonzero(data.truncated).tolist() == [29, 59]
    assert sum(data.account.inferred.values()) == 3  # one end, and that two episodes stop without a flag


def test_shuffled_transitions_are_taken_for_what_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(50, 3)).astype(np.float32)
    path = keyed(
        tmp_path / "a.npz",
        observations=obs,
        next_observations=obs + 0.1,
        actions=np.zeros((50, 1), np.float32),
        rewards=np.ones(50),
        terminals=np.arange(50) == 20,
    )
    data = load(path)
    assert len(data) == 50 and data.lengths.tolist() == [1] * 50
    assert data.account.lengths.tolist() == [21, 29]
    assert any("without order" in note for note in data.account.notes)


def test_jumps_are_told_from_the_changes_of_every_step() -> None:
    from uniarena.data.columns import ArrayColumn
    from uniarena.data.jumps import changes

    rng = np.random.default_rng(0)
    angle = np.arange(2000) * 0.05
    swing = np.stack([np.cos(angle), np.sin(angle)], axis=1) + rng.normal(size=(2000, 2)) * 0.005
    still = np.repeat([[1.0], [2.0]], 1000, axis=0)  # usually stays still, and says nothing when it does not
    obs = np.concatenate([swing, still], axis=1)
    jump, none = DataConfig(path="x").jump, np.zeros(2000, bool)
    whole = changes(ArrayColumn(obs), none)
    assert (
        whole is not None and not (whole > jump).any() and np.flatnonzero(np.isnan(whole)).tolist() == [1999]
    )
    obs[700:, :2] *= -1  # as a reset to the other side
    found = changes(ArrayColumn(obs), none)
    assert found is not None and np.flatnonzero(found > jump).tolist() == [699]
    assert changes(ArrayColumn(still), none) is None


def steps_of(count: int, terminal: bool, last: bool = True) -> dict[str, np.ndarray | list[bytes]]:
    """B83: o_k = k, a_k = 10 + k, r_k = 100 + k; the last action and reward mean nothing."""
    at = np.arange(count)
    return {
        "steps/observation": at.astype(np.float32),
        "steps/action": np.where(at < count - 1, 10.0 + at, np.nan).astype(np.float32),
        "steps/reward": np.where(at < count - 1, 100.0 + at, np.nan).astype(np.float32),
        "steps/discount": np.ones(count, np.float32),
        "steps/is_first": at == 0,
        "steps/is_last": (at == count - 1) & last,
        "steps/is_terminal": (at == count - 1) & terminal,
    }


@pytest.mark.extra("offline")
@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_n_steps_are_n_minus_1_transitions(tmp_path: Path, terminal: bool, last: bool) -> None:
    path = tmp_path / "toy.tfrecord"
    records.write_tf_records(
        path, [records.encode(steps_of(5, terminal, last or terminal)) for _ in range(2)]
    )
    data = load(path)
    assert data.lengths.tolist() == [4, 4]
    for episode in data:
        assert episode.obs.ravel().tolist() == [0, 1, 2, 3, 4]
        assert episode.action.ravel().tolist() == [10, 11, 12, 13]
        assert episode.reward.tolist() == [100, 101, 102, 103]
        assert episode.terminated.tolist() == [False] * 3 + [terminal]
        assert episode.truncated.tolist() == [False] * 3 + [not terminal]
    concluded = bool(data.account.inferred)
    assert concluded == (not terminal and not last)
