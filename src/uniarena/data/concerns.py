"""What a dataset's user should be warned of, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from uniarena.config.errors import counted
from uniarena.data.dataset import Dataset
from uniarena.data.rows import said_of
from uniarena.data.spread import Spread

MANY_AT_BOUND = 0.2
"""Share of actions at a bound from which learners with squashed policies have trouble."""
REFUSED = "training refuses such steps (nonfinite: drop leaves them out)"
FEW_VISITED = 0.25
"""Share of the way between bounds below which an action's values count as narrow."""


def warnings_of(
    dataset: Dataset, obs: list[Spread], action: list[Spread], found: dict[str, Any], limit: int | None
) -> list[str]:
    """One sentence each.

    Args:
        dataset: that was looked at.
        obs, action: the spread of its values.
        found: the figures of the report.
        limit: the environment's time limit in steps; None: not known.
    """
    return [
        *_of_rows(found),
        *_of_episodes(dataset, found, limit),
        *_of_rewards(found),
        *(text for spread in obs for text in _of_values(spread)),
        *(
            text
            for spread in action
            for text in [*_of_values(spread), *_of_actions(spread), *_of_dtypes(spread, dataset.spaces_known)]
        ),
        *_of_copies(found),
    ]


def _of_rows(found: dict[str, Any]) -> Iterator[str]:
    yield from said_of(found["steps"], found["dropped_by_reason"], found["inferred"])
    if found["both_flags"]:
        both = counted(found["both_flags"], "transition is", "transitions are")
        count = "it counts" if found["both_flags"] == 1 else "they count"
        yield f"{both} both terminated and truncated; {count} as terminated."
    if unknown := found["unknown_finals"]:
        who, whose = ("it", "its") if unknown == 1 else ("they", "their")
        yield (
            f"{counted(unknown, 'transition', 'transitions')} terminated and what {who} ended in is not in the file. "
            f"Nothing is learned from that observation; {whose} own stands in its place."
        )


def _of_episodes(dataset: Dataset, found: dict[str, Any], limit: int | None) -> Iterator[str]:
    lengths = dataset.account.lengths[np.unique(dataset.rows.found)]
    if not found["terminated"]:
        yield (
            "No transition terminates. That is right where a task has no end of its own, and wrong where the flag "
            "was forgotten."
        )
    if (short := int((lengths == 1).sum())) and len(lengths) > 1:
        yield f"{counted(short, 'episode has', 'episodes have')} one step."
    if limit is not None and (over := int((lengths > limit).sum())):
        longer = counted(over, "episode is", "episodes are")
        yield f"{longer} longer than the environment's limit of {limit:,} steps: ends are missing."
    if limit is not None and found["truncated"]:
        last = dataset.rows.starts[1:] - 1
        cut = dataset.truncated[last] & ~dataset.terminated[last]
        early = int((dataset.account.lengths[dataset.rows.found[cut]] < limit).sum())
        if early:
            cut_off = counted(early, "episode is", "episodes are")
            yield f"{cut_off} cut off before the environment's limit of {limit:,} steps."
    if len(lengths) == 1:
        yield "There is one episode, so nothing can be said of how returns differ."


def _of_rewards(found: dict[str, Any]) -> Iterator[str]:
    reward = found["reward"]
    if reward["nonfinite"]:
        odd = counted(reward["nonfinite"], "reward is", "rewards are")
        yield f"{odd} NaN or infinite; sums leave such out, and {REFUSED}."
    if reward["too_large"]:
        most = max(reward["min"], reward["max"], key=abs)
        large = counted(reward["too_large"], "reward is", "rewards are")
        yield f"{large} too large for float32, the largest {most:g}; {REFUSED}."
    if reward["min"] is not None and reward["min"] == reward["max"] and found["transitions"] > 1:
        yield f"Every {'other ' if reward['nonfinite'] else ''}reward is {reward['min']:g}."


