"""Killed at the very end: during the last evaluation, before the last checkpoint, and right after it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.faults import killing
from tests.resume.runs import KILLED, command, differences, last_checkpoint, resume
from tests.resume.test_exact import config, ppo

CARTPOLE = config({"id": "CartPole-v1"}, ppo(), total=384)


class Kills:
    """Kills its own process where the environment variable DISTURB says."""

    def _at(self, place: str, trainer: Any) -> None:
        if os.environ.get("DISTURB") == place and trainer.counters.env_steps == trainer.total_env_steps:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_validation_epoch(self, trainer: Any, event: Any) -> None:
        self._at("evaluation", trainer)

    def on_training_end(self, trainer: Any, event: Any) -> None:
        self._at("end", trainer)

    def on_checkpoint(self, trainer: Any, event: Any) -> None:
        if event.kind == "final":
            self._at("saved", trainer)


def job(folder: Path, disturb: str = "") -> int:
    """One job script, for every start."""
    file = folder.with_suffix(".json")
    callbacks = [{"type": "tests.resume.test_endings:Kills"}, {"type": "checkpoint", "best": None}]
    file.write_text(json.dumps({**CARTPOLE, "callbacks": callbacks}))
    arguments = ("train", str(file), "--run-dir", str(folder), "--resume-if-exists", "--quiet")
    return command(*arguments, disturb=disturb)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, never disturbed."""
    folder = tmp_path_factory.mktemp("endings") / "whole"
    assert job(folder) == 0
    return folder


@pytest.mark.parametrize("place", ["evaluation", "end"])
def test_what_was_not_saved_is_done_again(whole: Path, tmp_path: Path, place: str) -> None:
    run = tmp_path / "run"
    assert job(run, place) == KILLED
    assert last_checkpoint(run).name == "256"
    assert job(run) == 0
    assert differences(whole, run) == []
    assert json.loads((run / "result.json").read_text())["stop_reason"] == "finished"


def test_what_was_saved_is_complete(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert job(run, "saved") == KILLED
    assert not (run / "result.json").exists()
    assert job(run) == 0, "its result was left to write"
    assert json.loads((run / "result.json").read_text())["stop_reason"] == "finished"
    assert job(run) == 3, "there is nothing left to do"
    assert differences(whole, run) == []


# -- ended by a callback ---------------------------------------------------------------------------------------------
STOPPED = {
    **config({"id": "CartPole-v1"}, ppo(), total=1024, save=128),
    "callbacks": [{"type": "early_stop", "threshold": 1.0, "min_env_steps": 250}],
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that early stopping ends after 256 of 1,024 steps."""
    folder = tmp_path_factory.mktemp("endings") / "stopped"
    assert killing.job(STOPPED, folder) == (0, "")
    assert last_checkpoint(folder).name == "256" and "threshold" in reason(folder)
    return folder


def reason(folder: Path) -> str:
    return str(json.loads((folder / "result.json").read_text(encoding="utf-8"))["stop_reason"])


def killed_at_its_end(folder: Path) -> None:
    """After the last checkpoint, before it is written down that the run has ended."""
    assert killing.job(STOPPED, folder, killing.Moment("end", event=0))[0] == KILLED
    assert last_checkpoint(folder).name == "256" and not (folder / "result.json").exists()


@pytest.mark.parametrize(
    "start", [resume, lambda folder: killing.job(STOPPED, folder)[0]], ids=["resume", "job"]
)
def test_a_run_that_was_about_to_be_stopped_ends_there(stopped: Path, tmp_path: Path, start: Any) -> None:
    run = tmp_path / "run"
    killed_at_its_end(run)
    assert start(run) == 0
    assert differences(stopped, run) == [] and reason(run) == reason(stopped)
    assert killing.job(STOPPED, run)[0] == 3, "there is nothing left to do"


def test_one_that_was_stopped_goes_on_where_somebody_wants_it_and_another_kill_does_not_end_it(
    stopped: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    assert resume(run) == 0, "the threshold is reached again by the next evaluation"
    assert int(last_checkpoint(run).name) == 512
    killed = tmp_path / "killed"
    shutil.copytree(stopped, killed)
    in_the_first_chunk = killing.Moment("collect", event=0)
    assert killing.watched(("resume", str(killed), "--quiet"), in_the_first_chunk)[0] == KILLED
    assert last_checkpoint(killed).name == "256" and not (killed / "result.json").exists()
    assert resume(killed) == 0 and differences(run, killed) == []


def test_one_that_was_about_to_be_stopped_goes_on_with_changes_and_as_another(tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed_at_its_end(run)
    fork = tmp_path / "fork"
    assert command("resume", str(run), "--as", str(fork), "--quiet") == 0
    assert int(last_checkpoint(fork).name) == 512
    assert command("resume", str(run), "callbacks.0.threshold=1e9", "--quiet") == 0
    assert last_checkpoint(run).name == "1024" and reason(run) == "finished"
