"""One JSON object a line: every figure of every iteration, readable by anything."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from uniarena.config import config

__all__ = ["Jsonl", "JsonlConfig", "read_rows"]


@config
class JsonlConfig:
    """Figures as lines of JSON."""

    file: str = "metrics.jsonl"  # name inside the run folder


class Jsonl:
    """Appends a row an iteration to `metrics.jsonl`; rows are ordered by `env_steps`, each of which occurs
    once.

    NaN and infinities, which JSON lacks, are written as null and named in the row's `non_finite`.
    """

    Config = JsonlConfig
    every_iteration: ClassVar[bool] = True

    def __init__(self, cfg: JsonlConfig) -> None:
        self.cfg = cfg
        self._path: Path | None = None
        self._last: dict[str, Any] = {}
        self._start_of_last = 0

    def open(self, run_dir: Path, step: int) -> None:
        """Keep the rows up to `step`; later ones, and a line that was cut off, belong to an interrupted
        run.
        """
        self._path = path = run_dir / self.cfg.file
        kept = [row for row in read_rows(path) if row.get("env_steps", 0) <= step] if step else []
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_bytes(b"".join(_render(row) for row in kept))
        os.replace(temporary, path)
        self._last, self._start_of_last = {}, 0

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        if self._path is None:
            return
        row = {"env_steps": step, **values}
        with self._path.open(
            "r+b"
        ) as file:  # opened for each row: nothing is left open or unwritten by a crash
            if self._last.get("env_steps") == step:
                row = {**self._last, **row}
                file.truncate(self._start_of_last)
            self._last, self._start_of_last = row, file.seek(0, os.SEEK_END)
            file.write(_render(_finite(row)))

    def close(self) -> None:
        self._path = None


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
