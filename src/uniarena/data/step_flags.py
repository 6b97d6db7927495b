"""Flags of the steps of an RLDS episode: what they must be, and where they contradict each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from uniarena.config.errors import counted
from uniarena.data.errors import DataError
from uniarena.data.source import absent

FLAGS = ("is_first", "is_last", "is_terminal")


class StepFlags:
    """Reads the flags of episodes one by one, and counts what contradicts itself without being an error."""

    def __init__(self) -> None:
        self._not_last = self._not_first = self._worthless = 0

    def read(self, steps: dict[str, Any], where: str) -> list[np.ndarray]:
        """`is_first`, `is_last` and `is_terminal` of an episode, bool `[N]` each; N may be 0.

        Raises:
            DataError: one is missing or is no flag, or they are misaligned.
        """
        flags = [_flag(steps, name, where) for name in FLAGS]
        if len(flags[0]):
            _check(flags, where)
        if len(flags[0]) > 1:
            self._look(flags, np.asarray(steps.get("discount", ())))
        return flags

    def _look(self, flags: list[np.ndarray], discount: np.ndarray) -> None:
        first, last, terminal = flags
        self._not_first += not first[0]
        self._not_last += bool(terminal[-1] and not last[-1])
        if not terminal[-1] and discount.shape == first.shape and discount.dtype.kind in "iuf":
            # at the last step as dm_env has it, at the one before as RLDS does, where it goes with the reward
            self._worthless += bool((discount[-2:] == 0).any())

    def notes(self) -> list[str]:
        """A sentence for each contradiction, with how it was read."""
        found = []
        if count := self._not_last:
            ends = counted(count, "episode ends", "episodes end")
            found.append(f"{ends} in a step that is_terminal and not is_last: read as terminated.")
        if count := self._not_first:
            of = counted(count, "episode", "episodes")
            found.append(
                f"is_first is false on the first step of {of}: every record is read as an episode all the same."
            )
        if count := self._worthless:
            ends = counted(count, "episode ends", "episodes end")
            found.append(
                f"{ends} with discount 0 and without is_terminal, which decides: read as truncated (some programs fill "
                "the last step with zeros)."
            )
        return found


def _flag(steps: dict[str, Any], name: str, where: str) -> np.ndarray:
    if name not in steps:
        raise absent(name, list(steps), where, "every step of RLDS")
    values = np.asarray(steps[name])
    if values.dtype.kind not in "iub" and len(values):
        raise DataError(f"{name} holds {values.dtype} where flags belong", where, "write 0 or 1")
    if odd := values[~np.isin(values, (0, 1))].tolist():
        raise DataError(f"{name} holds {odd[0]} where flags belong", where, "write 0 or 1")
    return values.astype(bool)


def _check(flags: list[np.ndarray], where: str) -> None:
    first, last, terminal = flags
    if not len(first) == len(last) == len(terminal):
        counts = ", ".join(f"{name} {len(flag)}" for name, flag in zip(FLAGS, flags, strict=True))
        raise DataError(
            f"the steps are misaligned: {counts} values",
            where,
            "write the data again, with each flag at every step",
        )
    if first[1:].any():
        raise DataError(
            f"step {1 + int(first[1:].argmax())} is_first, within an episode",
            where,
            "write every episode as a record of its own",
        )
    for name, flag in (("is_last", last), ("is_terminal", terminal)):
        if flag[:-1].any():
            raise DataError(
                f"step {int(flag[:-1].argmax())} {name}, and {len(flag)} steps are there: the steps are misaligned",
                where,
                "write every episode as a record of its own, which ends with that step",
            )
