"""Rows: which steps of a source are transitions, where their successors lie, and what became of all others.

Nothing is invented: a step whose successor is not in the file is left out, counted, and its reason named. The step
before it is then the last of its episode, truncated: its own successor is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from uniarena.batch import tree_leaves
from uniarena.config.errors import counted
from uniarena.data.alignment import check_flags, check_next_observations, flags_beside_jumps
from uniarena.data.columns import Column
from uniarena.data.config import DataConfig
from uniarena.data.errors import DataError
from uniarena.data.jumps import SPOTS, breaks, changes, wrapped
from uniarena.data.source import Source, fit_float32

SHUFFLED = 0.5
"""Share of rows that no row follows, from which they are taken for single transitions without order."""
UNSEEN = 5.0
"""How many times the size of a jump a change is that is told though every flag is there."""
LIMIT = "time limit without the observation it ended with"
END = "end of the data"
FIXED = "end of an episode of fixed length"
JUMP = "jump of the observation"
NEXT = "next observation that is the first one of the next episode"
NONFINITE = "NaN or infinite values, or too large for float32"


def said_of(steps: int, dropped: Mapping[str, int], inferred: Mapping[str, int]) -> Iterator[str]:
    """One sentence each: how many of so many steps were left out and why, and which flags were concluded."""
    if left_out := sum(dropped.values()):
        reasons = "; ".join(f"{count:,}: {reason}" for reason, count in dropped.items())
        left = f"{left_out:,} of {counted(steps, 'step', 'steps')}"
        yield f"{left} {'is no transition' if left_out == 1 else 'are no transitions'} ({reasons})."
    for what, count in inferred.items():
        yield f"{counted(count, 'flag is', 'flags are')} concluded, not read: {what}."


@dataclass
class Account:
    """What was found in a source and what became of it.

    Attributes:
        flags: what `terminated` and `truncated` were read from.
        inferred: what no flag said and was concluded → rows.
        dropped: reason → steps that are no transitions.
        lengths: steps of each episode as found; `returns`: the sum of their rewards.
        steps: of the source.
        reward_before: sum of all its finite rewards.
        notes: what the user should know.
    """

    flags: dict[str, str]
    inferred: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    returns: np.ndarray = field(default_factory=lambda: np.zeros(0))
    steps: int = 0
    reward_before: float = 0.0
    notes: list[str] = field(default_factory=list)

    def doubts(self) -> list[str]:
        """What whoever learns from it should know, one sentence each: steps left out, flags concluded, and notes."""
        return [*said_of(self.steps, self.dropped, self.inferred), *self.notes]


@dataclass
class Rows:
    """Transitions, episode by episode.

    Attributes:
        at: `[M]` step of the source: its action and reward.
        obs_at: `[M]` place of the observation among those of the source.
        next_at: `[M]` place of the next one; −1 − i: the i-th explicit next observation.
        known: `[M]` bool; False where a transition terminated and its next observation is its own.
        terminated, truncated: `[M]` bool.
        starts: `[E + 1]` first row of each piece, and M: consecutive steps of one episode, mostly all of them.
        found: `[E]` which of the found episodes it is a piece of.
        account: what became of all other steps.
    """

    at: np.ndarray
    obs_at: np.ndarray
    next_at: np.ndarray
    known: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    starts: np.ndarray
    found: np.ndarray
    account: Account


def make_rows(source: Source, cfg: DataConfig) -> Rows:
    """The transitions of a source.

    Raises:
        DataError: options that need what is missing, flags within an episode, or nothing left.
    """
    steps = len(source.reward)
    account = Account(dict(source.flags), steps=steps, notes=list(source.notes))
    account.reward_before = float(source.reward[np.isfinite(source.reward)].sum())
    truncated = np.zeros(steps, bool) if source.truncated is None else source.truncated.copy()
    reasons: dict[str, np.ndarray] = {}
    gap = np.zeros(steps, bool)
    end = _ends_told(source, truncated) if source.lengths is not None else source.terminated | truncated
    if source.lengths is None:
        gap = _ends_concluded(source, cfg, end, reasons, account)
    ends = np.flatnonzero(end)
    account.lengths = np.diff(ends, prepend=-1)
    found_of = np.cumsum(end) - end
    account.returns = np.bincount(found_of, source.reward, minlength=len(ends))
    obs_at, next_at, known = _places(source, end)
    unsafe = _unsafe(source, truncated, known, next_at, ends, reasons, account)
    if cfg.nonfinite == "drop":
        _drop(reasons, account, NONFINITE, _nonfinite(source, obs_at, next_at), unsafe)
    return _kept(source, (obs_at, next_at, known), (gap, truncated, unsafe), found_of, account)


def _ends_told(source: Source, truncated: np.ndarray) -> np.ndarray:
    """`[N]` last steps of episodes of a source that knows their lengths."""
    assert source.lengths is not None
    end = np.zeros(len(truncated), bool)
    end[np.cumsum(source.lengths)[source.lengths > 0] - 1] = True
    for name, flags in (("terminated", source.terminated), ("truncated", truncated)):
        early = np.flatnonzero(flags & ~end)
        if len(early):
            stops = np.cumsum(source.lengths)
            episode = int(np.searchsorted(stops, early[0], "right"))
            step = int(early[0] - (stops[episode] - source.lengths[episode]))
            raise DataError(
                f"episode {episode} is {name} at step {step} and goes on for {source.lengths[episode]} steps",
                source.path,
                "flags and steps are misaligned; write the file again",
            )
    return end


def _ends_concluded(
    source: Source, cfg: DataConfig, end: np.ndarray, reasons: dict[str, np.ndarray], account: Account
) -> np.ndarray:
    """Add to `end` what no flag says: breaks in the chain of observations, fixed lengths, jumps, the end of the data.

    Returns:
        `[N]` bool: rows that the row after them does not follow, in data that has no order at all.
    """
    gap = np.zeros(len(end), bool)
    absent = source.truncated is None
    if source.next_obs is not None:
        check_flags(source, end)
        gap = _chain(source, end, absent, account)
    if cfg.boundary == "fixed_length":
        _fixed_lengths(cfg, end, reasons)
        _say_redundant(source, reasons[FIXED], account)
    elif source.next_obs is None or cfg.boundary == "jump":
        _jumps(source, cfg, end, reasons, account)
    if absent and source.next_obs is None and cfg.boundary == "drop":
        account.notes.append(
            "The file has no timeouts and no next observations, so an episode that was cut off shows only where its "
            "observation jumps. If episodes have a fixed length, say boundary: fixed_length with episode_length."
        )
    if not end[-1]:
        reasons[END] = np.zeros(len(end), bool)
        reasons[END][-1] = end[-1] = True
    return gap


def _chain(source: Source, end: np.ndarray, absent: bool, account: Account) -> np.ndarray:
    """Ends where the next observation is not the next row's, added to `end` → rows of data that has no order."""
    if not absent and not breaks(source.obs, source.next_obs, end, spots=SPOTS).any():
        return np.zeros(len(end), bool)
    broken = breaks(source.obs, source.next_obs, end)
    share = broken.sum() / max(1, (~end[:-1]).sum())
    if share > SHUFFLED:
        said = check_next_observations(source, end)
        account.notes.append(
            f"The next observation of {share:.0%} of the rows is not the observation of the row after them: these "
            "are single transitions without order. Episodes are those of the flags; n-step sums have one step. Where "
            f"environments take turns in the rows, write one after the other to keep their order.{said}"
        )
        return broken
    if broken.any():
        account.inferred["ends where the next observation is not the next row's"] = int(broken.sum())
        end |= broken
    return np.zeros(len(end), bool)


