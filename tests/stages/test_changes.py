"""What a run in stages takes when it is resumed, what it refuses, and what it says of stages that are left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.stages.runs import config
from tests.stages.test_kills import Interrupts
from uniarena import cli, train
from uniarena.checkpoint import CheckpointError
from uniarena.config import ConfigError, dump, load
from uniarena.run import diff, resume
from uniarena.run.resuming import NothingToDo


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(config(data), run_dir=folder, quiet=True)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.yaml")}


def test_a_complete_run_takes_no_change_and_is_left_as_it_is(whole: Path) -> None:
    before = files(whole)
    with pytest.raises(
        NothingToDo, match=r"none can take another learner\.gamma, and stages\.yaml stays as it is"
    ):
        resume(whole, ["learner.gamma=0.9"], quiet=True)
    with pytest.raises(NothingToDo, match=r"stages\.finetune\.training\.total_timesteps=…"):
        resume(whole, ["stages.1.learner.learning_rate=1e-4"], quiet=True)
    assert files(whole) == before


@pytest.mark.parametrize("stopped", [("updates", 20), ("env_steps", 20), ()])
def test_stages_that_have_begun_keep_their_names(
    stopped: tuple[Any, ...], data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(config(data), run_dir=run, quiet=True, callbacks=[Interrupts(*stopped)])
    before = files(run)
    begun = [0] if stopped[:1] == ("updates",) else [0, 1]
    for index in begun:
        with pytest.raises(ConfigError, match=r"has begun as (pretrain|finetune)") as caught:
            resume(run, [f"stages.{index}.name=foo"], quiet=True)
        assert caught.value.path == f"stages.{index}.name" and files(run) == before
    if begun == [0]:
        resume(run, ["stages.1.name=foo"], quiet=True)
        assert sorted(path.name for path in run.iterdir() if path.is_dir()) == ["1-pretrain", "2-foo"]


def test_another_name_is_not_recommended_to_a_job_that_is_started_again(whole: Path, data: Path) -> None:
    settings = config(data)
    settings["stages"][1]["name"] = "foo"
    with pytest.raises(ConfigError) as caught:
        train(settings, run_dir=whole, resume_if_exists=True, quiet=True)
    (fault,) = caught.value.faults
    assert fault.path == "stages.1.name" and "uniarena resume" not in fault.hint


def test_a_stage_that_was_not_begun_is_told(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, file, run = config(data), tmp_path / "run.yaml", tmp_path / "run"
    settings["stages"][0]["training"] = {"total_updates": 10**8, "max_wall_time": 0.2}
    file.write_text(dump(load([settings])), encoding="utf-8")
    arguments = ["train", str(file), "--run-dir", str(run), "--quiet"]
    assert cli.invoke(arguments) == 0
    told = capsys.readouterr().out
    assert "not begun yet: stage finetune" in told and f"uniarena resume {run}" in told
    assert cli.invoke(["resume", str(run), "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages_left"] == ["finetune"]


def test_diff_of_a_folder_of_seeds_asks_for_one(whole: Path, tmp_path: Path) -> None:
    for seed in (3, 4):
        (tmp_path / "all" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "all" / f"seed-{seed}" / "stages.yaml").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="holds the runs of 2 seeds; name one of them"):
        diff(tmp_path / "all", whole)
