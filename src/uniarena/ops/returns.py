"""Returns and advantages of a [T, B] rollout: the one place where credit is cut at ends and bootstrapped.

Shared vocabulary, all `[T, B]`: `discount` is γ, and 0 where the row terminated; `ended` is true where the
trace stops (terminated, truncated or not valid); `next_value` is the value of the row's *true* successor;
`known` is false where the simulator lost that successor. No function here is differentiable: targets are
constants of the losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout, Tree, tree_map

ValueFn = Callable[..., Tensor]


def trace_ends(rows: Batch) -> Tensor:
    """[T, B] bool: rows that stop credit: terminated, truncated, or not valid (reset-only, dead, left out), and those
    before a row that is not valid, whose value they are bootstrapped from.
    """
    ends: Tensor = rows.terminated | rows.truncated | ~rows.valid
    ends[:-1] |= ~rows.valid[1:]
    return ends


def known_successors(rollout: Rollout) -> Tensor | None:
    """[T, B] bool, false where a time-out lost its final observation, or a row was lost with its simulator; None:
    every successor is known.
    """
    rows: Batch = rollout.rows
    if rollout.has_final_obs and rollout.lost is None:
        return None
    known: Tensor = rows.valid.clone() if rollout.lost is not None else torch.ones_like(rows.valid)
    if not rollout.has_final_obs:
        known &= ~rows.truncated | rows.terminated
    return known


def successors(rollout: Rollout) -> Tree:
    """The true next observation of every row, `[T, B, …]`: at an end the final one, never the reset one.

    Rows of `known_successors` that are false hold the reset observation.
    """
    if "next_obs" in rollout.rows:
        return rollout.rows.next_obs
    following = tree_map(_shift, rollout.rows.obs, rollout.last.obs)
    if rollout.ended is None:
        return following
    t, b = rollout.ended.t, rollout.ended.b
    return tree_map(
        lambda leaf, final: leaf.index_put((t, b), final.to(leaf.dtype)), following, rollout.ended.obs
    )


def next_values(value_fn: ValueFn, rollout: Rollout, max_rows: int = 16_384) -> tuple[Tensor, Tensor]:
    """Values of the rows and of their true successors.

    Args:
        value_fn: `obs [N, …] → [N]`; where the rollout has a recurrent state it is called as `(obs, state,
            is_first)`: on sequences `[T, B, …]` from `start.state`, or where every row has its own `state` on rows.
        rollout: T steps of B columns.
        max_rows: observations in one call of `value_fn`; bounds the memory of its activations. Of sequences, one
            column at least.

    Returns:
        (value, next_value), both `[T, B]`. A row whose successor the rollout lists under `ended` is
        bootstrapped from that final observation; rows that terminated have a `next_value` too, which
        `discount = 0` silences.
    """
    rows, last, ended = rollout.rows, rollout.last, rollout.ended
    shape = rows.shape
    if "state" in rollout.start and "state" not in rows:
        value = _of_sequences(value_fn, rollout, max_rows)
    else:
        value = _evaluate(value_fn, rows.flatten(), max_rows).reshape(shape)
    if "next_obs" in rows and "state" not in rows and value.device.type == "cpu":
        ended = _listed(rows, last)  # on other devices, to count them would mean to wait
    elif "next_obs" in rows:
        dense = Batch(shape, obs=rows.next_obs, is_first=torch.zeros_like(rows.is_first))
        if "state" in rows:  # the state before row t + 1 is the one after row t, not yet reset
            dense = dense.replace(state=tree_map(_shift, rows.state, last.state))
        return value, _evaluate(value_fn, dense.flatten(), max_rows).reshape(shape)
    names = ("obs", "is_first", "state") if "state" in last else ("obs", "is_first")
    tail = last.select(*names)
    if ended is not None:
        final = ended.replace(is_first=torch.zeros_like(ended.b, dtype=torch.bool))
        tail = Batch.cat([tail, final.select(*names)])
    tail_value = _evaluate(value_fn, tail, max_rows)
    next_value = torch.cat([value[1:], tail_value[None, : shape[1]]])
    if ended is not None:
        next_value[ended.t, ended.b] = tail_value[shape[1] :]
    return value, next_value


def _listed(rows: Batch, last: Batch) -> Batch:
    """The ends among rows that have every successor, as a rollout lists them: the others' is the next row."""
    t, b = torch.cat([rows.is_first[1:], last.is_first[None]]).nonzero(as_tuple=True)
    return Batch((len(t),), t=t, b=b, obs=tree_map(lambda leaf: leaf[t, b], rows.next_obs))


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    discount: Tensor,
    ended: Tensor,
    lam: float,
    known: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation.

    δ_t = r_t + d_t·V(s'_t) − V(s_t) and A_t = δ_t + d_t·λ·A_{t+1}, the sum cut after rows that ended.
    Schulman et al. 2016 (arXiv:1506.02438), eq. 16; λ = 1 is the Monte-Carlo return minus the value, λ = 0
    the TD error.

    Returns:
        (advantage, target), both `[T, B]`; target = advantage + value. Rows with `known` false have advantage
        0 and target = value: a reward whose future was lost is not counted, rather than counted twice.
    """
    delta = reward + discount * next_value - value
    if known is not None:
        delta = torch.where(known, delta, 0.0)
    advantage = _reverse_scan(delta, _carry(discount, ended) * lam)
    return advantage, advantage + value


def monte_carlo(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    discount: Tensor,
    ended: Tensor,
    known: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The return from every row to its episode's end or the rollout's, bootstrapped there unless terminated.

    Mnih et al. 2016 (arXiv:1602.01783), algorithm S3: R = V(s_last) for a state that did not terminate, else
    0.

    Returns:
        (advantage, target), both `[T, B]`; advantage = target − value.
    """
    carry = _carry(discount, ended)
    bootstrap = torch.where(ended, discount * next_value, 0.0)
    bootstrap[-1] = discount[-1] * next_value[-1]
    immediate = reward + bootstrap
    if known is not None:
        immediate = torch.where(known, immediate, value)
    target = _reverse_scan(immediate, carry)
    return target - value, target


def n_step(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    discount: Tensor,
    ended: Tensor,
    n: int,
    known: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """n-step returns: r_t + d_t·r_{t+1} + …, bootstrapped after n rows or at an end or the last row before.

    Sutton & Barto 2018, eq. 7.1.

    Returns:
        (advantage, target), both `[T, B]`; advantage = target − value.
    """
    one_step = reward + discount * next_value
    if known is not None:
        one_step = torch.where(known, one_step, value)
    carry = _carry(discount, ended)
    stop = ended.clone()
    stop[-1] = True
    target = one_step
    for _ in range(min(n, len(reward)) - 1):
        longer = reward + carry * torch.roll(target, -1, 0)
        target = torch.where(stop, one_step, longer)
    return target - value, target


class Trust(NamedTuple):
    """How far V-trace corrects.

    Attributes:
        lam: λ; 1: the whole correction, 0: one step.
        rho_bar: ρ̄ ≥ c̄, the truncation that decides which policy the values are of.
        c_bar: c̄, the truncation that decides how far a correction reaches back.
    """

    lam: float = 1.0
    rho_bar: float = 1.0
    c_bar: float = 1.0


def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    discount: Tensor,
    ended: Tensor,
    log_ratio: Tensor,
    trust: Trust | None = None,
    known: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Off-policy corrected values: what π is worth, from actions of an older policy μ.

    With ρ_t = min(ρ̄, π/μ), c_t = λ·min(c̄, π/μ) and δ_t = r_t + d_t·V(s'_t) − V(s_t), the correction of a row is
    Δ_t = ρ_t·δ_t + d_t·c_t·Δ_{t+1}, cut after rows that ended, and its target v_t = V(s_t) + Δ_t.
    Espeholt et al. 2018 (arXiv:1802.01561), eq. 1, as the recursion of remark 1, with the λ of remark 2.

    The advantage is r_t + d_t·(V(s'_t) + λ·Δ_{t+1}) − V(s_t), section 4.2's r + γ·v_{t+1} − V at λ = 1; the ρ_t before
    it is the loss's own, which compares with μ row by row. Where π = μ both are those of `gae` with the same λ.

    Args:
        log_ratio: `[T, B]`, log π(a|s) − log μ(a|s), finite.
        trust: ρ̄, c̄ and λ; None: 1, 1 and 1.

    Returns:
        (advantage, target), both `[T, B]`. Rows with `known` false have advantage 0 and target = value.
    """
    lam, rho_bar, c_bar = trust or Trust()
    ratio = log_ratio.exp()
    delta = reward + discount * next_value - value
    if known is not None:
        delta = torch.where(known, delta, 0.0)
    carry = _carry(discount, ended) * lam
    correction = _reverse_scan(ratio.clamp(max=rho_bar) * delta, carry * ratio.clamp(max=c_bar))
    after = _shift(correction, torch.zeros_like(correction[0]))
    return delta + carry * after, value + correction


def discounted_return(reward: Tensor, discount: Tensor, ended: Tensor) -> Tensor:
    """Discounted rewards from each row to its episode's end or the rollout's, without bootstrap. `[T, B]`."""
    return _reverse_scan(reward, _carry(discount, ended))


def running_return(reward: Tensor, keep: Tensor, before: Tensor) -> Tensor:
    """Discounted sums of the past: y_t = r_t + keep_t · y_{t−1}, and `before [B]` ahead of row 0. `[T, B]`.

    It is what rewards are scaled by (Engstrom et al. 2020, arXiv:2005.12729, algorithm 1); `keep` is γ, or 0
    on the first row of an episode.
    """
    first = reward.clone()
    first[0] += keep[0] * before
    return _reverse_scan(first.flip(0), keep.flip(0)).flip(0)


def _carry(discount: Tensor, ended: Tensor) -> Tensor:
    return torch.where(ended, 0.0, discount)


def _shift(leaf: Tensor, last: Tensor) -> Tensor:
    """Row t becomes row t + 1; the last row becomes `last`."""
    return torch.cat([leaf[1:], last.to(leaf.dtype)[None]])


def _evaluate(value_fn: ValueFn, batch: Batch, max_rows: int) -> Tensor:
    """`value_fn` on an [N] batch, at most `max_rows` at a time → [N]."""
    parts = []
    for start in range(0, len(batch), max_rows):
        part = batch if len(batch) <= max_rows else batch[start : start + max_rows]
        arguments = (part.obs, part.state, part.is_first) if "state" in part else (part.obs,)
        value = value_fn(*arguments)
        if value.shape != (len(part),):
            raise ValueError(
                f"the value function gave shape {tuple(value.shape)} for {len(part)} observations; expected "
                f"({len(part)},), one value a row: squeeze a trailing dimension of 1."
            )
        parts.append(value)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _of_sequences(value_fn: ValueFn, rollout: Rollout, max_rows: int) -> Tensor:
    """`value_fn` on whole columns, from the state before the first row → [T, B]."""
    rows, start = rollout.rows, rollout.start
    width = max(1, max_rows // len(rows))
    parts = []
    for left in range(0, rollout.B, width):
        columns = slice(left, left + width)
        obs, first = rows.select("obs")[:, columns].obs, rows.is_first[:, columns]
        parts.append(value_fn(obs, tree_map(lambda leaf, at=columns: leaf[at], start.state), first))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _reverse_scan(x: Tensor, carry: Tensor) -> Tensor:
    """y_t = x_t + carry_t · y_{t+1}, y after the last row 0. `[T, B]`, in a fresh tensor."""
    out = x.detach().clone()
    if out.device.type == "cpu":
        _scan_arrays(out.numpy(), carry.detach().numpy())
    else:
        _scan_tensors(out, carry)
    return out


def _scan_arrays(out: np.ndarray, carry: np.ndarray) -> None:
    """In place, through NumPy: half a microsecond a call where torch takes two, in a loop over time."""
    rows, factors = list(out), list(carry)
    scratch = np.empty_like(rows[0])
    for t in range(len(rows) - 2, -1, -1):
        np.multiply(factors[t], rows[t + 1], out=scratch)
        np.add(rows[t], scratch, out=rows[t])


def _scan_tensors(out: Tensor, carry: Tensor) -> None:
    """In place, on any device."""
    rows, factors = out.unbind(0), carry.unbind(0)
    for t in range(len(rows) - 2, -1, -1):
        rows[t].addcmul_(factors[t], rows[t + 1])
