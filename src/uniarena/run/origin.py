"""Where a run comes from: what its checkpoints carry of its provenance, and what it went on from."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

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
