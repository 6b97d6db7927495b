"""A disk that is full for a while: the run goes on, and ends as one on a disk with room, bit for bit."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.resume import test_exact
from tests.resume.runs import command, differences
from uniarena import checkpoint
from uniarena.checkpoint import files

FULL_FROM, FULL_UNTIL = 128, 384
KEPT = {"64", "384", "448", "512"}
CONFIG = test_exact.config({"id": "CartPole-v1"}, test_exact.ppo(n_steps=16), total=512, save=64)
CONFIG["training"]["eval_every_env_steps"] = (
    400  # none while the disk is full: a best agent would not be saved as such
)
BALLAST = "ballast"


class Filler:
    """Fills the disk that the run is on, and makes room again; where DISTURB is `faked` writes only say so."""

    def __init__(self) -> None:
        self.how = os.environ.get("DISTURB", "")
        self.patch = pytest.MonkeyPatch()

    def on_batch_collected(self, trainer: Any, event: Any) -> None:
        ballast = trainer.run_dir.parent / BALLAST
        if self.how and trainer.counters.env_steps == FULL_FROM:
            fill(ballast) if self.how == "real" else refuse(self.patch)
        elif self.how and trainer.counters.env_steps == FULL_UNTIL:
            ballast.unlink(missing_ok=True)
            self.patch.undo()


def fill(path: Path) -> None:
    """Write until nothing more fits."""
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        for size in (2**16, 1):
            while file.write(bytes(size)):
                pass


def refuse(patch: pytest.MonkeyPatch) -> None:
    """What writes a checkpoint and the figures says that the disk is full."""

    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(files, "save_file", full)
    patch.setattr(files, "_write_bytes", full)
    patch.setattr("uniarena.trainer.loggers.jsonl._put", full)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on a disk with room."""
    folder = tmp_path_factory.mktemp("room") / "whole"
    assert command(*job(folder, folder.with_suffix(".json"))) == 0
    return folder


def job(folder: Path, file: Path) -> tuple[str, ...]:
    """The arguments of the run's command; `file` becomes its config."""
    callbacks = [{"type": "tests.faults.test_full_disk:Filler"}]
    file.write_text(json.dumps({**CONFIG, "callbacks": callbacks}), encoding="utf-8")
    return ("train", str(file), "--run-dir", str(folder))


def check(run: Path, whole: Path, said: str) -> None:
    """It told what happened, kept what it could write, and is the same run."""
    assert "was not saved, training goes on" in said and os.strerror(errno.ENOSPC) in said
    assert "checkpoints are written again" in said
    kept = [path for path in (run / "checkpoints").iterdir() if path.name != "best"]
    assert {path.name for path in kept} == KEPT and all(checkpoint.load(path) for path in kept)
    assert differences(whole, run) == []


def test_writes_that_say_that_the_disk_is_full(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert command(*job(run, tmp_path / "run.json"), disturb="faked") == 0
    check(run, whole, (run / "run.log").read_text(encoding="utf-8"))


def own_disks() -> bool:
    """Whether this user may mount a small disk that only one process sees: on Linux, where namespaces are allowed."""
    words = ["unshare", "--map-root-user", "--mount", "true"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(words, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.slow
def test_a_disk_of_eight_megabytes_that_is_full(whole: Path, tmp_path: Path) -> None:
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=8m tmpfs "$1" || exit 99; disk=$1; kept=$2; shift 2; "$@"; code=$?; '
        'cp -r "$disk" "$kept"; exit $code'
    )
    shell = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(disk), str(kept)]
    words = [*shell, sys.executable, "-m", "uniarena", *job(disk / "run", tmp_path / "config.json")]
    path = os.pathsep.join(each or "." for each in sys.path)
    environ = {**os.environ, "PYTHONPATH": path, "DISTURB": "real"}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    check(kept / "run", whole, done.stderr)


test_a_disk_of_eight_megabytes_that_is_full.__test__ = own_disks()
