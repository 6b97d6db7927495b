"""Finding checkpoints, deciding whether to trust them, and deleting them."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shlex
import shutil
from pathlib import Path

from uniarena.checkpoint.manifest import MANIFEST, CheckpointError, read_manifest
from uniarena.checkpoint.reading import verify

_log = logging.getLogger(__name__)


STAGES = "stages.yaml"
"""The configuration of a run in stages; beside it lies a folder `<number>-<name>` for each that has begun."""


def stages_in(folder: Path) -> list[Path]:
    """The folders of the stages that have begun, in order; none where a folder is not of a run in stages."""
    if not (folder / STAGES).is_file():
        return []
    found = [path for path in folder.iterdir() if re.match(r"[0-9]+-", path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.partition("-")[0]))


def meant(folder: Path | str) -> Path:
    """The run that a folder means: of one in stages the last that has a checkpoint, or the first; else itself."""
    folder = Path(folder)
    found = stages_in(folder)
    saved = [path for path in found if has_saved(path)]
    return saved[-1] if saved else found[0] if found else folder


def has_saved(run: Path) -> bool:
    """Whether a run has written a checkpoint; it may be damaged since."""
    return any((path / MANIFEST).is_file() for path in _candidates(run / "checkpoints"))


def whole_of(run: Path) -> Path:
    """The folder by which a run is resumed: of a stage that of all stages, else its own."""
    return run.parent if (run.parent / STAGES).is_file() else run


def newest(folder: Path | str) -> tuple[Path, list[tuple[Path, str]]]:
    """The most recently written whole checkpoint inside `folder`, and the broken ones passed over with the
    reason.

    A best one that the run cannot continue from exactly (`exact: false` in its meta) is the answer only where there is
    no other: the run is to go on as if it had never stopped. Only damage newer than the answer is sure to be listed:
    older checkpoints are not read in full.

    Raises:
        CheckpointError: there is no whole checkpoint.
    """
    folder = Path(folder)
    broken: list[tuple[Path, str]] = []
    dated: list[tuple[bool, int, Path]] = []
    for path in _candidates(folder):
        try:
            manifest = read_manifest(path)
            meta = manifest["meta"]
            side = meta.get("kind") == "best" and not meta.get("exact", True)
            dated.append((not side, manifest["created"], path))
        except CheckpointError as error:
            broken.append((path, str(error)))
    for *_, path in sorted(dated, reverse=True):
        try:
            verify(path)
            return path, broken
        except CheckpointError as error:
            broken.append((path, str(error)))
    if not broken:
        run = folder.parent if folder.name == "checkpoints" else folder
        config = shlex.quote(str(run / "config.yaml")) if (run / "config.yaml").exists() else "CONFIG"
        again = f"uniarena train {config} --run-dir {shlex.quote(str(run))} --resume-if-exists"
        raise CheckpointError(
            run, f"holds no checkpoint: a run ended before its first one. Begin again with: {again}"
        )
    reasons = "".join(f"\n  {reason}" for _, reason in broken)
    raise CheckpointError(folder, f"holds no whole checkpoint.{reasons}")


def _candidates(folder: Path) -> list[Path]:
    """Sub-folders that are or should be checkpoints, and those set aside by a replacement that was cut
    short.
    """
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        aside = re.fullmatch(r"\.(.+)\.[0-9a-f-]+\.old", path.name)
        wanted = not folder.joinpath(aside[1]).exists() if aside else not path.name.startswith(".")
        if wanted and path.is_dir():
            found.append(path)
    return found


def locate(path: Path | str) -> Path:
    """The checkpoint that `path` means: itself, or of a run folder the best one, else the newest whole one.

    Raises:
        CheckpointError: nothing whole is there.
    """
    path = meant(path)
    if (path / MANIFEST).exists():
        return path
    if not path.is_dir():
        raise CheckpointError(path, "does not exist; give a run folder or a checkpoint folder.")
    inside = path / "checkpoints"
    if not inside.is_dir():
        if (path / "config.yaml").exists():
            raise CheckpointError(path, "holds no checkpoint yet: the run ended before its first one.")
        inside = path
    best = inside / "best"
    if best.is_dir():
        try:
            verify(best)
            return best
        except CheckpointError as error:
            _log.warning("the best checkpoint cannot be used, taking the newest: %s", error)
    return newest(inside)[0]


def remove(folder: Path | str) -> None:
    """Delete a checkpoint; a crash midway leaves no half one under its name."""
    folder = Path(folder)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.del")
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def sweep(folder: Path | str) -> None:
    """Delete what killed processes left inside `folder`. Only while nothing is being saved there."""
    for path in Path(folder).glob(".*"):
        aside = re.fullmatch(r"\.(.+)\.[0-9a-f-]+\.(tmp|old|del)", path.name)
        if aside and path.is_dir() and (aside[2] != "old" or path.with_name(aside[1]).exists()):
            shutil.rmtree(path, ignore_errors=True)
