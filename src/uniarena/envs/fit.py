"""Whether a space is the one that an agent was made for: what differs, key by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from uniarena.envs.actions import ActionMap
from uniarena.envs.spaces import describe, leaf_spaces, space_from_json

LISTED = 12
"""Differences that are told; of more, the count."""


def misfit(made_for: Space[Any], given: Space[Any]) -> str | None:
    """How `given` differs from `made_for` in keys, kinds, shapes or counts of its leaves. None: it fits.

    Bounds and the order of keys may differ, and the precision of numbers, since all are stored alike.
    """
    ours, theirs = dict(leaf_spaces(made_for)), dict(leaf_spaces(given))
    found = []
    for name in {**ours, **theirs}:
        own, other = ours.get(name), theirs.get(name)
        if own is None or other is None or _kind(own) != _kind(other):
            expected, got = ("nothing" if space is None else describe(space) for space in (own, other))
            found.append(f"{f'{name!r}: ' if name else ''}expected {expected}, got {got}")
    return _listed(found)


def changed_bounds(made_for: Space[Any], given: Space[Any]) -> str | None:
    """How the bounds of two spaces that fit differ. None: they do not."""
    ours, theirs = dict(leaf_spaces(made_for)), dict(leaf_spaces(given))
    found = []
    for name, own in ours.items():
        other = theirs.get(name)
        if not (isinstance(own, spaces.Box) and isinstance(other, spaces.Box)) or own.shape != other.shape:
            continue
        same = (np.array_equal(own.low, other.low), np.array_equal(own.high, other.high))
        if not all(same):
            found.append(f"{f'{name!r}: ' if name else ''}from {_bounds(own)} to {_bounds(other)}")
    return _listed(found)


def compare_saved(saved: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The spaces in two specs of agents, as they were saved and as they are now.

    Returns:
        what does not fit, and which bounds differ: a line for observations and one for actions, each where needed.
    """
    faults, bounds = [], []
    for what, key in (("observations", "observation_space"), ("actions", "action_map")):
        before, after = (_space(spec[key]) for spec in (saved, now))
        if fault := misfit(before, after):
            faults.append(f"{what}: {fault}")
        elif change := changed_bounds(before, after):
            bounds.append(f"{what}: {change}")
    return faults, bounds


def differs_from(agent: Any, env: Any) -> tuple[dict[str, str], dict[str, str]]:
    """An agent's spaces held against an environment's.

    Returns:
        what does not fit, and which bounds differ, by `observations` and `actions`.
    """
    pairs: dict[str, list[tuple[Any, Any]]] = {
        "observations": [(getattr(agent, "observation_space", None), env.observation_space)]
    }
    own: ActionMap | None = getattr(agent, "action_map", None)
    if own is not None:  # the policy's own space first: it shows a change of `rescale`
        theirs = env.action_map
        pairs["actions"] = [(own.policy_space, theirs.policy_space), (own.env_space, theirs.env_space)]
    faults, bounds = {}, {}
    for what, each in pairs.items():
        known = [(made_for, given) for made_for, given in each if made_for is not None]
        if fault := next(filter(None, (misfit(*pair) for pair in known)), None):
            faults[what] = fault
        elif change := next(filter(None, (changed_bounds(*pair) for pair in known[-1:])), None):
            bounds[what] = change
    return faults, bounds


def _space(data: Mapping[str, Any]) -> Space[Any]:
    return space_from_json(dict(data.get("space", data)))


def _kind(leaf: Space[Any]) -> tuple[Any, ...]:
    """What a network for a leaf depends on."""
    numbers = [np.asarray(getattr(leaf, name, 0)).tolist() for name in ("n", "nvec", "start")]
    return type(leaf).__name__, leaf.shape, "" if leaf.dtype is None else leaf.dtype.kind, numbers


def _bounds(space: spaces.Box) -> str:
    low, high = (np.unique(each) for each in (space.low, space.high))
    if len(low) == len(high) == 1:
        return f"[{low[0]:g}, {high[0]:g}]"
    if low.size and space.low.size <= 8:
        return f"[{space.low.ravel().tolist()}, {space.high.ravel().tolist()}]"
    return f"[{low[0]:g}…{low[-1]:g}, {high[0]:g}…{high[-1]:g}]" if low.size else "[]"


def _listed(found: list[str]) -> str | None:
    if not found:
        return None
    rest = [f"and {len(found) - LISTED} more"] if len(found) > LISTED else []
    return "; ".join([*found[:LISTED], *rest])
