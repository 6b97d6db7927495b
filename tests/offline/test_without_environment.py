"""Runs from data alone: no environment is named, none is made, and everything else works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.offline.test_regime import StopsAt, config, recording, rows_of
from tests.resume.runs import differ
from uniarena import Agent, checkpoint, train
from uniarena.cli import invoke
from uniarena.config import ConfigError, dump, load
from uniarena.run import diff, doctor, resume
from uniarena.sampling import on_data


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_data, "CLONING", 20)
    monkeypatch.setattr(on_data, "PART", 10)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording(tmp_path_factory.mktemp("data") / "random.npz")


def alone(name: str, data: Path, **training: Any) -> dict[str, Any]:
    """A config without an environment."""
    settings = config(name, "Pendulum-v1", **training)
    del settings["environment"]
    settings["callbacks"] = (
        [{"type": "evaluate_on_data", "updates": 10, "members": 2, "hidden_sizes": [8]}]
        if name != "bc"
        else []
    )
    return {**settings, "data": {"path": str(data)}}


def test_the_whole_way_without_an_environment(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    result = train(alone("iql", data), run_dir=run, quiet=True)
    assert result.eval is None and result.updates == 40 and result.data == str(data)
    assert any(f"--data {data}" in line for line in result.next_commands())
    figures = [row for row in rows_of(run) if "offline/fqe" in row]
    assert [row["updates"] for row in figures] == [20, 40]
    assert all(row["offline/fqe_low"] <= row["offline/fqe"] <= row["offline/fqe_high"] for row in figures)
    assert not any("eval/return_mean" in row for row in rows_of(run))
    assert (run / "checkpoints" / "best").is_dir() and doctor(run)[1] == 4
    agent = Agent.load(run)
    assert agent.act(np.zeros(3, np.float32)).shape == (1,)
    assert diff(run, run).equal
    capsys.readouterr()
    assert invoke(["eval", str(run)]) == 2
    assert "--env ID, or on data: uniarena eval RUN --data FILE" in " ".join(capsys.readouterr().err.split())
    assert invoke(["eval", str(run), "--env", "Pendulum-v1", "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["eval"]["episodes"] == 1
    assert invoke(["eval", str(run), "--env", "CartPole-v1", "--episodes", "1"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--env CartPole-v1 has observations Box(4) float32 and actions Discrete(2); the agent" in said
    assert "made for observations Box(3) float32 and actions Box(1) float32" in said
    assert invoke(["eval", str(run), "--env", "Pendulum-v1", "--method", "fqe"]) == 2
    assert "--method needs --data" in capsys.readouterr().err
    assert invoke(["data", "record", str(run), "--episodes", "1"]) == 2
    said = capsys.readouterr().err
    assert "its agent could be" in " ".join(said.split()) and "eval" not in said


def test_estimates_by_one_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(alone("awac", data, total_updates=20), run_dir=tmp_path / "run", quiet=True)
    capsys.readouterr()
    arguments = ["eval", str(tmp_path / "run"), "--data", str(data), "--method", "wis", "--stochastic"]
    assert invoke([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["on_data"]
    assert found["mode"] == "stochastic" and set(found["estimates"]) == {"wis"}
    assert found["data"]["episodes"] == 12 and len(found["estimates"]["wis"]["interval_95"]) == 2
    assert invoke(arguments) == 0
    assert "behaviour: " in capsys.readouterr().out
    assert invoke([*arguments, "--video"]) == 2 and invoke(["eval", str(tmp_path), "--method", "dr"]) == 2


@pytest.mark.parametrize("name", ["iql", "bc", "decision_transformer"])
def test_resumed_is_the_same_run(name: str, data: Path, tmp_path: Path) -> None:
    settings, whole, cut = alone(name, data), tmp_path / "whole", tmp_path / "cut"
    if name == "decision_transformer":
        settings["callbacks"] = []
    train(settings, run_dir=whole, quiet=True)
    train(settings, run_dir=cut, quiet=True, callbacks=[StopsAt(20)])
    resume(cut, quiet=True)
    states = [checkpoint.load(folder / "checkpoints" / "40")[0] for folder in (whole, cut)]
    assert [line for line in differ(*states, "state") if "seconds" not in line] == []
    kept = [{k: v for k, v in row.items() if k.startswith("offline/")} for row in rows_of(whole)]
    assert kept == [{k: v for k, v in row.items() if k.startswith("offline/")} for row in rows_of(cut)]
    assert (whole / "checkpoints" / "best").is_dir() is (name != "decision_transformer")


def test_the_best_cloned_policy_foretells_best(data: Path, tmp_path: Path) -> None:
    train(alone("bc", data), run_dir=tmp_path / "run", quiet=True)
    losses = {row["updates"]: row["validation_loss"] for row in rows_of(tmp_path / "run")}
    meta = checkpoint.read_meta(tmp_path / "run" / "checkpoints" / "best")
    assert meta["counters"]["updates"] == min(losses, key=losses.__getitem__)


def test_spaces_are_concluded_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "plain.npz"
    ends = np.arange(60) % 20 == 19
    np.savez(path, observations=rng.normal(size=(60, 2)), actions=rng.integers(0, 3, 60), rewards=np.ones(60),
             terminals=ends)  # fmt: skip
    train(alone("bc", path, total_updates=10), run_dir=tmp_path / "run", quiet=True)
    assert "concluded from its values: observation Box(2), action Discrete(3)" in caplog.text.replace(
        " float32", ""
    )
    assert Agent.load(tmp_path / "run").act(np.zeros(2, np.float32)) in range(3)


def test_a_recipe_loses_its_environment(data: Path) -> None:
    exp = load([config("bc", "Pendulum-v1"), {"data": None}, {"data": str(data)}], ["environment=null"])
    assert exp.environment.id is None
    again = load([{**json.loads(json.dumps(_plain(dump(exp))))}])
    assert again.environment.id is None


def _plain(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)


def test_without_data_an_environment_is_needed() -> None:
    with pytest.raises(ConfigError, match="no environment is named"):
        load([{"learner": {"type": "ppo"}}])


@pytest.mark.parametrize("callback", ["evaluate", "video"])
def test_what_plays_is_refused(callback: str, data: Path, tmp_path: Path) -> None:
    settings = {**alone("bc", data), "callbacks": [{"type": callback}]}
    with pytest.raises(ConfigError, match="this run has no environment"):
        train(settings, run_dir=tmp_path / "run", quiet=True)


def test_data_without_a_file_says_nothing_of_spaces(tmp_path: Path) -> None:
    settings = config("bc", "Pendulum-v1")
    del settings["environment"]
    with pytest.raises(ConfigError, match="no environment is named, and this data has no file"):
        train(settings, run_dir=tmp_path / "run", quiet=True)


def test_observations_are_normalised_without_an_environment(data: Path, tmp_path: Path) -> None:
    settings = {**alone("bc", data, total_updates=10), "environment": {"wrappers": ["normalize_observation"]}}
    train(settings, run_dir=tmp_path / "run", quiet=True)
    agent = Agent.load(tmp_path / "run")
    assert agent.normalizer is not None and int(agent.normalizer.moments.count) == 240


def test_it_is_evaluated_on_data_beside_an_environment_too(data: Path, tmp_path: Path) -> None:
    settings = {**alone("iql", data, total_updates=20), "environment": {"id": "Pendulum-v1"}}
    train(settings, run_dir=tmp_path / "run", quiet=True)
    last = rows_of(tmp_path / "run")[-1]
    assert "offline/fqe" in last and "eval/return_mean" in last
    with pytest.raises(ConfigError, match="for runs from data"):
        train({**settings, "data": None, "learner": {"type": "sac"}, "training": {"total_timesteps": 10}},
              run_dir=tmp_path / "other", quiet=True)  # fmt: skip


@pytest.fixture
def nameless(tmp_path: Path) -> Path:
    """A file that says nothing of bounds."""
    draw, count = np.random.default_rng(0), 200
    path = tmp_path / "nameless.npz"
    np.savez(
        path,
        observations=draw.normal(size=(count, 3)).astype(np.float32),
        actions=draw.uniform(-2, 2, (count, 1)).astype(np.float32),
        rewards=np.ones(count, np.float32),
        terminals=np.arange(count) % 50 == 49,
        timeouts=np.zeros(count, bool),
    )
    return path


@pytest.mark.parametrize("name", ["iql", "awac"])
def test_nothing_warms_up_where_nothing_acts(name: str, nameless: Path, tmp_path: Path) -> None:
    result = train(alone(name, nameless), run_dir=tmp_path / "run", quiet=True)  # unbounded actions
    assert result.updates == 40
    assert Agent.load(tmp_path / "run").explorer.warmup == 0


@pytest.mark.parametrize("name", ["td3_bc", "cql"])
def test_bounds_of_actions_can_be_said(name: str, nameless: Path, tmp_path: Path) -> None:
    settings = alone(name, nameless)
    with pytest.raises(ConfigError, match=r"data\.action_bounds: \[low, high\]"):
        train(settings, run_dir=tmp_path / "without", quiet=True)
    settings["data"]["action_bounds"] = [-2, 2]
    train(settings, run_dir=tmp_path / "run", quiet=True)
    space = Agent.load(tmp_path / "run").action_map.env_space
    assert (space.low.tolist(), space.high.tolist()) == ([-2.0], [2.0])


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ([1, 1], "expected .low, high., got .1"),
        ([-1, float("inf")], "expected .low, high."),
        ([-1], "action_bounds"),
    ],
)
def test_bounds_that_are_none_are_refused(
    bounds: list[float], said: str, nameless: Path, tmp_path: Path
) -> None:
    settings = alone("td3_bc", nameless)
    settings["data"]["action_bounds"] = bounds
    with pytest.raises(ConfigError, match=said):
        train(settings, run_dir=tmp_path / "run", quiet=True)


def test_bounds_that_are_known_are_not_said_again(data: Path, tmp_path: Path) -> None:
    settings = alone("td3_bc", data)
    settings["data"]["action_bounds"] = [-1, 1]
    with pytest.raises(
        Exception, match=r"action_bounds=\[-1.0, 1.0\] is given, and actions are known to be Box"
    ):
        train(settings, run_dir=tmp_path / "run", quiet=True)
