"""One JSON object a line: every figure of every iteration, readable by anything."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from uniarena.config import config
from uniarena.trainer.clock import clock_of

__all__ = ["Jsonl", "JsonlConfig", "read_rows"]


@config
class JsonlConfig:
    """Figures as lines of JSON."""

    file: str = "metrics.jsonl"  # name inside the run folder


KEPT = 10_000
"""Rows that wait in memory while the disk refuses them; beyond that the oldest are lost."""


class Jsonl:
    """Appends a row an iteration to `metrics.jsonl`; rows are ordered by `env_steps`, each of which occurs once; those
    of a run that learns from data by `updates`.

    NaN and infinities, which JSON lacks, are written as null and named in the row's `non_finite`. Rows that the disk
    refuses are written with the next one that it takes; there is never half a row between whole ones.
    """

    Config = JsonlConfig
    every_iteration: ClassVar[bool] = True

    def __init__(self, cfg: JsonlConfig) -> None:
        self.cfg = cfg
        self._path: Path | None = None
        self._last: dict[str, Any] = {}
        self._start_of_last = self._end = 0  # bytes
        self._waiting: list[dict[str, Any]] = []

    def open(self, run_dir: Path, step: int) -> None:
        """Keep the rows up to `step`; later ones, and a line that was cut off, belong to an interrupted
        run.

        Raises:
            OSError: the file cannot be written; what was there stays.
        """
        path = run_dir / self.cfg.file
        kept = [row for row in read_rows(path) if clock_of(row) <= step] if step else []
        content = b"".join(_render(row) for row in kept)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        self._path, self._waiting = path, []
        self._last = kept[-1] if kept else {}  # a run that is stopped before its next iteration adds to it
        self._end = len(content)
        self._start_of_last = self._end - (len(_render(kept[-1])) if kept else 0)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write a row.

        Raises:
            OSError: the disk refuses; the row waits.
        """
        if self._path is None:
            return
        row = {"env_steps": step, **values}
        if self._last and clock_of(self._last) == step:
            row = {**self._last, **values}  # of a run from data `env_steps` is not the step
            if self._waiting:
                self._waiting.pop()
            else:
                self._end = self._start_of_last
        self._last = row
        self._waiting = [*self._waiting[1 - KEPT :], row]
        self._flush()

    def _flush(self) -> None:
        """Write what waits behind what is there. The file is opened each time: a crash leaves nothing unwritten."""
        if self._path is None or not self._waiting:
            return
        lines = [_render(_finite(row)) for row in self._waiting]
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            start = min(self._end, os.fstat(descriptor).st_size)  # shorter, if somebody emptied it
            self._end = _put(descriptor, start, b"".join(lines))
        finally:
            os.close(descriptor)
        self._start_of_last = self._end - len(lines[-1])
        self._waiting = []

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._path = None


def _put(descriptor: int, start: int, data: bytes) -> int:
    """Make `data` all that follows `start` → where it ends.

    Raises:
        OSError: it does not fit; nothing follows `start` now.
    """
    os.lseek(descriptor, start, os.SEEK_SET)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        os.ftruncate(descriptor, start)
        raise
    os.ftruncate(descriptor, start + len(data))
    return start + len(data)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a metrics file; none where there is no file. A damaged line is left out."""
    rows = []
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    odd = {name: str(v) for name, v in row.items() if isinstance(v, float) and not math.isfinite(v)}
    written = {name: None if name in odd else value for name, value in row.items()}
    return {**written, "non_finite": odd} if odd else written


def _render(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