def _jumps(
    source: Source, cfg: DataConfig, end: np.ndarray, reasons: dict[str, np.ndarray], account: Account
) -> None:
    """Ends where the observation jumps, added to `end` where no flag tells them or they were asked for; else said."""
    wanted = cfg.boundary == "jump" or source.truncated is None
    sizes = changes(source.obs, end, spots=0 if wanted else SPOTS)
    if sizes is None:
        if wanted:
            account.notes.append(
                "No entry of the observation changes, so ends without a flag cannot be found."
            )
        return
    if source.next_obs is None and (said := flags_beside_jumps(sizes, end)) is not None:
        account.notes.append(said)
    if wanted:
        reasons[JUMP] = (sizes > cfg.jump) & ~end
        end |= reasons[JUMP]
    elif hidden := int(((sizes > (large := cfg.jump * UNSEEN)) & ~end).sum()):
        account.notes.append(
            f"In {hidden:,} of the rows looked at the observation changes by more than {large:g} times its usual "
            "change, and no flag ends an episode there. If one does end there, say boundary: jump with "
            f"jump: {large:g}."
        )


def _say_redundant(source: Source, fixed: np.ndarray, account: Account) -> None:
    """A word where a fixed length cuts what flags and next observations say is one episode."""
    if source.truncated is None or source.next_obs is None or not (cuts := int(fixed[:-1].sum())):
        return
    account.notes.append(
        f"boundary: fixed_length cuts {cuts:,} episodes where neither a flag nor the next observations end one. The "
        "file says where its episodes end, so leave boundary and episode_length out."
    )


def _fixed_lengths(cfg: DataConfig, end: np.ndarray, reasons: dict[str, np.ndarray]) -> None:
    if cfg.episode_length is None:
        raise DataError("boundary: fixed_length needs episode_length", hint="give the steps of an episode")
    added = np.zeros(len(end), bool)
    begin = 0
    for stop in [*np.flatnonzero(end), len(end)]:
        added[begin + cfg.episode_length - 1 : stop : cfg.episode_length] = True
        begin = int(stop) + 1
    reasons[FIXED] = added & ~end
    end |= added


