"""Which checkpoints are kept."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from uniarena import checkpoint
from uniarena.checkpoint import CheckpointError
from uniarena.trainer.clock import clock_of

_log = logging.getLogger(__name__)


class Kept(NamedTuple):
    """A whole checkpoint."""

    path: Path
    kind: str
    written: int
    env_steps: int


class Shelf:
    """The checkpoints of a run: the newest few, the best, and the first at or after each multiple of `every` steps.

    Whatever else lies in the folder is left alone.

    Args:
        last: how many of the newest to keep; None: all.
        every: environment steps between those that are kept for ever; None: none is.
    """

    def __init__(self, last: int | None, every: int | None) -> None:
        self.last, self.every = last, every
        self._known: dict[Path, tuple[int, Kept]] = {}  # with the time of the manifest that was read

    def tidy(self, newest: Path) -> None:
        """Delete what is not kept. A safety checkpoint is of no use once a later one is there."""
        self._remove(self._surplus(self._found(newest.parent), newest, self.last))

    def make_room(self, folder: Path) -> bool:
        """Delete now what `tidy` would delete after the next save, as long as a whole checkpoint stays.

        Returns:
            whether anything was deleted.
        """
        checkpoint.sweep(folder)
        try:
            newest = checkpoint.newest(folder)[0]
        except CheckpointError:
            return False
        stay = None if self.last is None else max(1, self.last - 1)
        return self._remove(self._surplus(self._found(folder), newest, stay))

    def _surplus(self, found: list[Kept], newest: Path, last: int | None) -> list[Path]:
        # by time of writing: after a resume from an older one, a higher number may be a branch given up
        found = sorted(found, key=lambda each: (each.path == newest, each.written))
        lasting = [each for each in found if each.kind not in ("best", "safety") or each.path == newest]
        surplus = [each for each in found if each.kind == "safety" and each.path != newest]
        if last is not None:
            surplus += lasting[:-last]
        milestones = self._milestones(lasting)
        return [each.path for each in surplus if each.path not in milestones]

    def _milestones(self, lasting: Iterable[Kept]) -> set[Path]:
        if self.every is None:
            return set()
        first: dict[int, Path] = {}
        for each in sorted(lasting, key=lambda each: each.env_steps):
            if each.env_steps >= self.every and each.kind != "safety":
                first.setdefault(each.env_steps // self.every, each.path)
        return set(first.values())

    @staticmethod
    def _remove(surplus: Iterable[Path]) -> bool:
        done = False
        for path in surplus:
            try:
                checkpoint.remove(path)
                done = True
            except OSError as error:
                _log.warning("an old checkpoint could not be deleted: %s", error)
        return done

    def _found(self, folder: Path) -> list[Kept]:
        known = self._known
        self._known = {}
        for path in folder.iterdir():
            manifest = path / "manifest.json"
            try:
                if path.name.startswith(".") or not manifest.is_file():
                    continue
                written = manifest.stat().st_mtime_ns
                before = known.get(path)
                self._known[path] = before if before and before[0] == written else (written, _read(path))
            except (CheckpointError, OSError):
                continue
        return [kept for _, kept in self._known.values()]


def _read(path: Path) -> Kept:
    meta = checkpoint.read_meta(path)
    counters = meta.get("counters") or {}
    return Kept(path, str(meta.get("kind", "step")), checkpoint.written_at(path), clock_of(counters))
