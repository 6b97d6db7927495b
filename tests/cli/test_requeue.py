"""`train --run-dir X --resume-if-exists`, and folders of seeds that are gone on with: one job script for all starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.test_runs import rows, weights
from uniarena import checkpoint
from uniarena.checkpoint import CheckpointError
from uniarena.run import single, training

US = "tests.cli.users"
JOB = ("train", "small.yaml", "--run-dir", "job", "--resume-if-exists")


def same(a: str, b: str) -> bool:
    ours, theirs = weights(a), weights(b)
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_it_begins_goes_on_and_says_when_it_is_complete(ua) -> None:
    stops = f"callbacks=['{US}:CtrlC']"
    assert ua(*JOB, stops).code == 130
    told = ua(*JOB, stops)
    assert told.code == 0 and "resumed job at 64 env steps" in told.err
    told = ua(*JOB, stops, "--json")
    assert told.code == 3 and "job is complete: finished after 128 env steps" in told.err
    assert told.json["exit_code"] == 3
    ua("train", "small.yaml", "--run-dir", "straight")
    assert same("job/checkpoints/128", "straight/checkpoints/128")


def test_a_job_that_a_callback_ended_is_complete(ua) -> None:
    early = "callbacks=[{type: early_stop, threshold: 1}]"
    assert ua(*JOB, early).code == 0
    steps = rows("job")[-1]["env_steps"]
    told = ua(*JOB, early)
    assert told.code == 3 and f"{steps:,} env steps" in told.err


def test_another_configuration_is_refused_key_by_key(ua) -> None:
    assert ua(*JOB).code == 0
    told = ua(*JOB, "learner.gamma=0.5", "environment.num_envs=4")
    assert told.code == 2
    assert "the run in job has 0.99, this config 0.5" in told.err
    assert "environment.num_envs" in told.err and "uniarena resume job learner.gamma=0.5" in told.err
    assert ua(*JOB, "learner.gamma=0.99").code == 3  # said or left to the default is the same


@pytest.mark.parametrize("left", ["nothing", "log", "start", "figures"])
def test_what_a_crashed_start_left_is_cleared_and_its_log_kept(ua, left: str) -> None:
    if left != "nothing":
        Path("job").mkdir()
        Path("job/run.log").write_text("the first start\n")
    if left in ("start", "figures"):
        ua("train", "small.yaml", "--run-dir", "whole")
        for name in ("config.yaml", "provenance.json"):
            shutil.copy(Path("whole", name), Path("job", name))
    if left == "figures":
        Path("job/metrics.jsonl").write_text('{"env_steps": 7}\n')
        Path("job/checkpoints/.64.1-ab.tmp").mkdir(parents=True)
    assert ua(*JOB).code == 0
    assert [row["env_steps"] for row in rows("job")] == [32, 64, 96, 128]
    assert json.loads(Path("job/provenance.json").read_text())["resumed"] == []
    assert left == "nothing" or "the first start" in Path("job/run.log").read_text()


def test_a_folder_of_something_else_is_left_alone(ua) -> None:
    Path("job").mkdir()
    Path("job/thesis.tex").write_text("years of work")
    told = ua(*JOB)
    assert told.code == 2 and "thesis.tex" in told.err
    assert {path.name for path in Path("job").iterdir()} == {"thesis.tex"}


def test_checkpoints_that_are_all_damaged_are_not_thrown_away(ua) -> None:
    ua(*JOB)
    for file in Path("job/checkpoints").glob("*/manifest.json"):
        file.write_text("{")
    told = ua(*JOB)
    assert told.code == 2 and "none is whole" in told.err and "delete job/checkpoints" in told.err
    assert len(rows("job")) == 4


def test_it_needs_a_folder(ua) -> None:
    told = ua("train", "small.yaml", "--resume-if-exists")
    assert told.code == 2 and "--run-dir PATH" in told.err
    assert ua("train", "small.yaml", "experiment.run_dir=job", "--resume-if-exists").code == 0
    assert ua("train", "small.yaml", "experiment.run_dir=job", "--resume-if-exists").code == 3


def test_secrets_are_given_by_the_job_itself(ua) -> None:
    more = (f"environment.id={US}:Locked", "environment.kwargs.api_key=open sesame 123")
    assert ua(*JOB, *more, f"callbacks=['{US}:CtrlC']").code == 130
    told = ua(*JOB, *more, f"callbacks=['{US}:CtrlC']")
    assert told.code == 0, told.err


# -- seeds -------------------------------------------------------------------------------------------------------
def test_a_folder_of_seeds_is_gone_on_with(ua) -> None:
    stops = f"callbacks=['{US}:CtrlC']"
    assert ua("train", "small.yaml", stops, "--seeds", "3", "--run-dir", "many").code == 130
    assert {path.name for path in Path("many").glob("seed-*")} == {"seed-0"}
    told = ua("resume", "many", "--json")  # seed 0 to its end; seed 1 begins and is stopped likewise
    assert told.code == 130, told.err
    assert [run["seed"] for run in told.json["runs"]] == [0, 1]
    told = ua("resume", "many", "--json")
    assert told.code == 130 and [run["seed"] for run in told.json["runs"]] == [0, 1, 2]
    told = ua("resume", "many", "--json")
    assert told.code == 0
    summary = json.loads(Path("many/summary.json").read_text())
    assert summary == told.json and summary["summary"]["count"] == 3
    told = ua("resume", "many")
    assert told.code == 3 and "every seed of many is complete" in told.err
    ua("train", "small.yaml", "experiment.seed=2", "--run-dir", "straight")
    assert same("many/seed-2/checkpoints/128", "straight/checkpoints/128")
    evaluated = [run["eval"]["return_mean"] for run in summary["runs"]]
    assert evaluated == summary["summary"]["values"]


def test_seeds_are_requeued_and_changed_together(ua) -> None:
    job = ("train", "small.yaml", "--seeds", "2", "--run-dir", "many", "--resume-if-exists")
    assert ua(*job).code == 0
    assert ua(*job).code == 3
    told = ua(*job, "learner.gamma=0.9")
    assert told.code == 2 and "this config 0.9" in told.err
    told = ua("train", "small.yaml", "--seeds", "3", "--run-dir", "many", "--resume-if-exists")
    assert told.code == 2 and "the seeds 0 to 1" in told.err
    shutil.rmtree("many/seed-1")
    told = ua("resume", "many", "training.total_timesteps=160", "--json")
    assert told.code == 0, told.err
    assert [run["env_steps"] for run in told.json["runs"]] == [160, 160]
    assert Path("many/seed-0/changes.jsonl").exists() and not Path("many/seed-1/changes.jsonl").exists()
    assert ua("resume", "many", "--as", "other").code == 2


def test_a_wrong_config_leaves_no_folder_of_seeds(ua) -> None:
    told = ua(
        "train", "small.yaml", f"environment.id={US}:FailsWhenMade", "--seeds", "2", "--run-dir", "many"
    )
    assert told.code == 2 and not Path("many").exists()


def test_a_resumed_run_that_is_out_of_time_at_once_writes_no_row_twice(
    ua, monkeypatch: pytest.MonkeyPatch
) -> None:
    from uniarena.run import surroundings

    class Now:
        """A timer that is over at once."""

        daemon = False

        def __init__(self, seconds: float, function: Any, args: tuple[Any, ...]) -> None:
            self.start, self.cancel = (lambda: function(*args)), (lambda: None)

    ua(*JOB, f"callbacks=['{US}:CtrlC']")
    monkeypatch.setattr(surroundings.threading, "Timer", Now)
    told = ua("resume", "job", "training.max_wall_time=9")
    assert told.code == 0 and "max_wall_time is over" in told.out
    assert [row["env_steps"] for row in rows("job")] == [32, 64]
    assert {"entropy", "eval/return_mean"} <= rows("job")[-1].keys()


def test_a_folder_in_use_is_neither_cleared_nor_gone_on_with(ua) -> None:
    Path("job").mkdir()
    Path("job/metrics.jsonl").write_text('{"env_steps": 7}\n')
    with checkpoint.locked("job"):
        told = ua(*JOB)
        assert told.code == 2 and "is in use" in told.err
        assert Path("job/metrics.jsonl").exists()
    assert ua(*JOB).code == 0


def test_the_lock_is_held_from_the_decision_to_the_end(ua, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[str] = []

    def watched(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            result = real(*arguments, **options)
            held.append(name)
            with pytest.raises(CheckpointError, match="is in use"), checkpoint.locked("job"):
                pass
            return result

        monkeypatch.setattr(owner, name, call)

    for owner, name in ((single, "requeued"), (single, "clear_crashed"), (training, "plan")):
        watched(owner, name)
    assert ua(*JOB, f"callbacks=['{US}:CtrlC']").code == 130
    assert ua("resume", "job").code == 0
    assert held == ["requeued", "clear_crashed", "plan"]
