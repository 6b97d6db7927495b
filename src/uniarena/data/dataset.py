"""Dataset: transitions with their true successors, episode by episode. What every format becomes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from uniarena.batch import Tree, tree_leaves, tree_map
from uniarena.config.errors import counted
from uniarena.data.columns import Keeping
from uniarena.data.errors import DataError
from uniarena.data.fitting import policy_space
from uniarena.data.rows import Account, Rows, odd_rows
from uniarena.data.source import Source, fit_float32, largest
from uniarena.seeding import Streams

WHOLE = 2**28
"""Bytes of a file up to which all of it enters its fingerprint; of a larger one `PIECES` parts do."""
PIECES, PIECE = 64, 2**20
AT_ONCE = 4096
"""Rows that are read again at a time, to say what is wrong with them."""


class Episode(NamedTuple):
    """Consecutive transitions: obs tree of `[T + 1, …]`, action tree, reward, terminated, truncated `[T]`.

    `final_known` is False where the last observation is unknown, a copy of the one before; the episode terminated.
    """

    obs: Tree
    action: Tree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_known: bool


@dataclass(frozen=True)
class Dataset:
    """M transitions in E episodes: Discrete actions count from 0, Box is in the environment's units, floats float32.

    Attributes:
        observation_space: of a stored observation.
        action_space: the environment's; `policy_space` is that of stored actions.
        spaces_known: whether the data or the caller said what the spaces are; else they were concluded from values.
        rows: which step of the source each transition is.
        reward: `[M]` float64.
        account: what was found and what became of it.
    """

    source: Source
    rows: Rows
    observation_space: Space[Any]
    action_space: Space[Any]
    spaces_known: bool

    def __len__(self) -> int:
        return len(self.rows.at)

    @property
    def episodes(self) -> int:
        """E, pieces of consecutive transitions: whole episodes, unless steps within one were left out."""
        return len(self.rows.starts) - 1

    @property
    def account(self) -> Account:
        return self.rows.account

    @cached_property
    def policy_space(self) -> Space[Any]:
        return policy_space(self.action_space)

    @cached_property
    def reward(self) -> np.ndarray:
        return self.source.reward[self.rows.at]

    @property
    def terminated(self) -> np.ndarray:
        return self.rows.terminated

    @property
    def truncated(self) -> np.ndarray:
        return self.rows.truncated

    @property
    def unknown_finals(self) -> int:
        """Transitions that terminated and whose next observation is not known."""
        return int((self.terminated & ~self.rows.known).sum())

    @property
    def lengths(self) -> np.ndarray:
        """`[E]` transitions of each episode."""
        return np.diff(self.rows.starts)

    @cached_property
    def episode_id(self) -> np.ndarray:
        """`[M]` which episode a transition belongs to."""
        return np.repeat(np.arange(self.episodes), self.lengths)

    @cached_property
    def returns(self) -> np.ndarray:
        """`[E]` sum of the rewards of each episode."""
        return np.bincount(self.episode_id, self.reward, minlength=self.episodes)

    @property
    def resident(self) -> bool:
        """Whether every column is in memory or mapped into it, so that any row can be had at once."""
        trees = (self.source.obs, self.source.action, self.source.next_obs or {})
        return all(column.resident for column in tree_leaves(trees))

    # -- values ------------------------------------------------------------------------------------------------------
    def obs(self, index: np.ndarray) -> Tree:
        """Observations of transitions `[N]` → tree of arrays `[N, …]`."""
        places = self.rows.obs_at.take(index)
        return tree_map(lambda column: column.take(places), self.source.obs)

    def next_obs(self, index: np.ndarray) -> Tree:
        """What followed transitions `[N]`; where one terminated and that is not known, its own observation."""
        places = self.rows.next_at.take(index)
        if self.source.next_obs is None:
            return tree_map(lambda column: column.take(places), self.source.obs)
        explicit = places < 0
        if explicit.all():
            return tree_map(lambda column: column.take(-1 - places), self.source.next_obs)
        out = tree_map(lambda column: column.take(np.maximum(places, 0)), self.source.obs)
        rows = -1 - places[explicit]

        def put(leaf: np.ndarray, column: Any) -> np.ndarray:
            leaf[explicit] = column.take(rows)
            return leaf

        return tree_map(put, out, self.source.next_obs)

    def action(self, index: np.ndarray) -> Tree:
        """Actions of transitions `[N]`, as stored."""
        places = self.rows.at.take(index)
        return tree_map(lambda column: column.take(places), self.source.action)

    def episode(self, k: int) -> Episode:
        """One episode."""
        index = np.arange(self.rows.starts[k], self.rows.starts[k + 1])
        obs, last = self.obs(index), self.next_obs(index[-1:])
        return Episode(
            tree_map(lambda a, b: np.concatenate([a, b]), obs, last),
            self.action(index),
            self.reward[index],
            self.terminated[index],
            self.truncated[index],
            bool(self.rows.known[index[-1]]),
        )

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(k) for k in range(self.episodes))

    # -- parts -------------------------------------------------------------------------------------------------------
    def select(self, episodes: np.ndarray) -> Dataset:
        """The dataset with only these episodes, in this order."""
        lengths = self.lengths[episodes]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        index = np.repeat(self.rows.starts[:-1][episodes] - starts[:-1], lengths) + np.arange(starts[-1])
        part = {
            name: getattr(self.rows, name)[index]
            for name in ("at", "obs_at", "next_at", "known", "terminated", "truncated")
        }
        rows = Rows(**part, starts=starts, found=self.rows.found[episodes], account=self.account)
        return replace(self, rows=rows)

    def kept(self, keeping: Keeping) -> Dataset:
        """The dataset with every column in memory, or in mapped files where they do not fit."""
        source = self.source
        next_obs = None if source.next_obs is None else keeping.keep_tree(source.next_obs)
        kept = replace(
            source,
            obs=keeping.keep_tree(source.obs),
            action=keeping.keep_tree(source.action),
            next_obs=next_obs,
        )
        return replace(self, source=kept)

    def refuse_nonfinite(self, read: Dataset) -> None:
        """Raise where transitions hold NaN or infinite values, or such as are too large for float32.

        Args:
            read: the same transitions before they were kept, which still tell what the file's own values are.

        Raises:
            DataError: with the first transition, and how many there are.
        """
        rows, source = self.rows, read.source
        ahead = rows.next_at >= 0
        explicit = source.next_obs if source.next_obs is not None else source.obs
        held = self.source.next_obs if self.source.next_obs is not None else self.source.obs
        obs, action = source.called("obs"), source.called("action")
        followed = f"{obs} (of what followed)"
        ahead_of, reward = (
            source.called("next_obs") if source.next_obs is not None else followed,
            source.called("reward"),
        )
        _refuse(reward, ~fit_float32(self.reward), rows.at, lambda k: [self.reward[k]], source.path)
        for name, kept, wide, places, of in (
            (action, self.source.action, source.action, rows.at, slice(None)),
            (obs, self.source.obs, source.obs, rows.obs_at, slice(None)),
            (followed, self.source.obs, source.obs, rows.next_at, ahead),
            (ahead_of, held, explicit, -1 - rows.next_at, ~ahead),
        ):
            chosen = places[of]
            original = partial(_wide, wide, chosen)
            _refuse(name, _odd(kept, chosen), rows.at[of], original, source.path)

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What tells this data from any other: bytes and SHA-256 of the files, and of which rows are transitions."""
        digest, size = hashlib.sha256(), 0
        for file in self.source.files:
            size += file.stat().st_size
            digest.update(_file_digest(file))
        rows = hashlib.sha256()
        for array in (
            self.rows.at,
            self.rows.next_at,
            self.rows.terminated,
            self.rows.truncated,
            self.rows.starts,
        ):
            rows.update(np.ascontiguousarray(array).tobytes())
        return {
            "bytes": size,
            "sha256": digest.hexdigest(),
            "rows": rows.hexdigest(),
            "transitions": len(self),
        }


