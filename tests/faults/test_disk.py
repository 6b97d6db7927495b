"""A disk that refuses, in real runs: training goes on, nothing is lost, and what is wrong is said once."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import uniarena
from uniarena import checkpoint, provenance
from uniarena.checkpoint import CheckpointError
from uniarena.config import from_text, load
from uniarena.trainer.loggers import steady
from uniarena.trainer.loggers.jsonl import Jsonl, JsonlConfig, read_rows
from uniarena.trainer.loggers.steady import Steady

resource = pytest.importorskip("resource", reason="no limits of this kind on this system")

CONFIG = {
    "learner": {"type": "ppo", "n_steps": 16, "n_epochs": 1, "batch_size": 16},
    "environment": {"id": "CartPole-v1"},
    "agent": {"policy": {"hidden_sizes": [32]}},
    "training": {
        "total_timesteps": 160,
        "save_every_env_steps": 32,
        "n_eval_episodes": 1,
        "device": "cpu",
        "threads": 1,
    },
    "experiment": {"seed": 0, "loggers": [{"type": "jsonl"}, {"type": "tensorboard"}]},
}


class Full:
    """From one environment step to another, no file may grow: writes fail as on a full disk."""

    def __init__(self, since: int, until: float) -> None:
        self.since, self.until = since, until

    def on_batch_collected(self, trainer: Any, event: Any) -> None:
        steps = trainer.counters.env_steps
        if steps == self.since:
            limit(0)
        elif steps >= self.until:
            limit(resource.RLIM_INFINITY)


def limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The limit goes with the test; TensorBoard's writer ends its thread with a traceback."""
    if resource.getrlimit(resource.RLIMIT_FSIZE)[1] != resource.RLIM_INFINITY:
        pytest.skip("this process may not write files of any size")
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    yield
    limit(resource.RLIM_INFINITY)


def test_a_run_outlives_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tmp_path / "a full disk 磁盘"
    with caplog.at_level(logging.WARNING, "uniarena"):
        result = uniarena.train(CONFIG, run_dir=run, quiet=True, callbacks=[Full(64, 112)])
    assert result.env_steps == 160 and result.stop_reason == "finished"
    rows = read_rows(run / "metrics.jsonl")
    assert [row["env_steps"] for row in rows] == list(range(16, 161, 16))  # none was lost
    assert checkpoint.newest(run / "checkpoints") == (run / "checkpoints" / "160", [])
    assert {"32", "128", "160"} == {p.name for p in (run / "checkpoints").iterdir()} - {"best"}
    for text in (
        "was not saved, training goes on",
        "are written again",
        "Jsonl cannot write",
        "Jsonl writes again",
    ):
        assert caplog.text.count(text) == 1, text
    assert caplog.text.count("Tensorboard cannot write") == caplog.text.count("Tensorboard writes again") == 1
    events = EventAccumulator(str(run / "events"), size_guidance={"scalars": 0}).Reload()
    steps = [event.step for event in events.Scalars("training/updates")]
    assert steps == sorted(set(steps)) and steps[-1] == 160


def test_a_run_whose_last_save_fails_is_resumed_from_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = tmp_path / "run"
    with pytest.raises(CheckpointError, match="could not be written") as caught:
        uniarena.train(CONFIG, run_dir=run, quiet=True, callbacks=[Full(128, math.inf)])
    limit(resource.RLIM_INFINITY)
    notes = "\n".join(caught.value.__notes__)
    assert "reached 160 env steps" in notes and "Nor could the agent alone" in notes
    assert f"last whole checkpoint is {run / 'checkpoints' / '96'}" in notes and "uniarena resume" in notes
    assert checkpoint.newest(run / "checkpoints") == (run / "checkpoints" / "96", [])
    assert uniarena.resume(run, quiet=True, callbacks=[Full(-1, math.inf)]).env_steps == 160
    assert [row["env_steps"] for row in read_rows(run / "metrics.jsonl")] == list(range(16, 161, 16))


def test_a_run_in_use_is_not_resumed_by_a_second_process(tmp_path: Path) -> None:
    run = tmp_path / "run"
    uniarena.train(CONFIG, run_dir=run, quiet=True)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert run / "run.lock" not in before
    with checkpoint.locked(run):
        with pytest.raises(CheckpointError, match=f"is in use by process {os.getpid()} on"):
            uniarena.resume(run, quiet=True)
        assert all(path.stat().st_mtime_ns == when for path, when in before.items() if path != run)
        assert uniarena.evaluate(run, episodes=1).episodes == 1  # looking at it needs no lock


def test_a_checkpoint_alone_tells_how_to_build_its_experiment_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    uniarena.train(CONFIG, run_dir=run, quiet=True)
    meta = checkpoint.read_meta(run / "checkpoints" / "160")
    record, kept = json.loads((run / "provenance.json").read_text()), meta["provenance"]
    assert kept["command"] == record["command"] and kept["seed"] == 0
    assert kept["git"]["commit"] == record["git"]["commit"]
    if "diff" in kept["git"]:
        digest = hashlib.sha256((run / kept["git"]["diff"]).read_bytes()).hexdigest()
        assert kept["git"]["diff_sha256"] == digest
    assert load([from_text(meta["config"], "manifest.json")]).experiment.seed == 0


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_other_refusals_are_told_in_the_systems_words(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint.save(tmp_path / "c", {"agent": 1}, {})

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CheckpointError, match=os.strerror(error)) as caught:
        checkpoint.save(folder, {"agent": 2}, {})
    assert caught.value.path == folder and checkpoint.load(folder)[0] == {"agent": 1}


