"""A rollout's bad numbers: which rows they spoil, where the first one is, and a rollout without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout, Tree, tree_leaves, tree_map, tree_paths
from uniarena.ops.finite import beyond, bounded, describe_beyond, largest_within
from uniarena.optim import NonFiniteError

OBSERVATION, FINAL, NEXT = "observation", "final observation", "next observation"
OF_POLICY = ("action", "log_prob")
"""What the policy gave; everything else is the environment's."""
Leaves = list[tuple[str, Tensor]]


def limit(name: str, bound: float) -> float:
    """The largest good magnitude of a leaf: `bound`, and any finite number for actions, whose bounds may be as wide."""
    return torch.finfo(torch.float32).max if name.split(".")[0] == "action" else bound


def watched(rollout: Rollout) -> Leaves:
    """(name, tensor) of everything that is looked at, the name without what tells a successor from an observation."""
    parts = rollout.rows.fields
    found = [*tree_paths(parts["obs"], OBSERVATION), *tree_paths(rollout.last["obs"], OBSERVATION)]
    found += tree_paths(parts["action"], "action")
    found += [(name, parts[name]) for name in ("log_prob", "reward") if name in parts]
    if "next_obs" in parts:
        found += tree_paths(parts["next_obs"], OBSERVATION)
    if rollout.ended is not None:
        found += tree_paths(rollout.ended.obs, OBSERVATION)
    return [pair for pair in found if pair[1].dtype.is_floating_point and pair[1].numel()]


@dataclass(frozen=True)
class Spoilt:
    """Rows `[T, B]` bool whose transition holds a bad number, all valid.

    Attributes:
        policy: what the policy did is bad.
        rows: that, or the observation, the reward or the successor.
        carried: the column was barred before the chunk, and its episode goes on.
        left_out: from the first bad row of an episode to its end, barred columns included.
        barred: `[B]`, whose episode goes on after the chunk.
    """

    policy: Tensor
    rows: Tensor
    carried: Tensor
    left_out: Tensor
    barred: Tensor


def spoilt(rollout: Rollout, bound: float, barred: Tensor | None) -> Spoilt:
    """Which rows cannot be learned from; `barred [B]` columns are in an episode that was spoilt before."""
    rows, ended = rollout.rows, rollout.ended
    shape, valid, first = rows.shape, rows.valid, rows.is_first

    def any_beyond(tree: Tree, *lead: int, bound: float = bound) -> Tensor:
        found = torch.zeros(lead, dtype=torch.bool, device=valid.device)
        for leaf in tree_leaves(tree):
            if leaf.is_floating_point() and leaf.numel():
                found |= beyond(leaf, bound).reshape(*lead, -1).any(-1)
        return found

    obs = any_beyond(rows.obs, *shape)
    following = torch.cat([obs[1:], any_beyond(rollout.last.obs, shape[1])[None]])
    if "next_obs" in rows:
        following = any_beyond(rows.next_obs, *shape)
    if ended is not None:
        following[ended.t, ended.b] = any_beyond(ended.obs, len(ended.t))
    policy = any_beyond(rows.action, *shape, bound=limit("action", bound))
    policy |= any_beyond(rows.log_prob, *shape) if "log_prob" in rows else False
    policy &= valid
    bad = policy | ((obs | following | any_beyond(rows.reward, *shape)) & valid)
    t = torch.arange(shape[0], device=valid.device)[:, None]
    last_bad = torch.where(bad, t, -1).cummax(0).values
    last_first = torch.where(first, t, -1).cummax(0).values
    before = torch.zeros_like(first[0]) if barred is None else barred
    carried = before & (last_first < 0)
    left_out = ((last_bad >= 0) & (last_bad >= last_first)) | carried
    return Spoilt(policy, bad, carried, left_out, left_out[-1] & ~rollout.last.is_first)


