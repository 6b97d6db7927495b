"""`resume RUN --as NEW` starts another run from one, which stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.cli.test_runs import checkpoints, rows, weights
from uniarena import checkpoint
from uniarena.run import folder as folders

US = "tests.cli.users"


def content(run: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(run).rglob("*") if path.is_file()}


def test_a_fork_is_a_run_of_its_own_and_the_source_stays(ua) -> None:
    ua("train", "small.yaml", f"callbacks=['{US}:CtrlC']", "--run-dir", "a b/here")
    before = content("a b/here")
    told = ua("resume", "a b/here", "--as", "there", "--json")
    assert told.code == 0 and told.json["run"] == "there", told.err
    assert content("a b/here") == before
    ua("train", "small.yaml", "--run-dir", "straight")
    ours, theirs = weights("there/checkpoints/128"), weights("straight/checkpoints/128")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [row["env_steps"] for row in rows("there")] == [32, 64, 96, 128]
    record = json.loads(Path("there/provenance.json").read_text())
    assert (record["run"], record["resumed"], record["env_steps"]) == ("there", [], 64)
    parent = record["parent"]
    first = json.loads(Path("a b/here/provenance.json").read_text())
    assert (parent["run"], parent["path"], parent["started"]) == ("here", "../a b/here", first["started"])
    meta = checkpoint.read_meta(Path("there/checkpoints/128"))
    assert meta["provenance"]["parent"] == parent  # also where the checkpoint travels alone
    assert ua("resume", "a b/here").code == 0 and ua("resume", "there").code == 3


def test_files_are_linked_or_copied_and_removing_one_run_leaves_the_other(
    ua, monkeypatch: pytest.MonkeyPatch
) -> None:
    ua("train", "small.yaml", "--run-dir", "here")
    name = "checkpoints/128/agent.safetensors"
    assert ua("resume", "here", "training.total_timesteps=160", "--as", "linked").code == 0
    assert Path("linked", name).samefile(Path("here", name))

    def no_links(source: str, target: str) -> None:
        raise OSError("another disk")

    monkeypatch.setattr(folders.os, "link", no_links)
    assert ua("resume", "here", "training.total_timesteps=160", "--as", "copied").code == 0
    assert not Path("copied", name).samefile(Path("here", name))
    assert Path("copied", name).read_bytes() == Path("here", name).read_bytes()


def test_a_fork_starts_from_a_checkpoint_with_the_configuration_of_then(ua) -> None:
    ua("train", "small.yaml", "--run-dir", "here")
    ua("resume", "here", "training.total_timesteps=256", "learner.gamma=0.9")
    told = ua("resume", "here/checkpoints/64", "--as", "early")
    assert told.code == 0 and rows("early")[-1]["env_steps"] == 128, told.err
    assert not Path("early/changes.jsonl").exists()
    told = ua("resume", "here/checkpoints/192", "--as", "late", "learner.gamma=0.8")
    assert told.code == 0, told.err
    kept = [json.loads(line) for line in Path("late/changes.jsonl").read_text().splitlines()]
    assert [(c["env_steps"], c["key"], c["new"]) for c in kept] == [
        (128, "learner.gamma", 0.9),
        (128, "training.total_timesteps", 256),
        (192, "learner.gamma", 0.8),
    ]


def test_a_fork_from_the_best_checkpoint_is_named_by_its_steps(ua) -> None:
    ua("train", "small.yaml", "--run-dir", "here")
    steps = checkpoint.read_meta(Path("here/checkpoints/best"))["counters"]["env_steps"]
    told = ua("resume", "here/checkpoints/best", "training.total_timesteps=256", "--as", "there")
    assert told.code == 0, told.err
    assert str(steps) in checkpoints("there")


@pytest.mark.parametrize("arguments", [["learner.type=a2c"], ["learner.gama=1"]])
def test_what_cannot_be_forked_leaves_nothing_behind(ua, arguments: list[str]) -> None:
    ua("train", "small.yaml", "--run-dir", "here")
    assert ua("resume", "here", *arguments, "training.total_timesteps=256", "--as", "there").code == 2
    assert {path.name for path in Path.cwd().iterdir()} == {"small.yaml", "here"}


def test_a_fork_needs_a_free_folder_and_something_to_do(ua) -> None:
    ua("train", "small.yaml", "--run-dir", "here")
    assert ua("resume", "here", "--as", "there").code == 3
    assert not Path("there").exists()
    Path("taken").mkdir()
    Path("taken/notes.txt").write_text("mine")
    told = ua("resume", "here", "training.total_timesteps=256", "--as", "taken")
    assert told.code == 2 and "taken is not empty" in told.err
    assert ua("resume", "here/checkpoints/64", "--as", "taken").code == 2
    Path("alone").mkdir()
    Path("here/checkpoints/64").rename("alone/64")
    told = ua("resume", "alone/64", "--as", "there")
    assert told.code == 2 and "is one checkpoint" in told.err  # without its run


def test_a_fork_that_fails_before_it_begins_is_taken_away(ua, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cli import users

    small = Path("small.yaml")
    small.write_text(small.read_text().replace("{hidden_sizes: [8]}", f"{{network: '{US}:Network'}}"))
    assert ua("train", "small.yaml", "--run-dir", "here").code == 0
    monkeypatch.setattr(users.Network.__init__, "__defaults__", (9,))
    assert ua("resume", "here", "training.total_timesteps=256", "--as", "there").code == 2
    assert not Path("there").exists()
