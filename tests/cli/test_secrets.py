"""Secrets in environment and configuration reach no file of a run and no message."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from uniarena import provenance

US = "tests.cli.users"
SECRET = "open sesame 123"
GIVEN = f"environment.kwargs.api_key={SECRET}"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_hidden", set())


def leaks(folder: str) -> list[Path]:
    return [f for f in Path(folder).rglob("*") if f.is_file() and SECRET.encode() in f.read_bytes()]


@pytest.mark.parametrize("vectorization", ["serial", "async"])
def test_an_environment_that_keeps_its_key_does_not_write_it_down(
    ua, monkeypatch: pytest.MonkeyPatch, vectorization: str
) -> None:
    arguments = ["small.yaml", f"environment.id={US}:KeepsKey", GIVEN]
    arguments += [f"environment.vectorization={vectorization}", f"callbacks=['{US}:CtrlC']"]
    monkeypatch.setattr(sys, "argv", ["uniarena", "train", *arguments])
    assert ua("train", *arguments, "--run-dir", "here").code == 130
    assert leaks("here") == []
    meta = json.loads(Path("here/checkpoints/64/manifest.json").read_text())["meta"]
    assert meta["exact"] is True  # the state is native all the same
    assert "api_key=<redacted>" in meta["provenance"]["command"]
    told = ua("resume", "here", GIVEN)
    assert told.code == 0, told.err  # it has its key again
    assert leaks("here") == [] and not Path("here/changes.jsonl").exists()
    assert ua("resume", "here", GIVEN, "training.total_timesteps=192", "--as", "there").code == 0
    assert leaks("there") == []


def test_a_network_that_needs_a_key_is_saved_without_it(ua) -> None:
    small = Path("small.yaml")
    small.write_text(small.read_text().replace("{hidden_sizes: [8]}", f"{{network: '{US}:KeyedNetwork'}}"))
    key = f"agent.policy.api_key={SECRET}"
    told = ua("train", "small.yaml", key, f"callbacks=['{US}:CtrlC']", "--run-dir", "here")
    assert told.code == 130, told.err
    assert leaks("here") == []
    assert ua("resume", "here", key).code == 0
    assert leaks("here") == []
    told = ua("eval", "here", "--trust")
    assert told.code == 2 and "without the secret agent.policy.api_key" in told.err


def test_an_error_that_says_the_key_is_told_without_it(ua) -> None:
    fails = (f"environment.id={US}:KeepsKey", "environment.kwargs.fails=true", GIVEN)
    told = ua("train", "small.yaml", *fails, "--run-dir", "here", "--json")
    assert told.code == 1 and "no login with <redacted>" in told.err
    assert SECRET not in told.err and SECRET not in told.out and leaks("here") == []
    told = ua("train", "small.yaml", *fails, "--seeds", "1", "--run-dir", "many", "--json")
    assert told.code == 1 and SECRET not in told.err + told.out and leaks("many") == []


def test_a_config_error_does_not_repeat_the_key(ua) -> None:
    told = ua("train", "small.yaml", f"learner.api_key={SECRET}", "--json")
    assert told.code == 2 and "learner.api_key" in told.err
    assert SECRET not in told.err and SECRET not in told.out
    told = ua(
        "train", "small.yaml", f"environment.id={US}:Locked", "environment.kwargs.api_key=wrong horse 9"
    )
    assert told.code == 2 and "wrong horse" not in told.err


def test_secrets_of_the_environment_variables_stay_out(ua, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    told = ua("train", "small.yaml", f"experiment.notes=logged in with {SECRET}", "--run-dir", "here")
    assert told.code == 0, told.err
    assert leaks("here") == [] and SECRET not in told.err + told.out
    assert ua("diff", "here", "here").code == 0


@pytest.mark.parametrize(
    "argument",
    [
        f"environment.kwargs.license_key={SECRET}",
        f"environment.kwargs.passphrase={SECRET}",
        f"environment.kwargs.api_key_v2={SECRET}",
        f"environment.kwargs={{secrets: '{SECRET}'}}",
        f"--auth-key={SECRET}",
    ],
)
def test_a_recorded_command_holds_no_secret(argument: str, tmp_path: Path) -> None:
    record = provenance.write_provenance(tmp_path, seed=0, command=["uniarena", "train", "a.yaml", argument])
    assert SECRET not in record["command"] and "sesame" not in record["command"]
    assert "a.yaml" in record["command"]


def test_only_keys_that_name_secrets_do() -> None:
    assert all(map(provenance.names_secret, ("a.b.api_key", "--token", "WANDB_API_KEY", "x.password")))
    assert not any(
        map(provenance.names_secret, ("learner.gamma", "agent.policy.eos_token", "a.keys", "--steps"))
    )
