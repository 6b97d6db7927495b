"""Any byte of any file of a run's folder may be wrong: the commands go on without it, or name it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import uniarena
from tests.faults.test_disk import CONFIG
from tests.state.test_hostile import mutate
from uniarena import run as runs
from uniarena.checkpoint import CheckpointError
from uniarena.config import ConfigError, Experiment, load
from uniarena.run.folder import read_result
from uniarena.run.resuming import NothingToDo, plan, requeued

FILES = ("config.yaml", "changes.jsonl", "result.json", "provenance.json", "metrics.jsonl", "run.log")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was resumed with changes, and can be extended."""
    folder = tmp_path_factory.mktemp("damaged") / "run"
    uniarena.train(CONFIG, run_dir=folder, quiet=True)
    uniarena.resume(folder, ["training.total_timesteps=192", "learner.gamma=0.9"], quiet=True)
    assert {path.name for path in folder.iterdir() if path.is_file()} >= set(FILES)
    return folder


def calls(run: Path, exp: Experiment, k: int) -> list[Callable[[], Any]]:
    """What reads the folder's files: to go on, to start a job again, to compare, and sometimes to verify."""
    found = [lambda: plan(run), lambda: requeued(run, exp), lambda: str(runs.diff(run, run))]
    return [*found, lambda: read_result(run), *[lambda: runs.verify(run, steps=16)][: k % 50 == 1]]


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_or_not_needed(name: str, count: int, run: Path) -> None:
    path, rng, exp = run / name, random.Random(name), load([run / "config.yaml"])
    original, named = path.read_bytes(), 0
    try:
        for k in range(count):
            path.write_bytes(mutate(original, rng))
            for call in calls(run, exp, k):
                try:
                    call()
                except (ConfigError, CheckpointError) as error:
                    named += 1
                    assert str(error)
                except NothingToDo:
                    continue  # a job that is started again finds the run complete
    finally:
        path.write_bytes(original)
    assert (named > 0) == (name in ("config.yaml", "changes.jsonl")), "the others are not needed to go on"