def _places(source: Source, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places of observations and next observations `[N]`, and of which the successor is known."""
    steps = np.arange(len(end))
    if source.lengths is not None and source.extra:
        obs_at = own_places(source, steps)
        known = np.ones(len(end), bool)
        if source.final_known is not None:
            known[end] = source.final_known[source.lengths > 0]
        return obs_at, obs_at + 1, known
    if source.next_obs is not None:
        return steps, -1 - steps, np.ones(len(end), bool)
    return steps, steps + 1, ~end


def _unsafe(
    source: Source,
    truncated: np.ndarray,
    known: np.ndarray,
    next_at: np.ndarray,
    ends: np.ndarray,
    reasons: dict[str, np.ndarray],
    account: Account,
) -> np.ndarray:
    """`[N]` steps that cannot be transitions, since nobody knows what followed; accounted for."""
    unsafe = np.zeros(len(known), bool)
    if source.next_obs is not None and source.lengths is None:
        cut = ends[~source.terminated[ends]]
        bad = _next_of_another(source, cut)
        flags = np.zeros(len(known), bool)
        flags[bad] = True
        known[bad] = False
        _drop(reasons, account, NEXT, flags, unsafe)
    open_ends = ~known & ~source.terminated
    for reason in (JUMP, FIXED, END):
        if reason in reasons:
            _drop(reasons, account, reason, reasons[reason] & open_ends, unsafe)
    _drop(reasons, account, LIMIT, open_ends & ~unsafe, unsafe)
    lone = np.flatnonzero(source.terminated & ~known)
    next_at[lone] = own_places(source, lone)  # what nobody knows and nothing depends on
    return unsafe


def own_places(source: Source, steps: np.ndarray) -> np.ndarray:
    """Places of the observations of steps `[N]`: every episode before may have one more, also one without steps."""
    if source.lengths is None or not source.extra:
        return steps
    return steps + np.searchsorted(np.cumsum(source.lengths), steps, "right")


def _next_of_another(source: Source, cut: np.ndarray) -> np.ndarray:
    """Of rows that were cut off, those whose explicit next observation belongs to the next episode."""
    if not len(cut):
        return cut
    same = wrapped(source.obs, source.next_obs, cut)
    floating = any(column.dtype.kind == "f" for column in tree_leaves(source.obs))
    inside = cut < len(source.reward) - 1
    if floating or (same[inside].all() and inside.sum() >= 3):  # discrete observations may be equal by chance
        return cut[same]
    return cut[:0]


def _drop(
    reasons: dict[str, np.ndarray], account: Account, reason: str, rows: np.ndarray, unsafe: np.ndarray
) -> None:
    count = int((rows & ~unsafe).sum())
    if count:
        account.dropped[reason] = account.dropped.get(reason, 0) + count
    unsafe |= rows


def _nonfinite(source: Source, obs_at: np.ndarray, next_at: np.ndarray) -> np.ndarray:
    """`[N]` steps with a value that is NaN or infinite, or would be as float32."""
    bad = ~fit_float32(source.reward)
    for column in tree_leaves(source.action):
        bad |= odd_rows(column)
    for column in tree_leaves(source.obs):
        odd = odd_rows(column)
        bad |= odd[obs_at]
        inside = (next_at >= 0) & (next_at < len(odd))  # what lies behind the last row is unsafe already
        bad[inside] |= odd[next_at[inside]]
    if source.next_obs is not None:
        for column in tree_leaves(source.next_obs):
            bad |= odd_rows(column)
    return bad


def odd_rows(column: Column) -> np.ndarray:
    """`[N]` bool: rows with a value that is NaN or infinite."""
    bad = np.zeros(len(column), bool)
    if column.dtype.kind == "f":
        for start, rows in column.blocks():
            finite = np.isfinite(rows)
            bad[start : start + len(rows)] = ~finite.all(axis=tuple(range(1, finite.ndim)))
    return bad


def _kept(
    source: Source,
    places: tuple[np.ndarray, np.ndarray, np.ndarray],
    marks: tuple[np.ndarray, np.ndarray, np.ndarray],
    found_of: np.ndarray,
    account: Account,
) -> Rows:
    """The transitions that are left, cut where a step between them is missing."""
    obs_at, next_at, known = places
    gap, truncated, unsafe = marks
    at = np.flatnonzero(~unsafe)
    if not len(at):
        why = "; ".join(f"{count:,}: {reason}" for reason, count in account.dropped.items())
        raise DataError(
            f"no transition is left of {counted(len(gap), 'step', 'steps')} ({why})",
            source.path,
            "write what each step led to as next_observations, or record longer episodes",
        )
    last = np.append((np.diff(at) > 1) | (np.diff(found_of[at]) > 0), True)
    terminated, cut = source.terminated[at], truncated[at]
    quiet = last & ~terminated & ~cut
    last |= gap[at]
    cut = cut | quiet
    if quiet.any():
        account.inferred["truncated where an episode stops in the data without a flag"] = int(quiet.sum())
    gone = len(account.lengths) - len(np.unique(found_of[at]))
    if gone:
        account.notes.append(f"{counted(gone, 'episode is', 'episodes are')} left without any transition.")
    starts = np.concatenate([[0], np.flatnonzero(last) + 1])
    return Rows(
        at, obs_at[at], next_at[at], known[at], terminated, cut, starts, found_of[at[starts[:-1]]], account
    )