def _of_values(spread: Spread) -> Iterator[str]:
    for rows, finals, what in (
        (spread.nonfinite_rows, spread.nonfinite_finals, "NaN or infinite values"),
        (
            spread.large_rows,
            spread.large_finals,
            f"values too large for float32, the largest {spread.largest:g}",
        ),
    ):
        if rows or finals:
            parts = [counted(rows, "row", "rows")] if rows or not finals else []
            if finals:
                one, many = "observation that an episode ended in", "observations that episodes ended in"
                parts.append(counted(finals, one, many))
            has = "has" if rows + finals == 1 else "have"
            yield f"{spread.called}: {' and '.join(parts)} {has} {what}; {REFUSED}."
    if spread.outside_rows:
        worst = np.flatnonzero(spread.outside)
        yield (
            f"{spread.called}: {spread.outside_rows:,} of {counted(spread.rows, 'row', 'rows')} "
            f"{'lies' if spread.outside_rows == 1 else 'lie'} outside of the space's bounds, in {_entries(worst)}; the "
            f"values seen are {spread.low[worst].min():.4g} to {spread.high[worst].max():.4g}."
        )
    constant = np.flatnonzero(spread.constant)
    if len(constant) and spread.classes is None:
        if len(constant) == spread.size:
            yield f"{spread.called}: nothing in it ever changes."
        else:
            change = f"never {'changes' if len(constant) == 1 else 'change'} ({listed_numbers(constant)})"
            yield f"{spread.called}: {len(constant)} of {spread.size} entries {change}."


def _of_actions(spread: Spread) -> Iterator[str]:
    if spread.classes is not None:
        taken = spread.taken[0]
        if never := spread.classes - len(taken):
            first = np.setdiff1d(np.arange(min(spread.classes, len(taken) + 9)), taken)  # 9 of them, or all
            yield (
                f"{spread.called}: of {spread.classes} actions {never} {'is' if never == 1 else 'are'} never taken "
                f"({listed_numbers(first, never)}); what they are worth can only be guessed."
            )
        return
    if spread.several:
        untaken = spread.untaken
        if len(some := np.flatnonzero(untaken)):
            yield (
                f"{spread.called}: {_entries(some)} {'has' if len(some) == 1 else 'have'} classes that are never "
                f"taken, {untaken.sum():,} in all; what they are worth can only be guessed."
            )
        return
    many = np.flatnonzero(spread.saturation > MANY_AT_BOUND)
    if len(many):
        yield (
            f"{spread.called}: up to {spread.saturation[many].max():.0%} of the actions lie at a bound "
            f"({_entries(many)}), where the logarithm of a squashed density is unbounded."
        )
    visited = spread.visited
    if visited is not None:
        narrow = np.flatnonzero(np.nan_to_num(visited, nan=1.0) < FEW_VISITED)
        if len(narrow):
            stay, whose = ("stays", "its") if len(narrow) == 1 else ("stay", "their")
            yield (
                f"{spread.called}: {_entries(narrow)} {stay} within a quarter of the way between {whose} bounds; "
                "actions beyond it are unknown to the data."
            )


def _of_dtypes(spread: Spread, known: bool) -> Iterator[str]:
    """Actions that look like classes written in another way, where nobody said what they are."""
    if known or spread.rows < 2 or spread.constant.all():
        return
    if spread.one_hot:
        yield (
            f"{spread.called}: every row has a single 1 and else 0, so these seem to be {spread.size} classes, one-hot."
            f" They are taken for {spread.size} actions at once; write the class as one whole number instead: "
            "actions.argmax(axis=1)."
        )
    elif spread.whole and spread.space.dtype is not None and spread.space.dtype.kind == "f":
        yield (
            f"{spread.called}: every value is a whole number, and they are floats, so they are taken for numbers "
            "without bounds. If they are classes, write them as integers: actions.astype(int)."
        )


def _of_copies(found: dict[str, Any]) -> Iterator[str]:
    copies = found["duplicates"]
    if copies["transitions"]:
        share = copies["transitions"] / max(1, found["looked_at"])
        one = copies["transitions"] == 1
        what = "1 transition" if one else f"{copies['transitions']:,} transitions"
        yield f"{what} ({share:.1%}) {'is a copy of another' if one else 'are copies of others'}, bit for bit."
    if copies["episodes"]:
        yield (
            f"{counted(copies['episodes'], 'episode is a copy of another', 'episodes are copies of others')}: a "
            "validation split would hold what was trained on."
        )
    if found["looked_at"] < found["transitions"]:
        yield (
            f"Ranges, copies and NaN are from {found['looked_at']:,} of {found['transitions']:,} transitions, spread "
            "evenly; flags, lengths and rewards are from all."
        )


def _entries(numbers: np.ndarray) -> str:
    return f"{'entry' if len(numbers) == 1 else 'entries'} {listed_numbers(numbers)}"


def listed_numbers(numbers: np.ndarray, count: int | None = None) -> str:
    """`0, 3, 7`, and of many how many there are: `count`, where `numbers` are only the first of them."""
    shown = ", ".join(map(str, numbers[:8].tolist()))
    return shown if len(numbers) <= 8 else f"{shown}, … ({count or len(numbers)} in all)"
