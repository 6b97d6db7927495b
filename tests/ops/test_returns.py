"""Returns and advantages on numbers worked out by hand, and against a plain loop over episodes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.ops.rollouts import Episode, counter, dense, random_rollout
from uniarena.batch import Batch, Rollout
from uniarena.ops.returns import (
    Trust,
    _scan_arrays,
    _scan_tensors,
    discounted_return,
    gae,
    known_successors,
    monte_carlo,
    n_step,
    next_values,
    running_return,
    successors,
    trace_ends,
    vtrace,
)

GAMMA = 0.9


def ten(obs: Tensor) -> Tensor:
    return torch.full((len(obs),), 10.0)


def identity(obs: Tensor) -> Tensor:
    return obs[:, 0]


def wavy(obs: Tensor) -> Tensor:
    return torch.sin(3.0 * obs[:, 0]) * 2.0


def credit(rollout: Rollout, value_fn, lam: float = 0.95, gamma: float = GAMMA) -> tuple[Tensor, Tensor]:
    value, next_value = next_values(value_fn, rollout)
    discount = gamma * (~rollout.rows.terminated).float()
    ends, known = trace_ends(rollout.rows), known_successors(rollout)
    return gae(rollout.rows.reward, value, next_value, discount, ends, lam, known)


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_a_time_limit_bootstraps_and_a_termination_does_not(lam: float) -> None:
    # Counter, 10 steps an episode, γ 0.9, V = 10. The last step of an episode: δ = 1 + 0.9·10 − 10 = 0 when
    # truncated, so its target is 10; δ = 1 − 10 = −9 when terminated, so its target is 1. Neither depends on
    # λ.
    _, target = credit(counter(30, 10, "truncation"), ten, lam)
    assert target[[9, 19, 29], 0].tolist() == pytest.approx([10.0, 10.0, 10.0])
    _, target = credit(counter(30, 10, "termination"), ten, lam)
    assert target[[9, 19, 29], 0].tolist() == pytest.approx([1.0, 1.0, 1.0])
    # case B01


def test_nothing_leaks_over_a_time_limit() -> None:
    # Rewards of the second episode × 100. With V = 10 every δ of the first and third is 1 + 9 − 10 = 0; of
    # the second 100 + 9 − 10 = 99. Step 9 sees none of the second episode: its target stays 10. λ = 1: step
    # 10 sums 99·(1 + 0.9 + … + 0.9^9) = 99·(1 − 0.9^10)/0.1 = 990·(1 − 0.9^10).
    reward = torch.ones(30)
    reward[10:20] = 100.0
    advantage, target = credit(counter(30, 10, "truncation", reward), ten, lam=1.0)
    assert advantage[:10, 0].abs().max() < 1e-5
    assert advantage[20:, 0].abs().max() < 1e-5
    assert target[9, 0].item() == pytest.approx(10.0)
    assert advantage[10, 0].item() == pytest.approx(990.0 * (1.0 - 0.9**10), rel=1e-5)
    assert target[19, 0].item() == pytest.approx(109.0)  # 100 + 0.9·10
    # case B03


def test_a_lost_final_observation_counts_no_reward_twice() -> None:
    # V(s) = s, reward 100 on the last step before truncation at 10. Final observation known: target = 100 +
    # 0.9·10 = 109 and the step before it, λ = 0: 1 + 0.9·V(9) = 9.1. Lost: the row's target is its own value,
    # 9, advantage 0.
    reward = torch.ones(10)
    reward[9] = 100.0
    _, target = credit(counter(10, 10, "truncation", reward), identity, lam=0.0)
    assert target[9, 0].item() == pytest.approx(109.0)
    assert target[8, 0].item() == pytest.approx(9.1)
    lost = counter(10, 10, "truncation", reward, has_final_obs=False)
    value, next_value = next_values(identity, lost)
    known, ends = known_successors(lost), trace_ends(lost.rows)
    discount = torch.full((10, 1), GAMMA)
    for advantage, target in (
        gae(lost.rows.reward, value, next_value, discount, ends, 0.95, known),
        monte_carlo(lost.rows.reward, value, next_value, discount, ends, known),
        n_step(lost.rows.reward, value, next_value, discount, ends, 3, known),
    ):
        assert advantage[9, 0].item() == 0.0
        assert target[9, 0].item() == 9.0
        assert bool((target < 30.0).all())  # the reward of 100 appears nowhere
    # case B95


def test_a_termination_is_known_even_without_final_observations() -> None:
    lost = counter(10, 10, "termination", has_final_obs=False)
    known = known_successors(lost)
    assert known is not None and bool(known.all())
    _, target = credit(lost, ten)
    assert target[9, 0].item() == pytest.approx(1.0)
    assert known_successors(counter(10, 10, "truncation")) is None


def test_gae_by_hand() -> None:
    # γ 0.5, λ 0.5, r = 1, 2, 3, V = 4, 2, 6, bootstrap 8, no end.
    # δ = 1 + 0.5·2 − 4 = −2;  2 + 0.5·6 − 2 = 3;  3 + 0.5·8 − 6 = 1.   A_2 = 1;  A_1 = 3 + 0.25·1 = 3.25;
    # A_0 = −2 + 0.25·3.25 = −1.1875.  Targets: A + V = 2.8125, 5.25, 7.
    reward, value = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[4.0], [2.0], [6.0]])
    next_value, discount = torch.tensor([[2.0], [6.0], [8.0]]), torch.full((3, 1), 0.5)
    ended = torch.zeros(3, 1, dtype=torch.bool)
    advantage, target = gae(reward, value, next_value, discount, ended, 0.5)
    assert advantage[:, 0].tolist() == [-1.1875, 3.25, 1.0]
    assert target[:, 0].tolist() == [2.8125, 5.25, 7.0]
    # Monte Carlo: 3 + 0.5·8 = 7;  2 + 0.5·7 = 5.5;  1 + 0.5·5.5 = 3.75.
    assert monte_carlo(reward, value, next_value, discount, ended)[1][:, 0].tolist() == [3.75, 5.5, 7.0]
    # 2-step: 1 + 0.5·2 + 0.25·6 = 3.5;  2 + 0.5·3 + 0.25·8 = 5.5;  7.
    assert n_step(reward, value, next_value, discount, ended, 2)[1][:, 0].tolist() == [3.5, 5.5, 7.0]
    # Without bootstrap: 3;  2 + 1.5 = 3.5;  1 + 1.75 = 2.75.
    assert discounted_return(reward, discount, ended)[:, 0].tolist() == [2.75, 3.5, 3.0]


def test_vtrace_by_hand() -> None:
    # γ 0.5, r = 1, 2, 3, V = 4, 2, 6, bootstrap 8, no end: δ = −2, 3, 1 (as in test_gae_by_hand).
    # π/μ = 3, 0.5, 0.8, ρ̄ = 2, c̄ = 1, λ = 1: ρ = 2, 0.5, 0.8 and c = 1, 0.5, 0.8.
    # Δ_2 = 0.8·1 = 0.8;  Δ_1 = 0.5·3 + 0.5·0.5·0.8 = 1.7;  Δ_0 = 2·(−2) + 0.5·1·1.7 = −3.15.
    # Targets V + Δ: 0.85, 3.7, 6.8. Advantages r + γ·v_{t+1} − V: 1 + 1.85 − 4 = −1.15;  2 + 3.4 − 2 = 3.4;  1.
    reward, value = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[4.0], [2.0], [6.0]])
    next_value, discount = torch.tensor([[2.0], [6.0], [8.0]]), torch.full((3, 1), 0.5)
    ended = torch.zeros(3, 1, dtype=torch.bool)
    log_ratio = torch.tensor([[3.0], [0.5], [0.8]]).log()
    args = (reward, value, next_value, discount, ended, log_ratio)
    advantage, target = vtrace(*args, Trust(rho_bar=2.0))
    assert target[:, 0].tolist() == pytest.approx([0.85, 3.7, 6.8])
    assert advantage[:, 0].tolist() == pytest.approx([-1.15, 3.4, 1.0])
    # λ = 0.5, ρ̄ = c̄ = 1: c = 0.5, 0.25, 0.4. Δ_2 = 0.8;  Δ_1 = 1.5 + 0.5·0.25·0.8 = 1.6;  Δ_0 = −2 + 0.25·1.6 = −1.6.
    # A_0 = −2 + 0.5·0.5·1.6 = −1.6;  A_1 = 3 + 0.25·0.8 = 3.2;  A_2 = 1.
    advantage, target = vtrace(*args, Trust(lam=0.5))
    assert target[:, 0].tolist() == pytest.approx([2.4, 3.6, 6.8])
    assert advantage[:, 0].tolist() == pytest.approx([-1.6, 3.2, 1.0])


def test_vtrace_at_ends_by_hand() -> None:
    # Three columns of T = 3, γ 0.5, V = 4 everywhere and of final observations 8, r = 2, π/μ = 0.5: ρ = c = 0.5.
    # Column 0 terminates at t = 1: δ = 2 + 2 − 4 = 0;  2 − 4 = −2;  0.  Δ = 0 + 0.25·(−1) = −0.25;  −1;  0.
    # Column 1 is truncated at t = 1, true successor worth 8: δ = 0, 2 + 4 − 4 = 2, 0.  Δ = 0.25·1 = 0.25;  1;  0.
    # Column 2: row 1 is not valid, its ratio is junk: row 0 bootstraps from it (V = 4), Δ_0 = 0; row 2 is on its own.
    shape, over = (3, 3), torch.zeros(3, 3, dtype=torch.bool)
    terminated, truncated, valid = over.clone(), over.clone(), ~over
    terminated[1, 0] = truncated[1, 1] = True
    valid[1, 2] = False
    obs = torch.full((*shape, 1), 4.0)
    rows = Batch(
        shape,
        obs=obs,
        reward=torch.full(shape, 2.0),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        is_first=over,
    )
    first = torch.zeros(3, dtype=torch.bool)
    ended = Batch((2,), t=torch.tensor([1, 1]), b=torch.tensor([0, 1]), obs=torch.full((2, 1), 8.0))
    rollout = Rollout(rows, Batch((3,), is_first=first), Batch((3,), obs=obs[0], is_first=first), ended)
    value, next_value = next_values(identity, rollout)
    log_ratio = torch.full(shape, 0.5).log()
    log_ratio[1, 2] = 11.0
    discount = 0.5 * (~terminated).float()
    advantage, target = vtrace(
        rows.reward, value, next_value, discount, trace_ends(rows), log_ratio, known=known_successors(rollout)
    )
    assert (target - 4.0)[:, 0].tolist() == pytest.approx([-0.25, -1.0, 0.0])
    assert (target - 4.0)[:, 1].tolist() == pytest.approx([0.25, 1.0, 0.0])
    assert (target - 4.0)[[0, 2], 2].tolist() == pytest.approx([0.0, 0.0])
    assert advantage[:, 0].tolist() == pytest.approx([-0.5, -2.0, 0.0])
    assert advantage[:, 1].tolist() == pytest.approx([0.5, 2.0, 0.0])


@pytest.mark.parametrize(("rho_bar", "worth"), [(10.0, 0.9), (1.0, 0.5 / 0.6)])
def test_vtrace_is_worth_the_new_policy_not_the_one_that_acted(rho_bar: float, worth: float) -> None:
    # One-step episodes; μ takes both actions equally often, π the first with 0.9, rewards 1 and 0. The value whose mean
    # target is itself is that of π: 0.9. With ρ̄ = 1 it is that of min(ρ̄·μ, π) = 0.5, 0.1, normalised: eq. 3 there.
    reward = torch.tensor([[1.0, 0.0]])
    log_ratio = torch.tensor([[0.9 / 0.5, 0.1 / 0.5]]).log()
    value, zero = torch.full((1, 2), worth), torch.zeros(1, 2)
    over = torch.ones(1, 2, dtype=torch.bool)
    target = vtrace(reward, value, zero, zero, over, log_ratio, Trust(rho_bar=rho_bar))[1]
    assert target.mean().item() == pytest.approx(worth)


def test_vtrace_trusts_nothing_where_the_future_was_lost() -> None:
    lost = counter(10, 10, "truncation", has_final_obs=False)
    value, next_value = next_values(identity, lost)
    discount, ratio = torch.full((10, 1), GAMMA), torch.full((10, 1), 2.0).log()
    args = (lost.rows.reward, value, next_value, discount, trace_ends(lost.rows), ratio)
    advantage, target = vtrace(*args, known=known_successors(lost))
    assert advantage[9, 0].item() == 0.0 and target[9, 0].item() == 9.0


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(st.integers(0, 10_000), st.integers(1, 24), st.integers(1, 4), st.booleans()), st.floats(0, 1)
)
def test_vtrace_on_policy_is_gae_and_at_lambda_one_the_n_step_return(
    shape: tuple[int, int, int, bool], lam: float
) -> None:
    rollout, _ = random_rollout(*shape)
    rows = rollout.rows
    value, next_value = next_values(wavy, rollout)
    args = (rows.reward, value, next_value, GAMMA * (~rows.terminated).float(), trace_ends(rows))
    same = torch.zeros_like(value)
    close = {"rtol": 1e-4, "atol": 1e-4}
    for mine, theirs in zip(vtrace(*args, same, Trust(lam=lam)), gae(*args, lam), strict=True):
        torch.testing.assert_close(mine, theirs, **close)
    torch.testing.assert_close(vtrace(*args, same)[1], n_step(*args, 1000)[1], **close)


@settings(deadline=None, max_examples=40)
@given(
    st.tuples(st.integers(0, 10_000), st.integers(1, 24), st.integers(1, 4), st.booleans()), st.floats(0, 1)
)
def test_vtrace_is_the_sum_of_equation_1(shape: tuple[int, int, int, bool], lam: float) -> None:
    """v_s = V + Σ_t γ^(t − s) (Π c_i) ρ_t δ_t over the rows of an episode, by a plain double loop."""
    rollout, episodes = random_rollout(*shape)
    rows = rollout.rows
    log_ratio = torch.randn(rows.shape, generator=torch.Generator().manual_seed(shape[0]))
    value, next_value = next_values(wavy, rollout)
    discount = GAMMA * (~rows.terminated).float()
    args = (rows.reward, value, next_value, discount, trace_ends(rows), log_ratio, Trust(lam, 1.5, 0.9))
    target = vtrace(*args)[1]
    ratio, delta = log_ratio.exp(), rows.reward + discount * next_value - value
    for episode in episodes:
        b = episode.column
        for k, s in enumerate(episode.rows):
            total, weight = float(value[s, b]), 1.0
            for t in episode.rows[k:]:
                total += weight * min(1.5, float(ratio[t, b])) * float(delta[t, b])
                weight *= GAMMA * lam * min(0.9, float(ratio[t, b]))
            assert float(target[s, b]) == pytest.approx(total, rel=1e-3, abs=1e-3)


def test_successors_are_true_ones() -> None:
    # Two episodes of 2 in a rollout of 5: 0→1, 1→2 (final, not the reset 0), 0→1, 1→2, 0→1 (last).
    rollout = counter(5, 2, "truncation")
    assert successors(rollout)[:, 0, 0].tolist() == [1.0, 2.0, 1.0, 2.0, 1.0]
    assert rollout.rows.obs[:, 0, 0].tolist() == [0.0, 1.0, 0.0, 1.0, 0.0]
    assert torch.equal(successors(dense(rollout)), successors(rollout))


def test_values_of_trees_and_in_pieces() -> None:
    rollout, _ = random_rollout(0, 7, 3)
    whole = next_values(wavy, rollout)
    pieces = next_values(wavy, rollout, max_rows=4)
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))
    assert rollout.ended is not None
    nested = Rollout(
        rollout.rows.replace(obs={"a": rollout.rows.obs}),
        rollout.start,
        rollout.last.replace(obs={"a": rollout.last.obs}),
        rollout.ended.replace(obs={"a": rollout.ended.obs}),
    )
    tree = next_values(lambda obs: wavy(obs["a"]), nested)
    assert all(torch.equal(a, b) for a, b in zip(whole, tree, strict=True))


@pytest.mark.parametrize("shape", ["listed", "dense"])
def test_recurrent_values_use_the_state_before_each_row(shape: str) -> None:
    # The state counts steps: before row t it is t; V = obs + 100·state, and obs alone on a first row.
    rollout = counter(4, 2, "truncation")
    state = torch.arange(4.0)[:, None, None]
    rollout = Rollout(
        rollout.rows.replace(state=state),
        rollout.start,
        rollout.last.replace(state=torch.tensor([[4.0]])),
        None if rollout.ended is None else rollout.ended.replace(state=torch.tensor([[2.0], [4.0]])),
    )
    if shape == "dense":
        rollout = dense(rollout)

    def value_fn(obs: Tensor, state: Tensor, is_first: Tensor) -> Tensor:
        return obs[:, 0] + 100.0 * torch.where(is_first, 0.0, state[:, 0])

    value, next_value = next_values(value_fn, rollout)
    assert value[:, 0].tolist() == [0.0, 101.0, 0.0, 301.0]
    assert next_value[:, 0].tolist() == [101.0, 202.0, 301.0, 402.0]


def test_a_value_with_a_trailing_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(4, 1\).*expected.*\(4,\)"):
        next_values(lambda obs: obs, counter(4, 10, "truncation"))


def loop_gae(episode: Episode, lam: float, gamma: float) -> list[float]:
    """A plain loop over one episode that knows all of its observations."""
    values = wavy(torch.tensor(episode.obs).unsqueeze(1)).tolist()
    advantage, out = 0.0, []
    for k in reversed(range(len(episode.rows))):
        last = k == len(episode.rows) - 1
        follow = 0.0 if last and episode.terminated else values[k + 1]
        advantage = episode.reward[k] + gamma * follow - values[k] + gamma * lam * advantage
        out.append(advantage)
    return out[::-1]


rollouts = st.tuples(st.integers(0, 10_000), st.integers(1, 24), st.integers(1, 4), st.booleans())


@settings(deadline=None, max_examples=60)
@given(rollouts, st.floats(0, 1), st.floats(0, 1))
def test_vectorised_is_a_loop_over_episodes(
    shape: tuple[int, int, int, bool], lam: float, gamma: float
) -> None:
    rollout, episodes = random_rollout(*shape)
    advantage, _ = credit(rollout, wavy, lam, gamma)
    for episode in episodes:
        expected = torch.tensor(loop_gae(episode, lam, gamma))
        torch.testing.assert_close(advantage[episode.rows, episode.column], expected, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=60)
@given(rollouts, st.floats(0, 1))
def test_lambda_one_is_monte_carlo_and_zero_is_the_td_error(
    shape: tuple[int, int, int, bool], gamma: float
) -> None:
    rollout, _ = random_rollout(*shape)
    rows = rollout.rows
    value, next_value = next_values(wavy, rollout)
    discount, ends = gamma * (~rows.terminated).float(), trace_ends(rows)
    args = (rows.reward, value, next_value, discount, ends)
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(gae(*args, 1.0)[0], monte_carlo(*args)[1] - value, **close)
    torch.testing.assert_close(gae(*args, 0.0)[0], rows.reward + discount * next_value - value, **close)
    torch.testing.assert_close(n_step(*args, 1)[0], gae(*args, 0.0)[0], **close)
    torch.testing.assert_close(n_step(*args, 1000)[1], monte_carlo(*args)[1], **close)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 24), st.integers(1, 4), st.floats(0, 1))
def test_dense_and_listed_successors_give_the_same(seed: int, steps: int, columns: int, lam: float) -> None:
    rollout, _ = random_rollout(seed, steps, columns)
    listed, whole = credit(rollout, wavy, lam), credit(dense(rollout), wavy, lam)
    for a, b in zip(listed, whole, strict=True):
        torch.testing.assert_close(a, b)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(2, 24), st.floats(0, 1))
def test_reset_only_rows_change_nothing(seed: int, steps: int, lam: float) -> None:
    """Junk in the rows that only reset (reward, value) reaches no other row."""
    rollout, _ = random_rollout(seed, steps, 3, next_step=True)
    rows = rollout.rows
    junk = Rollout(
        rows.replace(reward=torch.where(rows.valid, rows.reward, 1e6)),
        rollout.start,
        rollout.last,
        rollout.ended,
    )
    assert torch.equal(credit(rollout, wavy, lam)[0][rows.valid], credit(junk, wavy, lam)[0][rows.valid])


def test_next_step_rows_give_the_advantages_of_same_step_ones() -> None:
    # Episodes of 2 by truncation. NEXT_STEP: obs 0, 1, 2(reset-only), 0, 1; the real rows get what SAME_STEP
    # gives.
    same = counter(4, 2, "truncation")
    keep = torch.tensor([True, True, False, True, True])[:, None]
    rows = Batch(
        (5, 1),
        obs=torch.tensor([0.0, 1.0, 2.0, 0.0, 1.0])[:, None, None],
        reward=keep.float(),
        terminated=torch.zeros(5, 1, dtype=torch.bool),
        truncated=torch.tensor([False, True, False, False, True])[:, None],
        is_first=torch.tensor([True, False, False, True, False])[:, None],
        valid=keep,
    )
    last = Batch((1,), obs=torch.tensor([[2.0]]), is_first=torch.tensor([False]))
    ended = Batch((2,), t=torch.tensor([1, 4]), b=torch.tensor([0, 0]), obs=torch.tensor([[2.0], [2.0]]))
    following = Rollout(rows, Batch((1,), is_first=torch.tensor([True])), last, ended)
    assert torch.allclose(credit(following, wavy)[0][keep], credit(same, wavy)[0][:, 0])


def test_both_forms_of_the_scan_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    x, carry = torch.randn(50, 3, generator=generator), torch.rand(50, 3, generator=generator)
    arrays, tensors = x.clone(), x.clone()
    _scan_arrays(arrays.numpy(), carry.numpy())
    _scan_tensors(tensors, carry)
    torch.testing.assert_close(arrays, tensors)


def test_inputs_are_left_alone_and_float64_is_kept() -> None:
    reward = torch.ones(5, 2, dtype=torch.float64)
    value, discount = torch.ones_like(reward), torch.full_like(reward, 0.5)
    ended = torch.zeros(5, 2, dtype=torch.bool)
    advantage, target = gae(reward, value, value, discount, ended, 0.95)
    assert advantage.dtype == target.dtype == torch.float64
    assert bool((reward == 1).all() and (value == 1).all() and (discount == 0.5).all())
    assert math.isfinite(advantage.sum().item())


def test_running_return_by_hand() -> None:
    # γ 0.5, 8 before: 1 + 0.5·8 = 5;  2 + 0.5·5 = 4.5;  first of an episode: 3;  4 + 0.5·3 = 5.5.
    keep = torch.tensor([[0.5], [0.5], [0.0], [0.5]])
    reward = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    assert running_return(reward, keep, torch.tensor([8.0]))[:, 0].tolist() == [5.0, 4.5, 3.0, 5.5]
    assert reward[0].item() == 1.0
