"""Killed at the very end: during the last evaluation, before the last checkpoint, and right after it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.resume.runs import KILLED, command, differences, last_checkpoint
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
    assert job(run) == 3, "there is nothing left to do"
    assert differences(whole, run) == []
