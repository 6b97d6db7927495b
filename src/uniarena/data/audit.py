"""The audit: what a dataset holds, what was left out of it and why, and what its user should be warned of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from uniarena.batch import tree_leaves
from uniarena.data.columns import Column, nbytes
from uniarena.data.concerns import warnings_of
from uniarena.data.dataset import Dataset
from uniarena.data.source import fit_float32
from uniarena.data.spread import Spread, histogram, summary
from uniarena.envs.spaces import describe, leaf_spaces

BUDGET = 2**28
"""Bytes of observations that are looked at; of more, parts spread evenly."""
CHUNK = 2**24
SPANS = 64
"""Parts of a dataset that is too large to be looked at as a whole."""
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class Look:
    """What one walk through the values showed.

    Attributes:
        obs, action: spread of each leaf.
        rows: transitions that were looked at.
        copies: transitions that equal an earlier one (observation, action, reward, what followed); `episode_copies`:
            whole episodes that do, None where only parts were looked at.
    """

    obs: list[Spread]
    action: list[Spread]
    rows: int = 0
    copies: int = 0
    episode_copies: int | None = None
    hashes: list[np.ndarray] = field(default_factory=list)


def audit(dataset: Dataset, limit: int | None = None) -> dict[str, Any]:
    """The report on a dataset as plain data; `report.text` and `page.write` show it to people.

    Args:
        dataset: loaded with `lazy=True`, so that what should be reported is not refused.
        limit: the environment's time limit in steps, where it is known.
    """
    look, account = look_at(dataset), dataset.account
    whole = np.unique(dataset.rows.found)
    finite = np.isfinite(dataset.reward)
    source = dataset.source
    found: dict[str, Any] = {
        "path": str(source.path),
        "format": source.format,
        "bytes": sum(file.stat().st_size for file in source.files),
        "env": source.env.get("id"),
        "origin": source.origin,
        "observation_space": describe(dataset.observation_space),
        "action_space": describe(dataset.action_space),
        "episodes": len(whole),
        "transitions": len(dataset),
        "terminated": int(dataset.terminated.sum()),
        "truncated": int(dataset.truncated.sum()),
        "dropped": sum(account.dropped.values()),
        "reward_sum": float(dataset.reward[finite].sum()),
        "steps": account.steps,
        "pieces": dataset.episodes,
        "both_flags": int((dataset.terminated & dataset.truncated).sum()),
        "unknown_finals": dataset.unknown_finals,
        "dropped_by_reason": dict(account.dropped),
        "flags": dict(account.flags),
        "inferred": dict(account.inferred),
        "reward_sum_before": account.reward_before,
        "reward": {
            **summary(dataset.reward),
            "nonfinite": int((~finite).sum()),
            "too_large": int((finite & ~fit_float32(dataset.reward)).sum()),
        },
        "lengths": summary(account.lengths[whole]),
        "length_histogram": histogram(account.lengths[whole]),
        "returns": summary(account.returns[whole]),
        "return_histogram": histogram(account.returns[whole]),
        "observations": [spread.to_json() for spread in look.obs],
        "actions": [spread.to_json() for spread in look.action],
        "saturation": {
            s.name: s.saturation.tolist()
            for s in look.action
            if s.bounded.any() and s.classes is None and not s.several
        },
        "coverage": _coverage(look),
        "duplicates": {"transitions": look.copies, "episodes": look.episode_copies},
        "looked_at": look.rows,
    }
    found["warnings"] = [*account.notes, *warnings_of(dataset, look.obs, look.action, found, limit)]
    return found


def look_at(dataset: Dataset) -> Look:
    """Walk through the values once."""
    look = Look(
        _spreads(dataset, "obs", dataset.observation_space),
        _spreads(dataset, "action", dataset.policy_space),
    )
    for index in _parts(dataset):
        obs, action = dataset.obs(index), dataset.action(index)
        extra = [dataset.reward[index], dataset.terminated[index]]
        hashes = hashed([*tree_leaves(obs), *tree_leaves(action), *extra])
        for spreads, tree, columns, places in (
            (look.obs, obs, dataset.source.obs, dataset.rows.obs_at[index]),
            (look.action, action, dataset.source.action, dataset.rows.at[index]),
        ):
            for spread, rows, column in zip(spreads, tree_leaves(tree), tree_leaves(columns), strict=True):
                wide = _wide(column, rows, places)
                spread.add(rows, wide)
                if wide is not None:  # what is infinite as float32 may differ in the file
                    odd = ~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
                    hashes[odd] += hashed([wide[odd]])
        look.rows += len(index)
        look.hashes.append(hashes)
    ends = dataset.rows.starts[1:] - 1
    ends = ends[dataset.rows.known[ends]]
    for part in np.array_split(ends, max(1, len(ends) // 1000))[:SPANS]:
        _add_finals(look, dataset, dataset.rows.next_at[part])
    hashes = np.concatenate(look.hashes)
    look.copies = len(hashes) - len(np.unique(hashes))
    if look.rows == len(dataset):
        powers = np.cumsum(np.ones(len(hashes), np.uint64)) * _ODD | np.uint64(1)
        place = np.arange(len(hashes)) - np.repeat(dataset.rows.starts[:-1], dataset.lengths)
        sums = np.add.reduceat(hashes * powers[place], dataset.rows.starts[:-1])
        look.episode_copies = dataset.episodes - len(np.unique(sums))
    return look


def _add_finals(look: Look, dataset: Dataset, places: np.ndarray) -> None:
    """What episodes ended in: among the observations, or explicit where places are negative."""
    source, explicit = dataset.source, places < 0
    for columns, chosen in ((source.obs, places[~explicit]), (source.next_obs, -1 - places[explicit])):
        if len(chosen):
            for spread, column in zip(look.obs, tree_leaves(columns), strict=True):
                rows = column.take(chosen)
                spread.add(rows, _wide(column, rows, chosen), final=True)


def _wide(column: Column, rows: np.ndarray, places: np.ndarray) -> np.ndarray | None:
    """Rows in the file's own precision, where they have more and some are not finite without it."""
    return None if column.wide is None or np.isfinite(rows).all() else column.wide.take(places)


