"""Runs in stages that were moved, copied or forked: where the agent of the stage before is found, and that it is it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.resume.runs import differences
from tests.stages.runs import config
from tests.stages.test_kills import Interrupts
from uniarena import cli, train
from uniarena.config import ConfigError
from uniarena.data import DataError
from uniarena.run import resume, verify


@pytest.fixture(scope="module")
def original(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "run"
    train(config(data), run_dir=folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def stranger(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with another seed."""
    folder = tmp_path_factory.mktemp("stranger") / "run"
    settings = config(data)
    settings["experiment"]["seed"] = 4
    train(settings, run_dir=folder, quiet=True)
    return folder


def test_a_copied_run_is_verified_from_its_own_first_stage(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    aside = original.with_name("aside")
    original.rename(aside)  # what the copy's config.yaml names is not there
    try:
        assert verify(copy).reproduces
        assert cli.invoke(["profile", str(copy), "--steps", "20", "--to", str(tmp_path / "profile")]) == 0
    finally:
        aside.rename(original)
    capsys.readouterr()


def test_a_stranger_that_lies_where_the_first_stage_lay_has_no_part(
    original: Path, stranger: Path, tmp_path: Path
) -> None:
    copy, aside = tmp_path / "copy", original.with_name("aside")
    shutil.copytree(original, copy)
    original.rename(aside)
    shutil.copytree(stranger, original)
    try:
        assert verify(copy).reproduces
        alone = tmp_path / "alone"
        shutil.copytree(copy / "2-finetune", alone)
        with pytest.raises(
            ConfigError, match=r"another\s+agent\s+than\s+the\s+one\s+that\s+was\s+started\s+from"
        ) as caught:
            verify(alone)
        assert caught.value.path == "agent.init_from.sha256"
    finally:
        shutil.rmtree(original)
        aside.rename(original)


def test_another_first_stage_is_refused_and_not_taken_for_a_run_that_does_not_reproduce(
    original: Path, stranger: Path, tmp_path: Path
) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(original, mixed)
    shutil.rmtree(mixed / "1-pretrain")
    shutil.copytree(stranger / "1-pretrain", mixed / "1-pretrain")
    with pytest.raises(ConfigError, match=r"1-pretrain/checkpoints/40\s+is\s+another\s+agent"):
        verify(mixed)
    shutil.rmtree(mixed / "1-pretrain")
    with pytest.raises(ConfigError, match=r"nothing\s+to\s+start\s+from"):
        verify(mixed)


def test_a_run_that_was_named_relative_to_a_folder_is_verified_from_another(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(config(data), run_dir="run", quiet=True)
    os.mkdir("elsewhere")
    monkeypatch.chdir("elsewhere")
    assert verify("../run").reproduces


def test_a_fork_of_a_stage_is_verified_from_beside_the_stage(original: Path, tmp_path: Path) -> None:
    copy = tmp_path / "before" / "run"
    shutil.copytree(original, copy)
    resume(copy, ["training.total_timesteps=80"], as_new=tmp_path / "before" / "fork", quiet=True)
    (tmp_path / "before").rename(tmp_path / "after")
    assert verify(tmp_path / "after" / "fork").reproduces
    (tmp_path / "after" / "run").rename(tmp_path / "gone")
    assert verify(tmp_path / "after" / "fork").reproduces, "the original is where it was"


@pytest.mark.parametrize("stages", [False, True], ids=["alone", "in stages"])
def test_data_that_was_moved_is_named_at_a_resume(stages: bool, data: Path, tmp_path: Path) -> None:
    file, run = Path(shutil.copy(data, tmp_path / "here.npz")), tmp_path / "run"
    settings, key, reference = config(file), "stages.pretrain.data.path", tmp_path / "reference"
    if stages:
        settings["stages"].pop()
    else:
        settings, key = {**settings, **settings.pop("stages")[0]}, "data.path"
        del settings["name"], settings["stages"]
    train(settings, run_dir=reference, quiet=True, callbacks=[Interrupts()])
    train(settings, run_dir=run, quiet=True, callbacks=[Interrupts("updates", 20)])
    file.rename(tmp_path / "there.npz")
    with pytest.raises(DataError, match=rf"no such file[^$]*uniarena resume {run} {key}=NEW"):
        resume(run, quiet=True)
    other = tmp_path / "other.npz"
    with np.load(data) as arrays:
        np.savez(other, **{**arrays, "reward": arrays["reward"] + 1})
    with pytest.raises(ConfigError, match=r"not\s+the\s+data\s+that\s+the\s+run\s+learned\s+from"):
        resume(run, [f"{key}={other}"], quiet=True, callbacks=[Interrupts()])
    result = resume(run, [f"{key}={tmp_path / 'there.npz'}"], quiet=True, callbacks=[Interrupts()])
    places = [folder / "1-pretrain" if stages else folder for folder in (reference, run)]
    assert result.updates == 40 and differences(*places) == []
    [change] = [json.loads(line) for line in (places[1] / "changes.jsonl").read_text().splitlines()]
    assert (change["key"], change["new"]) == ("data.path", str(tmp_path / "there.npz"))
