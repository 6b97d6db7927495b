"""What ails a run that is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from uniarena.analysis.doctor import Finding, examine, statements
from uniarena.checkpoint import CheckpointError
from uniarena.config import from_text
from uniarena.run.folder import CONFIG, METRICS, run_folder
from uniarena.trainer.loggers.jsonl import read_rows


def doctor(run: str | Path) -> tuple[list[Finding], int]:
    """Findings of a run, finished or going on, and the number of rows that they were made from.

    Raises:
        CheckpointError: it is no run's folder, or holds no figures.
    """
    folder, rows = _rows(run)
    text = (folder / CONFIG).read_text(encoding="utf-8")
    return examine(rows, from_text(text, str(folder / CONFIG))), len(rows)


def said(run: str | Path) -> list[str]:
    """What the doctor says of a run besides, ill or not: sentences about Q on the data that it learned from.

    Raises:
        CheckpointError: as in `doctor`.
    """
    return statements(_rows(run)[1])


def _rows(run: str | Path) -> tuple[Path, list[dict[str, Any]]]:
    folder = run_folder(Path(run))
    rows = read_rows(folder / METRICS)
    if not rows:
        raise CheckpointError(folder, f"holds no figures yet: {METRICS} is empty or missing.")
    return folder, rows
