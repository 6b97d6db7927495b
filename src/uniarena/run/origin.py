"""Where a run comes from: what its checkpoints carry of its provenance, and what it started or went on from."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from uniarena import checkpoint
from uniarena.checkpoint import CheckpointError
from uniarena.checkpoint.find import STAGES
from uniarena.config import Experiment
from uniarena.config.schema import InitFromConfig
from uniarena.provenance import read_record
from uniarena.run.resuming import Plan

_MAX_CARRIED = (
    256_000  # bytes of a diff that every checkpoint carries; a larger one stays in the run's folder
)


def portable(folder: Path) -> dict[str, Any]:
    """The record of a run's latest start with the diff inside, for checkpoints: each can be told where it came from
    without the run's folder.
    """
    found = read_record(folder)
    if not found:
        return {}
    record: dict[str, Any] = [found, *found["resumed"]][-1]
    record = {key: value for key, value in record.items() if key != "resumed"}
    name = record.get("git", {}).get("diff")
    if name and (folder / name).is_file():
        content = (folder / name).read_bytes()
        record["git"] = {**record["git"], "diff_sha256": hashlib.sha256(content).hexdigest()}
        if len(content) <= _MAX_CARRIED:
            record["git"]["patch"] = content.decode("utf-8", errors="replace")
    return record


def continued(found: Plan, folder: Path) -> dict[str, Any]:
    """Where the run goes on, for its provenance; of a new run also which one it comes from."""
    here = {
        "checkpoint": found.source.name,
        "env_steps": found.env_steps,
        "exact": bool(found.meta["exact"]),
        "changes": [change.entry(found.env_steps) for change in found.changes],
    }
    if found.run == folder:
        return here
    parent = found.meta.get("provenance") or {}
    origin = {"run": found.run.resolve().name, "path": os.path.relpath(found.run, folder)}
    commit = parent.get("git", {}).get("commit")
    return {**here, "parent": {**origin, "started": parent.get("started"), "commit": commit}}


# -- the stage before --------------------------------------------------------------------------------------------
def rooted(exp: Experiment, folder: Path) -> Experiment:
    """The configuration of the run in `folder`; of a later stage with the agent of the stage before where that lies
    now, beside it, and not where it lay when the run was made. A fork of a stage looks beside that stage.
    """
    start = exp.agent.init_from
    if not isinstance(start, InitFromConfig):
        return exp
    tail = Path(*Path(start.path).parts[-3:])
    stage = _stage(folder, set())
    if stage is None or not _is_before(tail, stage):
        return exp
    path = stage.parent / tail
    if stage != folder and Path(start.path).is_dir() and not _is(path, start):
        return exp  # the stage that was forked has gone, or is another now
    return replace(exp, agent=replace(exp.agent, init_from=replace(start, path=str(path))))


def _stage(folder: Path, seen: set[Path]) -> Path | None:
    """The folder itself where it is that of a stage, or the stage that it was forked from."""
    if (folder.parent / STAGES).is_file():
        return folder
    seen = {*seen, folder.resolve()}
    record = read_record(folder)
    for entry in [record, *record.get("resumed", [])]:
        parent = entry.get("parent", {}).get("path")
        if parent is not None and (folder / parent).resolve() not in seen:
            return _stage((folder / parent).resolve(), seen)
    return None


def _is_before(tail: Path, stage: Path) -> bool:
    """Whether a path names a checkpoint of the stage before."""
    number = re.match(r"([0-9]+)-", stage.name)
    wanted = f"{int(number[1]) - 1}-[^/]+/checkpoints/[0-9]+" if number else "(?!)"
    return re.fullmatch(wanted, tail.as_posix()) is not None


def _is(path: Path, start: InitFromConfig) -> bool:
    try:
        return start.sha256 in (None, checkpoint.fingerprint(path))
    except CheckpointError:
        return False