def _refuse(
    name: str,
    odd: np.ndarray,
    steps: np.ndarray,
    original: Callable[[np.ndarray], list[np.ndarray]],
    path: Path,
) -> None:
    """Raise where rows `[N]`, which are these steps of the file, are odd; `original` gives the file's own values."""
    if not odd.any():
        return
    where = np.flatnonzero(odd)
    infinite, most = np.zeros(len(where), bool), 0.0
    for part in np.array_split(np.arange(len(where)), len(where) // AT_ONCE + 1):
        for values in original(where[part]):
            infinite[part] |= ~np.isfinite(values.reshape(len(part), -1)).all(axis=1)
            most = max(most, largest(values), key=abs)
    what, hint = f"values too large for float32, the largest {most:g}", "scale the values"
    if infinite.any():
        where, what, hint = where[infinite], "NaN or infinite values", "mend the file"
    raise DataError(
        f"{name} has {counted(len(where), 'row', 'rows')} with {what}, the first at row {int(steps[where[0]]):,}",
        path,
        f"{hint}, or leave such steps out: nonfinite: drop",
    )


def _wide(tree: Tree, places: np.ndarray, index: np.ndarray) -> list[np.ndarray]:
    """Floats at `places[index]`, as precise as the file has them."""
    columns = [column for column in tree_leaves(tree) if column.dtype.kind == "f"]
    return [(column if column.wide is None else column.wide).take(places[index]) for column in columns]


def _odd(tree: Tree, places: np.ndarray) -> np.ndarray:
    """`[N]` bool: places at which some leaf has a value that is NaN or infinite."""
    found = np.zeros(len(places), bool)
    for column in tree_leaves(tree):
        if column.dtype.kind == "f" and len(places):
            found |= odd_rows(column)[places]
    return found


def _file_digest(path: Path) -> bytes:
    """SHA-256 of a file; of one larger than `WHOLE` of its size and of parts spread evenly over it."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        if size <= WHOLE:
            while block := file.read(PIECE):
                digest.update(block)
        else:
            for k in range(PIECES):
                file.seek((size - PIECE) * k // (PIECES - 1))
                digest.update(file.read(PIECE))
    return digest.digest()


def filtered(
    dataset: Dataset,
    episodes: tuple[int, int] | None = None,
    min_return: float | None = None,
    top_fraction: float | None = None,
    fraction: float | None = None,
    seed: int = 0,
) -> Dataset:
    """Episodes by their place as found, then by return, then the best share, then a share drawn by seed.

    An episode's return is that of all its steps as found, also of those that are no transitions. Shares are rounded up;
    of equal returns the earlier episode is better; the draw is the first ⌈f·E⌉ of a permutation by the stream `data` of
    the seed. The order of episodes stays.

    Raises:
        DataError: nothing is left.
    """
    found, returns = dataset.rows.found, dataset.account.returns
    whole = chosen = np.unique(found)  # what was cut into pieces is one episode
    if episodes is not None:
        chosen = chosen[(chosen >= episodes[0]) & (chosen < episodes[1])]
    if min_return is not None:
        chosen = chosen[returns[chosen] >= min_return]
    if top_fraction is not None:
        order = np.argsort(-returns[chosen], kind="stable")
        chosen = np.sort(chosen[order[: math.ceil(top_fraction * len(chosen))]])
    if fraction is not None:
        order = Streams(seed).numpy("data").permutation(len(chosen))
        chosen = np.sort(chosen[order[: math.ceil(fraction * len(chosen))]])
    if not len(chosen):
        raise DataError(
            f"no episode of {len(whole):,} is left, whose returns are {dataset.returns.min():.4g} to "
            f"{dataset.returns.max():.4g}",
            dataset.source.path,
            "ask for a smaller min_return, a larger share, or other episodes",
        )
    if len(chosen) == len(whole):
        return dataset
    part = dataset.select(np.flatnonzero(np.isin(found, chosen)))
    count = f"{len(chosen):,} of {len(whole):,}"
    note = f"A part was chosen: {count} episodes. What was left out is told of the whole file."
    account = replace(part.account, notes=[*part.account.notes, note])
    return replace(part, rows=replace(part.rows, account=account))
