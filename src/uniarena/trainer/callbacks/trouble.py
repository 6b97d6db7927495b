"""What happens while checkpoints cannot be written."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

from uniarena import checkpoint
from uniarena.checkpoint import CheckpointError

_log = logging.getLogger(__name__)
PAUSE = 10.0
"""Seconds to the second attempt after a failure; each later pause is twice as long."""


class Trouble:
    """Failures in a row: each reason is said once, and attempts become rarer.

    Attributes:
        last: the latest failure; None: the last save succeeded.
    """

    def __init__(self) -> None:
        self.last: CheckpointError | None = None
        self._count, self._next = 0, 0.0

    def note(self, error: CheckpointError, now: float, longest: float) -> None:
        """A save failed at `now`; the next attempt is at the end of the next iteration, later ones wait in between."""
        if self.last is None or self.last.reason != error.reason:
            _log.error(
                "this checkpoint was not saved, training goes on, and it is tried again soon: %s", error
            )
        pause = 0.0 if self._count == 0 else min(longest, PAUSE * 2.0 ** (self._count - 1))
        self.last, self._count, self._next = error, self._count + 1, now + pause

    def over(self, now: float) -> bool:
        """Whether it is time for another attempt."""
        return self.last is not None and now >= self._next

    def end(self, path: Path) -> None:
        """A save succeeded."""
        if self.last is not None:
            _log.warning("checkpoints are written again: %s", path)
        self.last, self._count = None, 0


def whereabouts(trainer: Any, folder: Path) -> list[str]:
    """Where things are after the last save of a run failed; the agent alone is put where temporary files go."""
    steps = trainer.counters.clock
    notes = [
        f"The run has reached {steps:,} env steps; that state is in memory only (from Python: free space, then "
        "trainer.save('final'))."
    ]
    try:
        place = _save_elsewhere(trainer, f"{trainer.run_dir.name}-{steps}")
        notes.append(
            f"The agent as it is now, without what a resume needs, is in {place} (Agent.load reads it)."
        )
    except (CheckpointError, OSError) as error:
        notes.append(f"Nor could the agent alone be written elsewhere: {error}")
    try:
        notes.append(f"The last whole checkpoint is {checkpoint.newest(folder)[0]}.")
    except CheckpointError:
        notes.append("There is no earlier whole checkpoint.")
    return notes


def _save_elsewhere(trainer: Any, name: str) -> Path:
    place = Path(tempfile.mkdtemp(prefix="uniarena-"))
    try:
        trainer.agent.save(place / name)
    except CheckpointError:
        place.rmdir()
        raise
    return place / name
