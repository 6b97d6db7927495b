"""A run's folder: what lies in it, its result, a copy that another run starts from, the remains of a crashed start."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from uniarena import checkpoint, provenance
from uniarena.checkpoint import CheckpointError
from uniarena.checkpoint.find import STAGES, meant
from uniarena.config import ConfigError, Reference, Section
from uniarena.config.read import read
from uniarena.run.result import Result, figures
from uniarena.sampling.evaluation import EvalResult
from uniarena.trainer.clock import clock_of
from uniarena.trainer.loggers.jsonl import read_rows

CONFIG, CHANGES, RESULT, CHECKPOINTS, METRICS = (
    "config.yaml",
    "changes.jsonl",
    "result.json",
    "checkpoints",
    "metrics.jsonl",
)
SEEDS = "seeds.json"
_OURS = {
    CONFIG,
    CHANGES,
    RESULT,
    CHECKPOINTS,
    METRICS,
    "events",
    "videos",
    "plots",
    "profile.json",
    "profile.png",
    provenance.LOG,
    provenance.RECORD,
    provenance.LOCK,
}


def owner(source: Path) -> Path:
    """The run's folder that a checkpoint belongs to; its own folder's parent where it stands alone."""
    return source.parent.parent if source.parent.name == CHECKPOINTS else source.parent


def run_folder(path: Path) -> Path:
    """The path, if it is a run's folder; of a run in stages the folder of the last one.

    Raises:
        CheckpointError: it is something else; what, is said.
    """
    path = meant(path)
    if (path / CONFIG).is_file():
        return path
    if not path.is_dir():
        raise CheckpointError(path, "does not exist; give a run's folder.")
    if (path / "manifest.json").is_file():
        way = "to start another run from it, add --as NEW; a run is resumed as a whole"
        raise CheckpointError(path, f"is one checkpoint; {way}: {owner(path)}")
    if runs := seeds_in(path):
        raise CheckpointError(
            path, f"holds the runs of {len(runs)} seeds; name one of them, such as {runs[0].parent}"
        )
    raise CheckpointError(path, "is no run's folder: it holds no config.yaml.")


def seeds_in(path: Path) -> list[Path]:
    """Configurations of the runs in a folder of several seeds."""
    return sorted([*path.glob(f"seed-*/{CONFIG}"), *path.glob(f"seed-*/{STAGES}")])


def made(folder: Path) -> Path:
    """The folder, made if it is not there.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise provenance.unwritable(error) from error
    return folder


# -- small files -------------------------------------------------------------------------------------------------
def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace a file of JSON lines."""
    provenance.replace_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_result(folder: Path, result: Result) -> None:
    """How a run ended. It goes when the run goes on."""
    found = result.eval
    document = {
        "env_steps": result.env_steps,
        "updates": result.updates,
        "stop_reason": result.stop_reason,
        "resumable": result.resumable,
        "trusting": result.trusting,
        "setup_s": round(result.setup_s, 3),
        "wall_s": round(result.wall_s, 3),
        "eval": None
        if found is None
        else {
            **figures(found),
            "mode": found.mode,
            "returns": list(found.returns),
            "lengths": list(found.lengths),
            "success_rate": found.success_rate,
        },
    }
    provenance.replace_text(folder / RESULT, json.dumps(document, indent=1) + "\n")


def read_result(folder: Path) -> Result | None:
    """How a run ended; None where it has not, or was killed."""
    try:
        found = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        told = found["eval"]
        evaluated = told and EvalResult(
            told["mode"],
            tuple(told["returns"]),
            tuple(told["lengths"]),
            told["success_rate"],
            reference=Reference(**told["reference"]) if "reference" in told else None,
        )
        return Result(
            folder,
            found["env_steps"],
            found["setup_s"],
            found["wall_s"],
            evaluated,
            found["stop_reason"],
            found["resumable"],
            found["trusting"],
            found.get("updates", 0),
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None


# -- what it was trained with ------------------------------------------------------------------------------------
def saved_config(folder: Path) -> Section:
    """The configuration of a run, as it is written down.

    Raises:
        ConfigError: the file is damaged.
    """
    return read(folder / CONFIG)


def saved_changes(folder: Path) -> list[dict[str, Any]]:
    """What was changed when a run was resumed: `env_steps`, `key`, `old` and `new`, in order.

    Raises:
        ConfigError: the file is damaged.
    """
    path = folder / CHANGES
    rows = read_rows(path)
    lines = path.read_bytes().splitlines() if path.exists() else []
    whole = len(rows) == len(lines) and all(
        row.keys() >= {"env_steps", "key", "old", "new"}
        and isinstance(row["key"], str)
        and isinstance(row["env_steps"], int)
        for row in rows
    )
    if not whole:
        raise ConfigError(
            f"{path} is damaged",
            hint=f"the newest checkpoint knows the changes too: uniarena resume {folder} writes them anew",
        )
    return rows


# -- another run from it -----------------------------------------------------------------------------------------
def fork(source: Path, new: Path, record: Callable[[Path], None]) -> Path:
    """Make the folder `new` with the checkpoint `source`, the figures that lead to it and what `record` writes → the
    copy of the checkpoint.

    Files are linked where the disk can do that: a checkpoint is never changed in place. All or nothing.

    Raises:
        ConfigError: there is something at `new`, or it cannot be written.
    """
    _refuse_taken(new)
    steps = clock_of(checkpoint.read_meta(source)["counters"])
    temporary = new.with_name(f".{new.name}.{secrets.token_hex(4)}.tmp")
    name = source.name if source.name.isdigit() else str(steps)
    try:
        (temporary / CHECKPOINTS).mkdir(parents=True)
        shutil.copytree(source, temporary / CHECKPOINTS / name, copy_function=_link_or_copy)
        rows = [row for row in read_rows(owner(source) / METRICS) if clock_of(row) <= steps]
        if rows:
            write_lines(temporary / METRICS, rows)
        record(temporary)
        temporary.rename(new)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise ConfigError(
            f"the run's folder {new} cannot be made: {error}", hint="choose a place that you may write to"
        ) from error
    return new / CHECKPOINTS / name


def _refuse_taken(new: Path) -> None:
    if new.exists() and not (new.is_dir() and not any(new.iterdir())):
        raise ConfigError(
            f"{new} is not empty; a run needs a folder of its own", hint="name another folder after --as"
        )


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        shutil.copy2(source, target)


# -- started again -----------------------------------------------------------------------------------------------
def clear_crashed(folder: Path) -> None:
    """Remove what a start left that crashed before its first checkpoint; its log stays.

    Raises:
        ConfigError: something else lies there, or a checkpoint, if a broken one.
    """
    for path in folder.iterdir():
        if not (
            path.name in _OURS or path.name.startswith(".") or re.fullmatch(r"git(-\d+)?\.diff", path.name)
        ):
            raise ConfigError(
                f"{folder} holds {path.name!r} and no checkpoint: it is not a run's folder, or not only one",
                path="experiment.run_dir",
                hint="name another folder",
            )
    broken = [p for p in (folder / CHECKPOINTS).glob("*") if p.is_dir() and not p.name.startswith(".")]
    if broken:
        try:
            checkpoint.newest(folder / CHECKPOINTS)
        except CheckpointError as error:
            raise ConfigError(
                f"{folder} has checkpoints, and none is whole: {error.reason}",
                path="experiment.run_dir",
                hint=f"look at them; to give them up, delete {folder / CHECKPOINTS}",
            ) from error
    for path in folder.iterdir():
        if path.name in (provenance.LOG, provenance.LOCK) or path.name.startswith("."):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
