"""`uniarena diff`: configuration, code, versions, machine, changes; nothing that a run names is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cli.test_runs import weights
from uniarena import checkpoint

US = "tests.cli.users"


def git(*arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def test_runs_of_the_same_configuration_are_equal(ua) -> None:
    ua("train", "small.yaml", "--run-dir", "a")
    ua("train", "small.yaml", "learner.gamma=0.99", "--run-dir", "b")  # said, or left to the default
    told = ua("diff", "a", "b")
    assert told.code == 0 and told.out == "a and b are equal: configuration, code, versions, machine\n"
    answer = ua("diff", "a", "b", "--json").json
    assert answer["equal"] is True and answer["config"] == {} and answer["runs"] == ["a", "b"]


def test_configurations_differ_by_key_and_a_schedule_is_one_value(ua) -> None:
    ua("train", "small.yaml", "--run-dir", "a")
    ua(
        "train",
        "small.yaml",
        "learner.lr={type: linear, start: 1e-3}",
        "environment.wrappers=[normalize_reward]",
        "experiment.seed=1",
        "--run-dir",
        "b",
    )
    found = ua("diff", "a", "b/checkpoints/128", "--json").json["config"]
    assert found["learner.learning_rate"] == [3e-4, {"type": "linear", "start": 1e-3, "end": 0.0}]
    assert found["experiment.seed"] == [0, 1]
    none, (wrapper,) = found["environment.wrappers"]
    assert none == [] and wrapper["type"] == "normalize_reward"
    assert len(found) == 3
    lines = ua("diff", "a", "b").out.splitlines()
    at = lines.index("  experiment.seed")
    assert lines[at + 1 : at + 3] == ["    < 0", "    > 1"]


def test_another_learner_is_said_first_and_what_follows_from_it_in_few_lines(ua) -> None:
    ua("train", "small.yaml", "--run-dir", "a")
    Path("other.yaml").write_text(
        "environment: {id: CartPole-v1, num_envs: 2}\nlearner: {type: dqn, learning_starts: 10}\n"
        "training: {total_timesteps: 32, n_eval_episodes: 2}\n"
    )
    ua("train", "other.yaml", "--run-dir", "b")
    lines = ua("diff", "a", "b").out.splitlines()
    at = lines.index("config")
    assert lines[at + 1 : at + 4] == ["  learner.type", "    < ppo", "    > dqn"]
    assert lines.count("  learner.type") == 1
    at = lines.index("  agent.policy.hidden_sizes")  # both have it
    assert lines[at + 1 : at + 3] == ["    < [8]", "    > null"]
    at = lines.index("  keys that the other learner and its parts lack (--json has their values)")
    (ours,) = [line for line in lines[at:] if line.startswith("    < learner: ")]
    (theirs,) = [line for line in lines[at:] if line.startswith("    > learner: ")]
    assert "n_epochs" in ours and "clip_range" in ours and "learning_starts" not in ours
    assert "learning_starts" in theirs and "double" in theirs and "gamma" not in ours + theirs
    assert "  learner.clip_range" not in lines and len(lines) < 60
    found = ua("diff", "a", "b", "--json").json["config"]
    assert found["learner.n_epochs"] == [1, None] and found["learner.double"] == [None, False]


def test_code_and_versions_and_changes(ua, monkeypatch: pytest.MonkeyPatch) -> None:
    git("init", "-q")
    Path(".gitignore").write_text("[abc]/\n")
    Path("mine.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-qm", "first")
    ua("train", "small.yaml", "--run-dir", "a")
    Path("mine.py").write_text("x = 2\ny = 3\n")
    ua("train", "small.yaml", "--run-dir", "b")
    found = ua("diff", "a", "b", "--json").json
    (key,) = found["code"]
    assert key == "uncommitted changes.mine.py" and found["code"][key][0] is None
    assert found["code"][key][1].startswith("+2 -1 (")
    assert ua("diff", "b", "b/checkpoints/64", "--json").json["equal"]  # a checkpoint carries the diff too
    git("commit", "-qam", "second")
    ua("train", "small.yaml", "--run-dir", "c")
    assert set(ua("diff", "a", "c", "--json").json["code"]) == {"commit"}
    path = Path("c/provenance.json")
    record = json.loads(path.read_text())
    record["packages"]["numpy"], record["python"], record["hardware"]["cpu"] = "1.0", "3.99.0", "abacus"
    path.write_text(json.dumps(record))
    found = ua("diff", "a", "c", "--json").json
    assert set(found["versions"]) == {"numpy", "python"} and set(found["machine"]) == {"hardware.cpu"}
    ua("resume", "a", "training.total_timesteps=256")
    told = ua("diff", "a", "c")
    assert "changed when a was resumed\n  at 128 env steps: training.total_timesteps 128 → 256" in told.out


def test_a_checkpoint_alone_rebuilds_its_experiment(ua) -> None:
    """Commit, uncommitted changes, configuration, command: all in the manifest, without the run's folder."""
    git("init", "-q")
    Path(".gitignore").write_text("/[a-z]/\n")
    Path("mine.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-qm", "first")
    Path("mine.py").write_text("x = 2\n")
    Path("new.py").write_text("y = 3\n")
    ua("train", "small.yaml", "--run-dir", "a")
    Path("a/checkpoints/128").rename("b")
    meta = checkpoint.read_meta(Path("b"))
    record = meta["provenance"]
    assert record["command"] and record["packages"]["torch"] and record["seed"] == 0
    git("checkout", "-q", record["git"]["commit"], "--", ".")
    Path("new.py").unlink()
    Path("a.patch").write_text(record["git"]["patch"])
    git("apply", "a.patch")
    assert (Path("mine.py").read_text(), Path("new.py").read_text()) == ("x = 2\n", "y = 3\n")
    Path("again.yaml").write_text(meta["config"])
    ua("train", "again.yaml", "--run-dir", "c")
    ours, theirs = weights("c/checkpoints/128"), weights("b")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_nothing_named_is_imported_and_secrets_stay_out(ua) -> None:
    secret = "environment.kwargs.api_key=open sesame 123"
    ua("train", "small.yaml", f"environment.id={US}:Locked", secret, "--run-dir", "a")
    ua("train", "small.yaml", f"environment.id={US}:Walk", "--run-dir", "b")
    text = Path("b/config.yaml").read_text().replace(f"{US}:Walk", "not_there:Env")
    Path("b/config.yaml").write_text(text.replace("type: ppo", "type: not_there:Learner"))
    told = ua("diff", "a", "b")
    assert told.code == 0, told.err
    assert "open sesame" not in told.out and "not_there:Learner" in told.out
    assert "environment.kwargs" in told.out
    assert "not_there" not in sys.modules


def test_what_is_no_run_is_bad_input(ua) -> None:
    ua("train", "small.yaml", "--run-dir", "a")
    assert ua("diff", "a", "nowhere").code == 2
    assert ua("diff", "a").code == 2
