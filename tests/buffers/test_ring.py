"""What a ring stores and what it gives back: ends, time limits, resets, cuts, wraparound, every autoreset mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.buffers.rollouts import by_obs, generator, line, sampler, spec
from tests.fakes.envs import CounterEnv, CounterVectorEnv, NestedObsEnv, TensorCounter
from uniarena.batch import Batch, Rollout
from uniarena.buffers.replay import ReplayBuffer, ReplayConfig
from uniarena.envs import make_env


def replay(capacity: int = 100, columns: int = 1, **more: Any) -> ReplayBuffer:
    return ReplayBuffer(ReplayConfig(capacity=capacity), spec(columns, **more))


def all_rows(buffer: ReplayBuffer, draws: int = 500) -> dict[float, tuple[float, float, float, bool, int]]:
    return by_obs(buffer.sample(generator(), draws))


def test_windows_end_at_the_newest_row_of_a_ring_that_is_not_full() -> None:  # case B34
    buffer = replay(10_000, n_step=5)
    buffer.add(line(range(10), 10.0, first=[0]))
    rows = all_rows(buffer)
    assert set(rows) == set(range(10))
    for start in range(10):
        steps = min(5, 10 - start)
        total = round(sum(0.9**k for k in range(steps)), 5)
        assert rows[start] == (total, start + steps, round(0.9**steps, 5), False, steps)


def test_termination_ends_value_and_a_time_limit_does_not() -> None:
    buffer = replay(n_step=3)
    buffer.add(line([0, 1, 2], 50.0, first=[0], terminated=[2], finals={2: 3.0}, last_first=True))
    buffer.add(line([50, 51, 52], 90.0, first=[0], truncated=[2], finals={2: 53.0}, last_first=True))
    rows = all_rows(buffer)
    assert rows[1] == (1.9, 3, 0.0, True, 2) and rows[0] == (2.71, 3, 0.0, True, 3)
    assert rows[51] == (1.9, 53, 0.81, False, 2) and rows[52] == (1.0, 53, 0.9, False, 1)


def test_both_flags_at_once_mean_termination() -> None:
    buffer = replay()
    buffer.add(line([0], 5.0, first=[0], terminated=[0], truncated=[0], finals={0: 1.0}, last_first=True))
    assert all_rows(buffer) == {0: (1.0, 1, 0.0, True, 1)}


def test_the_newest_row_is_followed_by_what_the_next_chunk_will_start_with() -> None:
    buffer = replay(3)
    for start in range(20):
        buffer.add(line([start], start + 1.0, first=[0] if start == 0 else []))
        assert all_rows(buffer, 100) == {
            p: (1.0, p + 1, 0.9, False, 1) for p in range(max(0, start - 2), start + 1)
        }
        assert buffer.size == min(3, start + 1)


def test_rows_that_were_only_resets_are_neither_sampled_nor_counted() -> None:
    buffer = replay(n_step=3)
    buffer.add(line([0, 1, 2, 0, 1], 2.0, first=[0, 3], terminated=[1], invalid=[2], finals={1: 2.0}))
    assert buffer.size == 4
    batch = buffer.sample(generator(), 300)
    assert set(batch.index.tolist()) == {0, 1, 3, 4}
    again = batch.index == 3
    assert (batch.n[again] == 2).all() and (batch.next_obs[again] == 2).all()


def test_an_agent_that_died_unannounced_ends_windows_before_its_idle_rows() -> None:
    buffer = replay(n_step=5)
    buffer.add(line([0, 1, 2, 2, 2], 2.0, first=[0], invalid=[2, 3, 4]))
    assert all_rows(buffer) == {0: (1.9, 2, 0.81, False, 2), 1: (1.0, 2, 0.9, False, 1)}
    buffer.add(line([2, 2], 2.0, invalid=[0, 1]))
    assert set(all_rows(buffer)) == {0, 1}
    other = replay(n_step=5)  # the idle rows come in the next chunk
    other.add(line([0, 1], 2.0, first=[0]))
    other.add(line([2], 2.0, invalid=[0]))
    assert all_rows(other) == {0: (1.9, 2, 0.81, False, 2), 1: (1.0, 2, 0.9, False, 1)}


def test_a_chunk_that_goes_on_elsewhere_closes_the_episode_before_it_like_a_time_limit() -> None:
    buffer = replay(n_step=3)
    buffer.add(line([0, 1], 2.0, first=[0]))
    buffer.add(line([70, 71], 72.0, first=[0]))  # the environment was made again
    rows = all_rows(buffer)
    assert rows[0] == (1.9, 2, 0.81, False, 2) and rows[1] == (1.0, 2, 0.9, False, 1)
    assert rows[70] == (1.9, 72, 0.81, False, 2)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_reset_is_a_cut_even_where_its_observation_is_the_one_that_was_due(steps: int) -> None:
    buffer = replay(n_step=4)
    buffer.add(line([0], 0.0, first=[0]))
    buffer.add(line([0] * steps, 0.0, first=[0], reward=[5.0] * steps))
    batch = buffer.sample(generator(), 200)
    assert (batch.n[batch.index == 0] == 1).all() and (batch.reward[batch.index == 0] == 1).all()


@pytest.mark.parametrize("steps", [1, 3])
def test_an_episode_that_broke_off_unannounced_loses_only_its_last_row(steps: int) -> None:
    """A crashed environment was made again: what followed its last row is not known."""
    buffer = replay(n_step=3)
    buffer.add(line([0], 1.0, first=[0]))
    buffer.add(line(range(1, steps + 1), 40.0, last_first=True))
    buffer.add(line([40], 41.0, first=[0]))
    rows = all_rows(buffer)
    assert set(rows) == {*range(steps), 40} and buffer.size == steps + 1
    assert rows[steps - 1] == (1.0, steps, 0.9, False, 1)


def test_rows_that_lost_their_final_observation_are_not_sampled() -> None:
    buffer = replay(n_step=3)
    buffer.add(line([0, 1, 2, 0, 1], 2.0, first=[0, 3], truncated=[2], has_final_obs=False))
    batch = buffer.sample(generator(), 300)
    assert set(batch.index.tolist()) == {0, 1, 3, 4} and buffer.size == 4
    one = batch.index == 1
    assert (batch.n[one] == 1).all() and (
        batch.next_obs[one] == 2
    ).all()  # the window ends before the lost row
    ended = replay()
    ended.add(line([0, 1], 0.0, first=[0], terminated=[1], has_final_obs=False, last_first=True))
    assert ended.size == 2  # what follows a termination is worth nothing, known or not


def test_a_declared_boundary_counts_before_dense_successors() -> None:
    """The sampler truncates the last row and lists its true successor, which the environment gave densely too."""
    part = line([0, 1], 9.0, first=[0], truncated=[1], finals={1: 2.0}, last_first=True)
    dense = replace(part, rows=part.rows.replace(next_obs=torch.tensor([[[1.0]], [[2.0]]])))
    buffer = replay()
    buffer.add(dense)
    assert all_rows(buffer) == {0: (1.0, 1, 0.9, False, 1), 1: (1.0, 2, 0.9, False, 1)}
    assert buffer.ring.finals.used == 1


@pytest.mark.parametrize("capacity", [1, 2, 7])
def test_a_chunk_longer_than_the_ring_leaves_its_newest_rows(capacity: int) -> None:
    buffer = replay(capacity)
    buffer.add(line(range(20), 20.0, first=[0]))
    rows = all_rows(buffer)
    assert set(rows) == set(range(20 - capacity, 20)) and rows[19][1] == 20
    assert buffer.size == capacity


def test_memory_of_final_observations_is_used_again() -> None:
    buffer = replay(50)
    for _ in range(500):
        buffer.add(line([0, 1], 0.0, first=[0], terminated=[1], finals={1: 2.0}, last_first=True))
    assert buffer.ring.finals.used <= 27 and len(buffer.ring.finals.table) == 64


def test_more_ends_than_expected_make_the_memory_of_final_observations_grow() -> None:
    buffer = replay(400)
    count = 300
    finals = {t: 1000.0 + t for t in range(count)}
    buffer.add(
        line(range(count), 0.0, first=range(count), truncated=range(count), finals=finals, last_first=True)
    )
    rows = all_rows(buffer, 4000)
    assert len(rows) == count and all(row[1] == 1000 + obs for obs, row in rows.items())


def test_what_was_added_is_copied() -> None:
    buffer = replay()
    part = line([0, 1], 2.0, first=[0])
    buffer.add(part)
    for leaf in (part.rows.obs, part.rows.reward, part.last.obs):
        leaf.fill_(-7)
    assert all_rows(buffer) == {0: (1.0, 1, 0.9, False, 1), 1: (1.0, 2, 0.9, False, 1)}
    batch = buffer.sample(generator(), 10)
    batch.obs.fill_(-7)
    assert min(all_rows(buffer)) == 0


def test_memory_that_a_sampler_writes_again_is_read_again() -> None:
    buffer, part = replay(), line([0.0], 1.0, first=[0])
    buffer.add(part)
    again = line([1.0], 2.0)
    again.rows.reward.fill_(5)
    buffer.add(again)
    again.rows.obs.fill_(2.0)
    again.rows.reward.fill_(6)
    again.last.obs.fill_(3.0)
    buffer.add(again)
    assert {obs: row[:2] for obs, row in all_rows(buffer).items()} == {0: (1, 1), 1: (5, 2), 2: (6, 3)}


def test_nan_observations_continue_their_column() -> None:
    buffer = replay(n_step=2)
    buffer.add(line([0.0], float("nan"), first=[0]))
    buffer.add(line([float("nan")], 2.0))
    batch = buffer.sample(generator(), 50)
    assert (batch.n[batch.index == 0] == 2).all()


def test_another_number_of_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="1 columns was added to a replay buffer for 3"):
        replay(30, 3).add(line([0], 1.0))


def test_an_empty_buffer_says_so() -> None:
    buffer = replay()
    assert not buffer.ready and buffer.size == 0
    with pytest.raises(RuntimeError, match="holds no complete transition"):
        buffer.sample(generator())
    buffer.add(line([0], 1.0, first=[0], invalid=[0]))
    with pytest.raises(RuntimeError, match="holds no complete transition"):
        buffer.sample(generator())


def test_one_good_row_among_many_is_found() -> None:
    buffer = replay(5000)
    buffer.add(line(range(4000), 4000.0, first=[0], invalid=[t for t in range(4000) if t != 1234]))
    batch = buffer.sample(generator(), 8)
    assert batch.obs[:, 0].tolist() == [1234.0] * 8


def test_uniform_sampling_is_uniform() -> None:
    buffer = replay(20)
    buffer.add(line(range(50), 50.0, first=[0], invalid=[35, 41]))
    draws = 40_000
    counts = np.bincount(buffer.sample(generator(), draws).obs[:, 0].long().numpy(), minlength=50)
    good = [t for t in range(30, 50) if t not in (35, 41)]
    assert counts.sum() == counts[good].sum() == draws
    share = 1 / len(good)
    assert np.abs(counts[good] - draws * share).max() < 4 * (draws * share * (1 - share)) ** 0.5


def test_the_same_generator_draws_the_same_batch() -> None:
    buffer = replay()
    buffer.add(line(range(50), 50.0, first=[0]))
    one, other = (buffer.sample(generator(7)) for _ in range(2))
    assert torch.equal(one.index, other.index)


def test_extra_fields_are_kept() -> None:
    extra = {
        "log_prob": spaces.Box(-np.inf, 0, (), np.float32),
        "state": spaces.Dict(h=spaces.Box(-1, 1, (2,))),
    }
    buffer = replay(extra=extra)
    part = line([0, 1], 2.0, first=[0])
    with pytest.raises(KeyError, match="log_prob"):
        buffer.add(part)
    state = torch.arange(4.0).reshape(2, 1, 2)
    rows = part.rows.replace(log_prob=torch.tensor([[-0.5], [-0.25]]), state={"h": state})
    buffer.add(replace(part, rows=rows))
    batch = buffer.sample(generator())
    second = batch.obs[:, 0] == 1
    assert (batch.log_prob[second] == -0.25).all() and (batch.state["h"][second] == state[1, 0]).all()


def test_nested_observations_keep_structure_order_and_types() -> None:  # case B20
    env = make_env(NestedObsEnv, num_envs=3)
    buffer = ReplayBuffer(
        ReplayConfig(capacity=60),
        spec(3, observation_space=env.observation_space, policy_space=env.action_map.policy_space),
    )
    made = sampler(env)
    seen = []
    for _ in range(30):
        rollout = made.collect(3)
        seen.append(rollout.clone())
        buffer.add(rollout)
    batch = buffer.sample(generator(), 100)
    assert list(batch.obs) == list(seen[0].rows.obs) and list(batch.obs["sensors"]) == list(
        seen[0].rows.obs["sensors"]
    )
    assert batch.obs["sensors"]["cam"].dtype == torch.uint8 and batch.obs["task"].dtype == torch.int64
    for i, index in enumerate(batch.index.tolist()):
        t, b = divmod(index, 3)
        rows = seen[t].rows[0, b]
        assert torch.equal(batch.obs["sensors"]["cam"][i], rows.obs["sensors"]["cam"])
        assert torch.equal(batch.obs["sensors"]["pos"][i], rows.obs["sensors"]["pos"])
        assert batch.obs["task"][i] == rows.obs["task"]
    env.close()


LENGTHS = (1, 2, 3, 5)
ENVS: dict[str, Any] = {
    "serial": lambda end: make_env([lambda n=n: CounterEnv(n, end) for n in LENGTHS]),
    "next_step": lambda end: make_env(CounterVectorEnv(4, LENGTHS, "NextStep", end)),
    "same_step": lambda end: make_env(CounterVectorEnv(4, LENGTHS, "SameStep", end)),
    "disabled": lambda end: make_env(CounterVectorEnv(4, LENGTHS, "Disabled", end)),
    "tensor_final": lambda end: make_env(TensorCounter(4, LENGTHS, end, "info")),
    "tensor_dense": lambda end: make_env(TensorCounter(4, LENGTHS, end, "dense")),
}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("chunk", [1, 4, 40])
@pytest.mark.parametrize("end", ["termination", "truncation"])
@pytest.mark.parametrize("name", list(ENVS))
def test_every_autoreset_mode_stores_the_true_transitions(
    name: str, end: str, chunk: int, n: int
) -> None:  # case B07
    env = ENVS[name](end)
    buffer = ReplayBuffer(
        ReplayConfig(capacity=400), spec(4, n_step=n, policy_space=env.action_map.policy_space)
    )
    made, valid = sampler(env), 0
    for _ in range(40 // chunk):
        rollout = made.collect(4 * chunk)
        valid += int(rollout.rows.valid.sum())
        buffer.add(rollout)
    assert buffer.size == valid
    batch, lengths = buffer.sample(generator(), 600), torch.tensor(LENGTHS)[:, None]
    column, obs = batch.index % 4, batch.obs[:, 0]
    length = lengths[column, 0]
    left = length - obs
    assert (obs >= 0).all() and (left >= 1).all()
    newest = batch.index // 4 + n > 40  # a window may be cut short by the newest row only
    steps = torch.minimum(left, torch.tensor(float(n)))
    assert (batch.n[~newest] == steps[~newest]).all() and (batch.n <= steps).all()
    assert torch.equal(batch.next_obs[:, 0], obs + batch.n)
    assert torch.allclose(batch.reward, (1 - 0.9 ** batch.n.float()) / 0.1)
    over = (batch.n == left) if end == "termination" else torch.zeros_like(batch.terminated)
    assert torch.equal(batch.terminated, over)
    assert torch.allclose(batch.discount, torch.where(over, 0.0, 0.9 ** batch.n.float()))
    env.close()


def test_a_tensor_simulator_without_final_observations_gives_no_wrong_transition() -> None:
    with pytest.warns(UserWarning, match="loses the observation"):
        env = make_env(TensorCounter(4, LENGTHS, "truncation", None))
    buffer = ReplayBuffer(ReplayConfig(capacity=400), spec(4, policy_space=env.action_map.policy_space))
    made = sampler(env)
    for _ in range(10):
        buffer.add(made.collect(16))
    batch = buffer.sample(generator(), 500)
    assert torch.equal(batch.next_obs, batch.obs + 1)
    assert set((batch.index % 4).tolist()) == {1, 2, 3}  # every row of column 0 is a last one
    env.close()


def test_rollouts_that_require_grad_or_hold_other_types_are_stored() -> None:
    part = line([0, 1], 2.0, first=[0])
    rows = part.rows.replace(obs=part.rows.obs.double().requires_grad_(), reward=part.rows.reward.double())
    buffer = replay()
    buffer.add(Rollout(rows, part.start, Batch((1,), part.last.fields), None))
    batch = buffer.sample(generator())
    assert batch.obs.dtype == batch.reward.dtype == torch.float32 and set(all_rows(buffer)) == {0, 1}
