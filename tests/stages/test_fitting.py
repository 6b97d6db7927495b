"""Spaces and data of all stages are held against each other before the first begins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.stages.runs import config
from tests.stages.test_kills import Interrupts
from uniarena import assembly, cli, train
from uniarena.config import ConfigError, load
from uniarena.data import Episode, Recorder
from uniarena.run import fitting, resume


def online(*environments: dict[str, Any], shared: str = "Pendulum-v1") -> dict[str, Any]:
    """A stage of PPO for each section `environment`."""
    training = {"total_timesteps": 32, "n_eval_episodes": 1, "device": "cpu", "threads": 1}
    return {
        "environment": {"id": shared},
        "learner": {"type": "ppo", "n_steps": 16, "batch_size": 16},
        "training": training,
        "stages": [
            {"name": f"s{k}", **({"environment": each} if each else {})}
            for k, each in enumerate(environments)
        ],
    }


def test_another_environment_is_refused_where_it_is_written(tmp_path: Path, capsys: Any) -> None:
    file, run = tmp_path / "run.yaml", tmp_path / "run"
    file.write_text(
        "environment: {id: Pendulum-v1}\nlearner: {type: ppo}\ntraining: {total_timesteps: 32}\n"
        "stages:\n- name: one\n- name: two\n  environment:\n    id: CartPole-v1\n",
        encoding="utf-8",
    )
    assert cli.invoke(["train", str(file), "--run-dir", str(run), "--quiet", "--json"]) == 2
    told = " ".join(json.dumps(capsys.readouterr()).split())
    assert "run.yaml:8: stages.1.environment.id" in told and "agent.init_from" not in told
    assert "stage two starts as the agent of stage one" in told.replace("\\n", " ").replace("  ", " ")
    assert not run.exists()


WRONG: dict[str, Callable[[], dict[str, Any]]] = {
    "stages.1.environment.wrappers": lambda: online(
        {}, {"wrappers": [{"type": "frame_stack", "num_stack": 2}]}
    ),
    "environment.id": lambda: online({"id": "CartPole-v1"}, {}),
    "stages.2.environment.id": lambda: online({}, {"kwargs": {"g": 1.0}}, {"id": "MountainCarContinuous-v0"}),
    "stages.1.environment.kwargs.gg": lambda: online({}, {"kwargs": {"gg": 1.0}}),
}


@pytest.mark.parametrize("path", WRONG)
def test_the_path_is_that_of_what_differs(path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train(WRONG[path](), run_dir=tmp_path / "run", quiet=True)
    assert [fault.path for fault in caught.value.faults] == [path]
    assert not (tmp_path / "run").exists()


def test_environments_of_the_same_spaces_fit_and_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = assembly.build_env

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(real(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(assembly, "build_env", counted)
    fitting.check_fit(load([online({}, {}, {})]))
    assert made == [], "the same environment needs no look"
    fitting.check_fit(load([online({}, {"kwargs": {"g": 1.0}}, {}, {"num_envs": 2})]))
    assert len(made) == 2
    fitting.check_fit(load([online({}, {"max_episode_steps": 9}, shared="CartPole-v1")]))


def test_data_that_is_made_later_is_left_out(data: Path, tmp_path: Path) -> None:
    settings = config(data)
    made = {"path": str(tmp_path / "made.npz"), "made_from": {"recipe": "sac/pendulum"}}
    settings["stages"][0]["data"] = made
    fitting.check_fit(load([settings]))
    of_cartpole(tmp_path / "made.npz")
    with pytest.raises(ConfigError, match=r"the\s+environment has"):
        fitting.check_fit(load([settings]))
    del settings["environment"]
    (tmp_path / "made.npz").unlink()
    settings["stages"] = [settings["stages"][0], {**settings["stages"][0], "name": "on", "data": str(data)}]
    fitting.check_fit(load([settings]))


def of_cartpole(path: Path) -> Path:
    """An episode of CartPole-v1, as a file."""
    env = gym.make("CartPole-v1")
    recorder = Recorder(env.observation_space, env.action_space, {"id": "CartPole-v1"}, {"made_by": "a test"})
    obs = np.stack([env.observation_space.sample() for _ in range(9)]).clip(-1, 1)
    ends = np.zeros((2, 8), bool)
    ends[0, -1] = True
    recorder.add(Episode(obs, np.arange(8) % 2, np.ones(8), ends[0], ends[1], True))
    env.close()
    return recorder.save(path)


def broken(data: Path, tmp_path: Path) -> dict[str, Any]:
    """Data of stage 2 that is no data."""
    cut = tmp_path / "cut.npz"
    cut.write_bytes(data.read_bytes()[:500])
    return {"path": str(cut)}


DATA: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "missing": lambda data, tmp_path: {"path": str(tmp_path / "nowhere.npz")},
    "cut off": broken,
}


@pytest.mark.parametrize("how", DATA)
@pytest.mark.parametrize("where", ["data", "agent.buffer.demonstrations"])
def test_data_of_a_later_stage_is_read_before_the_first(
    how: str, where: str, data: Path, tmp_path: Path
) -> None:
    settings, section = config(data), DATA[how](data, tmp_path)
    if where == "data":
        settings["stages"][1] = {**settings["stages"][0], "name": "again", "data": section}
    else:
        settings["stages"][1]["agent"]["buffer"]["demonstrations"] |= section
    with pytest.raises(ConfigError) as caught:
        train(settings, run_dir=tmp_path / "run", quiet=True)
    assert [fault.path for fault in caught.value.faults] == [f"stages.1.{where}.path"]
    assert section["path"] in str(caught.value).replace("\n", "").replace(" ", "")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("named", [True, False])
def test_data_of_another_environment_is_refused_before_the_first(
    named: bool, data: Path, tmp_path: Path
) -> None:
    """With an environment the data is held against it; without one it is what the stage before is held against."""
    other = of_cartpole(tmp_path / "cartpole.npz")
    settings = config(data)
    settings["stages"][1] = {**settings["stages"][0], "name": "again", "data": str(other)}
    if not named:
        del settings["environment"]
    with pytest.raises(ConfigError) as caught:
        train(settings, run_dir=tmp_path / "run", quiet=True)
    assert [fault.path for fault in caught.value.faults] == ["stages.1.data.path"]
    assert ("the environment has" if named else "other spaces") in " ".join(str(caught.value).split())
    assert not (tmp_path / "run").exists()
    settings = config(data)
    settings["environment"] = {"id": "CartPole-v1"}
    with pytest.raises(ConfigError) as caught:
        train(settings, run_dir=tmp_path / "run", quiet=True)
    assert {fault.path for fault in caught.value.faults} == {
        "stages.0.data.path", "stages.1.agent.buffer.demonstrations.path"
    }  # fmt: skip


def test_changes_of_a_stage_to_come_are_held_against_the_others(data: Path, tmp_path: Path) -> None:
    train(config(data), run_dir=tmp_path / "run", quiet=True, callbacks=[Interrupts("updates", 20)])
    text = (tmp_path / "run" / "stages.yaml").read_text(encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        resume(tmp_path / "run", ["stages.finetune.environment.id=CartPole-v1"], quiet=True)
    assert "stages.1.environment.id" in {fault.path for fault in caught.value.faults}
    assert (tmp_path / "run" / "stages.yaml").read_text(encoding="utf-8") == text
