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
    rows, config = _read(run)
    return examine(rows, config), len(rows)


def said(run: str | Path) -> list[str]:
    """What the doctor says of a run besides, ill or not: of a run from data, Q on that data, or why it is not known.

    Raises:
        CheckpointError: as in `doctor`.
    """
    return statements(*_read(run))


def _read(run: str | Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of figures, and the configuration."""
    folder = run_folder(Path(run))
    rows = read_rows(folder / METRICS)
    if not rows:
        raise CheckpointError(folder, f"holds no figures yet: {METRICS} is empty or missing.")
    return rows, dict(from_text((folder / CONFIG).read_text(encoding="utf-8"), str(folder / CONFIG)))