# -- loggers ---------------------------------------------------------------------------------------------------------
def test_rows_that_the_disk_refused_follow_whole(tmp_path: Path) -> None:
    logger = Jsonl(JsonlConfig())
    logger.open(tmp_path, 0)
    path = tmp_path / "metrics.jsonl"
    for step in range(1, 4):
        logger.scalars(step, {"x": 0.5})
    whole = path.read_bytes()
    limit(len(whole) + 10)  # a row is cut off in the middle
    for step in (4, 5, 5):
        with pytest.raises(OSError, match="large"):
            logger.scalars(step, {"x": 0.5, f"more{step}": 1.0})
        assert path.read_bytes() == whole
    limit(resource.RLIM_INFINITY)
    logger.scalars(5, {"late": 2.0})
    logger.scalars(6, {"x": 0.5})
    logger.scalars(6, {"y": 1.5})
    assert read_rows(path) == [
        *({"env_steps": step, "x": 0.5} for step in range(1, 4)),
        {"env_steps": 4, "x": 0.5, "more4": 1.0},
        {"env_steps": 5, "x": 0.5, "more5": 1.0, "late": 2.0},
        {"env_steps": 6, "x": 0.5, "y": 1.5},
    ]


def test_a_merged_row_that_the_disk_refused_is_not_lost(tmp_path: Path) -> None:
    logger = Jsonl(JsonlConfig())
    logger.open(tmp_path, 0)
    logger.scalars(1, {"x": 0.5})
    limit((tmp_path / "metrics.jsonl").stat().st_size)
    with pytest.raises(OSError, match="large"):
        logger.scalars(1, {"a longer name": 1.0})
    limit(resource.RLIM_INFINITY)
    logger.close()
    assert read_rows(tmp_path / "metrics.jsonl") == [{"env_steps": 1, "x": 0.5, "a longer name": 1.0}]


def test_a_metrics_file_that_somebody_deleted_comes_back(tmp_path: Path) -> None:
    logger = Jsonl(JsonlConfig())
    logger.open(tmp_path, 0)
    logger.scalars(1, {"x": 0.5})
    (tmp_path / "metrics.jsonl").unlink()
    logger.scalars(2, {"x": 0.5})
    assert read_rows(tmp_path / "metrics.jsonl") == [{"env_steps": 2, "x": 0.5}]


def test_a_resume_on_a_full_disk_leaves_the_rows_there_were(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"env_steps": 1}) + "\n")
    limit(0)
    with pytest.raises(OSError, match="large"):
        Jsonl(JsonlConfig()).open(tmp_path, 1)
    limit(resource.RLIM_INFINITY)
    assert read_rows(path) == [{"env_steps": 1}] and [p.name for p in tmp_path.iterdir()] == [path.name]


class Moody:
    """A user's logger on a bad disk."""

    def __init__(self) -> None:
        self.refuse: type[Exception] | None = None
        self.calls: list[str] = []

    def _do(self, name: str) -> None:
        if self.refuse is not None:
            raise self.refuse(28, "No space left on device")
        self.calls.append(name)

    def open(self, run_dir: Path, step: int) -> None:
        self._do(f"open {step}")

    def scalars(self, step: int, values: Any) -> None:
        self._do(f"scalars {step}")

    def close(self) -> None:
        self._do("close")


def test_a_logger_that_cannot_be_opened_is_opened_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now, logger = [0.0], Moody()
    wrapped = Steady(logger, clock=lambda: now[0])
    logger.refuse = OSError
    wrapped.open(tmp_path, 7)
    wrapped.call("scalars", 8, {})
    now[0] += steady.PAUSE
    wrapped.call("scalars", 9, {})
    logger.refuse = None
    wrapped.call("scalars", 10, {})
    now[0] += steady.PAUSE
    wrapped.call("scalars", 11, {})
    wrapped.call("histograms", 11, {})  # which it does not have
    wrapped.call("close")
    assert logger.calls == ["open 7", "scalars 11", "close"]
    assert caplog.text.count("Moody cannot write") == caplog.text.count("Moody writes again") == 1


def test_an_error_that_is_not_the_systems_is_raised(tmp_path: Path) -> None:
    logger = Moody()
    wrapped = Steady(logger)
    wrapped.open(tmp_path, 0)
    logger.refuse = RuntimeError
    with pytest.raises(RuntimeError):
        wrapped.call("scalars", 1, {})


def test_a_log_that_cannot_be_written_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    close = provenance.setup_logging(tmp_path, quiet=True)
    log = logging.getLogger("uniarena")
    stderr = sys.stderr
    limit(0)
    with contextlib.ExitStack() as stack:
        stack.callback(close)
        for _ in range(3):
            log.info("something")
        limit(resource.RLIM_INFINITY)
        log.info("the disk has room again")
    assert sys.stderr is stderr
    told = capsys.readouterr().err
    assert told.count("run.log cannot be written") == 1 and "Traceback" not in told
    assert "the disk has room again" in (tmp_path / "run.log").read_text()


def test_a_full_disk_does_not_cost_the_record_of_earlier_starts(tmp_path: Path) -> None:
    provenance.write_provenance(tmp_path, seed=1, command=["x"])
    before = (tmp_path / provenance.RECORD).read_bytes()
    limit(0)
    with pytest.raises(OSError, match="large"):
        provenance.write_provenance(tmp_path, seed=1, command=["x"])
    limit(resource.RLIM_INFINITY)
    assert (tmp_path / provenance.RECORD).read_bytes() == before