def _parts(dataset: Dataset) -> Iterator[np.ndarray]:
    """Indices of transitions, some megabytes of observations at a time: of all, or of parts spread evenly."""
    count = len(dataset)
    row = max(1, nbytes(dataset.source.obs) // max(1, len(tree_leaves(dataset.source.obs)[0])))
    size = max(1, CHUNK // row)
    if count * row <= BUDGET:
        spans = [(start, min(count, start + size)) for start in range(0, count, size)]
    else:
        size = min(size, max(1, BUDGET // row // SPANS))
        spans = [(int(start), int(start) + size) for start in np.linspace(0, count - size, SPANS)]
    return (np.arange(start, stop) for start, stop in spans)


def hashed(leaves: list[np.ndarray]) -> np.ndarray:
    """`[N]` uint64, equal where all leaves are, bit for bit. Multilinear hashing over words of 8 bytes (Carter and
    Wegman 1979) with fixed odd factors.
    """
    count = len(leaves[0])
    total = np.zeros(count, np.uint64)
    place = np.uint64(0)
    for leaf in leaves:
        raw = np.ascontiguousarray(leaf).reshape(count, -1).view(np.uint8)
        words = -(-raw.shape[1] // 8)
        padded = np.zeros((count, words * 8), np.uint8)
        padded[:, : raw.shape[1]] = raw
        factors = _mixed(np.arange(words, dtype=np.uint64) + place) | np.uint64(1)
        mixed = _mixed(padded.view(np.uint64) + factors)
        total += (mixed * factors).sum(axis=1, dtype=np.uint64)
        place += np.uint64(words)
    return total


def _mixed(words: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014): every bit depends on every bit."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))


def _coverage(look: Look) -> dict[str, Any]:
    """Of actions: how often each class, or which share of the way between bounds; of observations the latter."""
    found: dict[str, Any] = {}
    for spread in [*look.action, *look.obs]:
        if spread.counts is not None:
            found[spread.name] = {"counts": spread.counts}
        elif spread.classes is not None:
            found[spread.name] = {"classes": spread.classes, "taken": len(spread.taken[0])}
        elif (visited := spread.visited) is not None:
            found[spread.name] = {"visited": [None if np.isnan(v) else float(v) for v in visited]}
    return found


def _spreads(dataset: Dataset, name: str, space: Any) -> list[Spread]:
    called = dataset.source.called(name)
    return [Spread(_name(name, path), leaf, _name(called, path)) for path, leaf in leaf_spaces(space)]


def _name(field: str, path: str) -> str:
    return f"{field}.{path}" if path else field


def env_facts(env: str, kwargs: dict[str, Any] | None = None) -> tuple[Any, Any, int | None]:
    """Observation space, action space and time limit of an environment.

    Raises:
        ConfigError: it cannot be made.
    """
    import gymnasium

    from uniarena.envs import make_env

    made = make_env(env, kwargs=kwargs, action_mask="none")
    try:
        spaces = made.observation_space, made.action_space
    finally:
        made.close()
    spec = gymnasium.registry.get(env)
    return *spaces, None if spec is None else spec.max_episode_steps
