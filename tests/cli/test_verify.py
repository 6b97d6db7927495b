"""`uniarena verify`: a run's first steps once more, compared figure by figure and tensor by tensor."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import uniarena
from tests.cli.users import CtrlC
from uniarena import checkpoint

US = "tests.cli.users"


@pytest.fixture
def run(ua):
    """A finished run in `here`."""
    assert ua("train", "small.yaml", "--run-dir", "here").code == 0
    return ua


def edit(step: int, **figures: Any) -> None:
    """Change what the run recorded at a step."""
    path = Path("here/metrics.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [{**row, **figures} if row["env_steps"] == step else row for row in found]
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))


def test_a_run_that_reproduces(run) -> None:
    before = {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file()}
    told = run("verify", "here", "--json")
    assert told.code == 0, told.err
    answer = told.json
    assert (answer["reproduces"], answer["env_steps"], answer["rows"]) == (True, 128, 4)
    assert answer["checkpoints"] == [64, 128] and answer["mismatch"] is None
    assert answer["versions"] == {} and answer["code"] == {} and answer["limit"] == ""
    assert {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file()} == before
    assert {path.name for path in Path.cwd().iterdir()} == {"small.yaml", "here"}
    told = run("verify", "here", "--steps", "40")
    assert told.code == 0 and "reproduces: 64 env steps, 2 rows of figures" in told.out


def test_the_clock_and_the_machine_are_not_compared(run) -> None:
    edit(64, fps=1.0, wall_s=1e6, **{"system/cpu_percent": 99.0})
    assert run("verify", "here").code == 0


def test_the_first_figure_that_differs_is_named_with_both_values(run) -> None:
    edit(96, entropy=0.5)
    edit(128, value_loss=7.0)
    told = run("verify", "here", "--json")
    assert told.code == 1
    found = told.json["mismatch"]
    assert (found["env_steps"], found["figure"], found["recorded"]) == (96, "entropy", 0.5)
    assert 0.6 < found["repeated"] < 0.7
    assert "does not reproduce: at 96 env steps entropy was 0.5 and is now 0.6" in run("verify", "here").out
    assert run("verify", "here", "--steps", "64").code == 0


def test_a_row_that_is_missing_is_a_difference(run) -> None:
    path = Path("here/metrics.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"env_steps": 64,' not in line))
    found = run("verify", "here", "--json").json["mismatch"]
    assert (found["env_steps"], found["recorded"], found["repeated"]) == (64, "not there", "there")


def test_a_tensor_that_differs_is_named(run) -> None:
    folder = Path("here/checkpoints/64")
    state, meta = checkpoint.load(folder)
    name = next(name for name, value in state["agent"]["learner"].items() if name.endswith("weight"))
    state["agent"]["learner"][name][0, 0] += 1.0
    checkpoint.save(folder, state, meta)
    told = run("verify", "here", "--json")
    assert told.code == 1
    found = told.json["mismatch"]
    assert (found["env_steps"], found["figure"]) == (64, f"agent.learner.{name}[0]")
    assert found["recorded"] == pytest.approx(found["repeated"] + 1.0)


def test_versions_and_code_that_differ_are_said(run) -> None:
    path = Path("here/provenance.json")
    record = json.loads(path.read_text())
    record["packages"]["torch"], record["git"]["commit"] = "1.0", "0" * 40
    path.write_text(json.dumps(record))
    told = run("verify", "here")
    assert told.code == 0
    assert "torch differs: 1.0 then" in told.out and f"commit differs: {'0' * 40} then" in told.out


def test_a_run_that_was_resumed_is_one_run(ua) -> None:
    uniarena.train("small.yaml", run_dir="here", quiet=True, callbacks=[CtrlC()])
    assert ua("verify", "here", "--steps", "1000").code == 0  # unfinished
    uniarena.resume("here", quiet=True, callbacks=[CtrlC()])
    told = ua("verify", "here", "--json")
    assert told.code == 0, told.out + told.err
    assert told.json["env_steps"] == 128


def test_a_run_with_changes_is_verified_up_to_the_first(run) -> None:
    run("resume", "here", "training.total_timesteps=256", "learner.gamma=0.5")
    run("resume", "here", "training.total_timesteps=320", "learner.gamma=0.9")
    told = run("verify", "here", "--json")
    assert told.code == 0, told.out + told.err
    assert told.json["env_steps"] == 128 and "was changed at 128 env steps" in told.json["limit"]


def test_a_run_that_was_resumed_inexactly_is_verified_up_to_there(ua) -> None:
    settings = ["environment.id=tests.resume.envs:OpaqueEnv", "training.save_every_env_steps=1000"]
    uniarena.train("small.yaml", settings, run_dir="here", quiet=True, callbacks=[CtrlC()])
    uniarena.resume("here", quiet=True, callbacks=[CtrlC()])
    told = ua("verify", "here", "--trust", "--json")
    assert told.code == 0, told.out + told.err
    assert told.json["env_steps"] == 64 and "not exact" in told.json["limit"]


def test_a_run_that_a_callback_ended_repeats_its_end(ua) -> None:
    ua("train", "small.yaml", "callbacks=[{type: early_stop, threshold: 1}]", "--run-dir", "here")
    told = ua("verify", "here", "--json")
    assert told.code == 0 and told.json["rows"] > 0, told.out + told.err


def test_nothing_is_imported_without_trust_and_nothing_compared_without_figures(ua) -> None:
    ua("train", "small.yaml", f"environment.id={US}:Walk", "--run-dir", "here")
    told = ua("verify", "here")
    assert told.code == 2 and "--trust" in told.err
    assert ua("verify", "here", "--trust").code == 0
    Path("here/metrics.jsonl").unlink()
    told = ua("verify", "here", "--trust")
    assert told.code == 2 and "holds no figures" in told.err
    assert ua("verify", "nowhere").code == 2
    shutil.rmtree("here")


def test_secrets_are_given_again(ua) -> None:
    secret = "environment.kwargs.api_key=open sesame 123"
    ua("train", "small.yaml", f"environment.id={US}:Locked", secret, "--run-dir", "here")
    assert ua("verify", "here", "--trust").code == 2
    assert ua("verify", "here", "--trust", secret).code == 0
    assert ua("verify", "here", "--trust", secret, "learner.gamma=0.5").code == 2


def test_off_policy_runs_are_verified_with_their_memory(ua) -> None:
    from tests.cli.test_changes import OFF_POLICY

    Path("td3.yaml").write_text(OFF_POLICY)
    ua("train", "td3.yaml", "--run-dir", "here")
    told = ua("verify", "here", "--json")
    assert told.code == 0 and told.json["checkpoints"] == [40, 60], told.out + told.err