def locate(rollout: Rollout, found: Spoilt, bound: float, env_steps: int) -> NonFiniteError | None:
    """The first bad number that no earlier one explains, as an error; None: there is none."""
    places = (found.rows & ~found.carried).nonzero()
    if not len(places):
        return None
    row, column = places[0].tolist()
    rows, last, ended = rollout.rows, rollout.last, rollout.ended

    def at(tree: Tree, name: str, *index: int) -> Leaves:
        return [(path, leaf[index]) for path, leaf in tree_paths(tree, name)]

    candidates: list[tuple[int, str, Leaves]] = [
        (row, OBSERVATION, at(rows.obs, OBSERVATION, row, column)),
        (row, "action", at(rows.action, "action", row, column)),
        *((row, name, at(rows[name], name, row, column)) for name in ("log_prob", "reward") if name in rows),
    ]
    if ended is not None:
        listed = ((ended.t == row) & (ended.b == column)).nonzero().flatten().tolist()
        candidates += [(row, FINAL, at(ended.obs, FINAL, k)) for k in listed]
    if "next_obs" in rows:
        candidates.append((row, NEXT, at(rows.next_obs, NEXT, row, column)))
    elif row + 1 < rollout.T:
        candidates.append((row + 1, OBSERVATION, at(rows.obs, OBSERVATION, row + 1, column)))
    else:
        candidates.append((row + 1, OBSERVATION, at(last.obs, OBSERVATION, column)))
    for step, where, leaves in candidates:
        for name, leaf in leaves:
            most = limit(name, bound)
            if leaf.is_floating_point() and bool(beyond(leaf, most).any()):
                env_step = env_steps + int(rows.valid[:step].sum())
                message = (
                    f"the {name} of environment {column} was {describe_beyond(leaf, most)}, at step {step} of this "
                    f"rollout of {rollout.T} (env step {env_step:,})"
                )
                return NonFiniteError(where, [name], message, column, env_step)
    raise AssertionError("a spoilt row without a bad number")


def without(rollout: Rollout, left_out: Tensor, bound: float) -> Rollout:
    """The rollout with these rows not valid, and 0 in place of every bad number, so that 0 times it is 0."""
    cleaned = _each(rollout, lambda name, x: torch.where(beyond(x, limit(name, bound)), 0.0, x))
    return replace(cleaned, rows=cleaned.rows.replace(valid=cleaned.rows.valid & ~left_out))


def clipped(rollout: Rollout, left_out: Tensor, bound: float, seen: dict[str, float]) -> tuple[Rollout, int]:
    """The rollout with bounded numbers of the environment in place of bad ones, and how many those were; `left_out`
    rows are not valid. What is infinite or huge becomes the largest magnitude seen in its leaf, NaN becomes 0.
    """
    count = sum(int(beyond(x, bound).sum()) for name, x in watched(rollout) if name in seen)
    cleaned = _each(rollout, lambda name, x: bounded(x, limit(name, bound), seen.get(name, 0.0)))
    return replace(cleaned, rows=cleaned.rows.replace(valid=cleaned.rows.valid & ~left_out)), count


def see(rollout: Rollout, bound: float, seen: dict[str, float]) -> None:
    """Remember the largest good magnitudes of a rollout that holds bad ones too."""
    for name, x in watched(rollout):
        if name not in OF_POLICY and not name.startswith("action."):
            seen[name] = max(seen.get(name, 0.0), largest_within(x, bound))


def _each(rollout: Rollout, fn: Callable[[str, Tensor], Tensor]) -> Rollout:
    """`fn(name, leaf)` on every float leaf but those of `info`, where NaN says that nothing was said."""

    def tree(value: Tree, name: str) -> Tree:
        leaves = iter([fn(path, x) if x.is_floating_point() else x for path, x in tree_paths(value, name)])
        return tree_map(lambda _: next(leaves), value)

    def batch(part: Batch) -> Batch:
        names: dict[str, Any] = {"obs": OBSERVATION, "next_obs": OBSERVATION}
        fields = {name: part[name] for name in part if name != "info"}
        return part.replace(**{name: tree(value, names.get(name, name)) for name, value in fields.items()})

    ended = None if rollout.ended is None else batch(rollout.ended)
    return replace(
        rollout, rows=batch(rollout.rows), start=batch(rollout.start), last=batch(rollout.last), ended=ended
    )
