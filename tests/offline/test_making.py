"""Data that a run makes itself: a recipe is trained, its agents are recorded, and a card says how."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.offline.recorded import behaviour
from tests.offline.test_regime import recording
from uniarena import Agent, checkpoint, cli, make_env, train
from uniarena.batch import Batch
from uniarena.buffers.replay import ReplayBuffer
from uniarena.buffers.spec import BufferSpec
from uniarena.checkpoint import CheckpointError
from uniarena.config import ConfigError, load, parse
from uniarena.data import load as load_data
from uniarena.data.config import MadeFromConfig
from uniarena.run import making
from uniarena.run.making import Making, Trained, makings, pieces

SHORT = {
    "environment": {"id": "Pendulum-v1", "max_episode_steps": 20},
    "learner": {"type": "sac", "learning_starts": 150, "batch_size": 8},
    "agent": {"policy": {"hidden_sizes": [8]}},
    "training": {"total_timesteps": 200, "threads": 1},
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe that learns for a moment."""
    import yaml

    path = tmp_path_factory.mktemp("recipes") / "short.yaml"
    path.write_text(yaml.safe_dump(SHORT))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where sets of one recipe lie, and the one run that they are of."""
    return tmp_path_factory.mktemp("datasets")


def made(recipe: Path, folder: Path, kind: str, **more: Any) -> Path:
    how = parse(MadeFromConfig, {"recipe": str(recipe), "kind": kind, "episodes": 4, **more})
    return Making(folder / f"{kind}.npz", how).make(quiet=True)


@pytest.mark.parametrize("kind", ["random", "medium", "expert", "mixed"])
def test_sets_of_agents_say_what_they_are(kind: str, recipe: Path, folder: Path) -> None:
    data = load_data(made(recipe, folder, kind))
    assert (data.episodes, len(data)) == (4, 80) and data.truncated.sum() == 4
    origin = data.source.origin
    assert (origin["kind"], origin["recipe"], origin["trained_env_steps"]) == (kind, str(recipe), 200)
    assert len(origin["agents"]) == 10, "their mean returns"
    expected = {"mixed": [("random", 2), ("medium", 1), ("expert", 1)]}.get(kind, [(kind, 4)])
    assert [(part["part"], part["episodes"]) for part in origin["parts"]] == expected
    card = (folder / f"{kind}.md").read_text()
    assert '"recipe"' in card and "## How it was made" in card and "## Returns" in card
    assert len(list((folder / "runs").iterdir())) == 1, "all kinds are of the same run"
    assert not list(folder.glob(".making-*"))


def test_replay_is_what_the_learner_saw_step_by_step(recipe: Path, folder: Path) -> None:
    data = load_data(made(recipe, folder, "replay"))
    assert (data.episodes, len(data)) == (10, 200) and data.truncated.sum() == 10
    episode = data.episode(3)
    angle, speed = np.arctan2(episode.obs[:, 1], episode.obs[:, 0]), episode.obs[:, 2]
    torque = np.clip(episode.action[:, 0], -2, 2)  # Gymnasium's pendulum: g = 10, m = l = 1, dt = 0.05
    after = np.clip(speed[:-1] + (15 * np.sin(angle[:-1]) + 3 * torque) * 0.05, -8, 8)
    np.testing.assert_allclose(speed[1:], after, atol=1e-4)
    reward = -(angle[:-1] ** 2 + 0.1 * speed[:-1] ** 2 + 0.001 * torque**2)
    np.testing.assert_allclose(episode.reward, reward, atol=1e-4)


def test_the_same_section_makes_the_same_bytes(recipe: Path, folder: Path, tmp_path: Path) -> None:
    first, again = made(recipe, folder, "mixed"), made(recipe, tmp_path, "mixed")
    assert first.read_bytes() == again.read_bytes()
    assert first.with_suffix(".md").read_text() == again.with_suffix(".md").read_text()
    before = first.stat().st_mtime_ns
    assert made(recipe, folder, "mixed", seed=5) == first and first.stat().st_mtime_ns == before, (
        "it is there"
    )


def test_greedy_agents_are_recorded_as_they_are_with_a_little_chance(tmp_path: Path) -> None:
    """The exploration that a loaded agent begins with is that of a beginner."""
    greedy = tmp_path / "greedy.yaml"
    greedy.write_text(
        "environment: {id: CartPole-v1}\nlearner: {type: dqn}\nagent: {policy: {hidden_sizes: [8]}}\n"
        "training: {total_timesteps: 100, threads: 1}\n"
    )
    data = load_data(made(greedy, tmp_path, "expert", episodes=20))
    [part] = data.source.origin["parts"]
    name = part["who"].split(",")[0].removeprefix("checkpoint ")
    [run] = (tmp_path / "runs").iterdir()
    agent = Agent.load(run / "checkpoints" / name)
    everything = np.arange(len(data))
    agreed = (agent.act(data.obs(everything), deterministic=True) == data.action(everything)).mean()
    assert 0.9 < agreed < 1.0, "half of the random actions are the greedy ones"
    assert "with probability 0.1 any action" in part["who"]


class StopsAt:
    """Interrupts a run, as a signal would."""

    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        if trainer.counters.env_steps >= 100:
            trainer.request_stop("interrupted")


def test_a_making_that_was_interrupted_goes_on(
    recipe: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = making.train_one
    monkeypatch.setattr(making, "train_one", lambda *what, **how: whole(*what, **how, callbacks=[StopsAt()]))
    with pytest.raises(KeyboardInterrupt):
        made(recipe, tmp_path, "mixed")
    assert not (tmp_path / "mixed.npz").exists()
    monkeypatch.setattr(making, "train_one", whole)
    assert made(recipe, tmp_path, "mixed").read_bytes() == made(recipe, folder, "mixed").read_bytes()


def test_ctrl_c_says_that_the_same_command_goes_on(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = making.train_one
    monkeypatch.setattr(making, "train_one", lambda *what, **how: whole(*what, **how, callbacks=[StopsAt()]))
    file = tmp_path / "run.json"
    file.write_text(json.dumps(offline(recipe, tmp_path)))
    assert cli.invoke(["train", str(file), "--run-dir", str(tmp_path / "run"), "--quiet"]) == 130
    said = capsys.readouterr().err
    assert f"interrupted\n{tmp_path / 'mixed.npz'} is not made yet. Give the same command again" in said


def test_what_a_killed_making_left_goes_when_it_begins_again(recipe: Path, tmp_path: Path) -> None:
    wanted = Making(tmp_path / "random.npz", parse(MadeFromConfig, {"recipe": str(recipe), "episodes": 2}))
    name = wanted.run_folder.name
    mine, *others = (tmp_path / f".making-{run}-a1b2_c3d" for run in (name, f"{name}0", f"{name}-more"))
    for folder in (mine, *others):
        folder.mkdir()
        (folder / "random.npz").write_bytes(b"half")
    wanted.make(quiet=True)
    assert not mine.exists() and all(folder.exists() for folder in others), "those may be at work"


def test_one_process_makes_and_no_second(recipe: Path, tmp_path: Path) -> None:
    how = parse(MadeFromConfig, {"recipe": str(recipe), "kind": "random", "episodes": 2})
    wanted = Making(tmp_path / "random.npz", how)
    wanted.make(quiet=True).unlink()
    with checkpoint.locked(wanted.run_folder), pytest.raises(CheckpointError, match="is in use by"):
        wanted.make(quiet=True)


DIFFERENT = {
    "kind": ({"kind": "medium"}, "kind mixed, not medium"),
    "seed": ({"seed": 5}, "seed 0, not 5"),
    "episodes": ({"episodes": 7}, "episodes 4, not 7"),
    "env_steps": ({"env_steps": 300}, "env_steps 200, not 300"),
    "recipe": ({"recipe": "sac/pendulum", "env_steps": 200}, "not sac/pendulum"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_file_that_was_made_otherwise_is_told(
    name: str, recipe: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = made(recipe, folder, "mixed")
    change, said = DIFFERENT[name]
    caplog.clear()
    how = parse(MadeFromConfig, {"recipe": str(recipe), "kind": "mixed", "episodes": 4, **change})
    Making(path, how).make(quiet=True)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert said in caplog.text and "name another path, or delete the file" in caplog.text
    assert caplog.text.count(", not ") == 1


def test_a_file_that_was_made_like_that_or_does_not_say_is_taken_in_silence(
    recipe: Path, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = made(recipe, folder, "mixed")
    other = recording(tmp_path / "other.npz")
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"no archive")
    caplog.clear()
    for file, name in (
        (path, str(recipe)),
        (path, str(recipe.with_suffix(""))),
        (other, "x/y"),
        (broken, "x/y"),
    ):
        how = parse(MadeFromConfig, {"recipe": name, "episodes": 4, "env_steps": 200})
        Making(file, how).make(quiet=True)
    assert caplog.text == ""


UNFIT = {
    "spaces": (
        {"recipe": "sac/pendulum"},
        r"data\.made_from\.recipe[^$]*sac/pendulum plays Pendulum-v1[^$]*observations: expected",
    ),
    "replay": ({"recipe": "ppo/cartpole", "kind": "replay"}, r"data\.made_from\.kind[^$]*holds one rollout"),
}


@pytest.mark.parametrize("stages", [False, True], ids=["alone", "in stages"])
@pytest.mark.parametrize("name", UNFIT)
def test_what_would_not_fit_is_told_before_the_recipe_is_trained(
    name: str, stages: bool, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is to be trained")

    monkeypatch.setattr(making, "train_one", trained)
    change, said = UNFIT[name]
    config = offline(recipe, tmp_path)
    config |= {"environment": {"id": "CartPole-v1"}, "learner": {"type": "discrete_cql", "batch_size": 8}}
    config["data"]["made_from"] |= change
    if stages:
        config["stages"] = [{"name": "first", "data": config.pop("data"), "training": config.pop("training")}]
        said = said.replace(r"data\.", r"stages\.0\.data\.", 1)
    with pytest.raises(ConfigError, match=said):
        train(config, run_dir=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def offline(recipe: Path, folder: Path) -> dict[str, Any]:
    return {
        "environment": SHORT["environment"],
        "learner": {"type": "bc", "batch_size": 8},
        "agent": SHORT["agent"],
        "data": {"path": str(folder / "mixed.npz"), "made_from": {"recipe": str(recipe), "episodes": 4}},
        "training": {"total_updates": 20, "n_eval_episodes": 1, "threads": 1},
    }


def test_a_run_makes_its_data_and_says_where_it_came_from(
    recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = offline(recipe, tmp_path / "data")
    with caplog.at_level(logging.WARNING, "uniarena"):
        train(config, run_dir=tmp_path / "run", quiet=True)
    assert "is not there: it is made from the recipe" in caplog.text
    said = (tmp_path / "run" / "run.log").read_text()
    assert "data: 80 transitions in 4 episodes of" in said and "kind mixed, made_by uniarena" in said
    caplog.clear()
    train(config, run_dir=tmp_path / "other", quiet=True)
    assert "is not there" not in caplog.text


def test_medium_is_nearest_to_the_middle() -> None:
    found = Trained(Path("run"), 0)
    returns = {Path(str(k)): earned for k, earned in enumerate([-100.0, -45.0, 0.0, 20.0, 20.0])}
    vars(found).update(agents=list(returns), returns=returns)
    assert found.best == Path("3"), "of equal ones the first"
    assert found.medium(-120.0) == Path("1"), "-50 is the middle"


def test_pieces_end_where_nothing_is_known_of_what_followed() -> None:
    rows = Batch(
        (5, 1),
        obs=torch.arange(5.0).reshape(5, 1, 1),
        next_obs=torch.arange(1.0, 6.0).reshape(5, 1, 1),
        reward=torch.arange(5.0).reshape(5, 1),
        terminated=torch.tensor([0, 1, 0, 0, 0], dtype=torch.bool).reshape(5, 1),
        ended=torch.tensor([0, 1, 0, 0, 0], dtype=torch.bool).reshape(5, 1),
        valid=torch.tensor([1, 1, 1, 0, 1], dtype=torch.bool).reshape(5, 1),
    )
    found = list(pieces(rows, np.arange(5)))
    assert [episode.obs[:, 0].tolist() for episode in found] == [[0, 1, 2], [2, 3], [4, 5]]
    assert [episode.action.tolist() for episode in found] == [[0, 1], [2], [4]]
    assert [bool(episode.terminated[-1]) for episode in found] == [True, False, False]
    assert [bool(episode.truncated[-1]) for episode in found] == [False, True, True]


def test_pieces_of_several_columns_keep_their_steps_together() -> None:
    rollout = behaviour("CartPole-v1", 40, 3)
    env = make_env("CartPole-v1", 3)
    spec = BufferSpec(env.observation_space, env.action_space, gamma=0.9, batch_size=4, columns=3)
    env.close()
    buffer = ReplayBuffer(ReplayBuffer.Config(capacity=120), spec)
    buffer.add(rollout)
    rows = buffer.recent(1_000)
    found = list(pieces(rows, rows.action.reshape(-1).numpy()))
    assert sum(len(episode.reward) for episode in found) == 120
    obs = np.concatenate([episode.obs[:-1] for episode in found])
    np.testing.assert_array_equal(obs, rows.obs.transpose(0, 1).reshape(120, 4).numpy())
    assert any(episode.terminated[-1] for episode in found)


@pytest.mark.parametrize(
    ("change", "path", "says"),
    [
        ({"data": {"path": "some.hdf5"}}, "data.made_from", "NumPy archive"),
        ({"data": {"made_from": {"kind": "d4rl"}}}, "data.made_from.kind", "expected"),
        ({"data": {"made_from": {"recipe": "no/such"}}}, "no/such", "no file or recipe"),
        (
            {"data": {"made_from": {"recipe": "iql/pendulum-mixed"}}},
            "data.made_from.recipe",
            "learns from data itself",
        ),
        (
            {"data": {"made_from": {"recipe": "ppo/pendulum", "kind": "replay", "env_steps": 4096}}},
            "data.made_from.kind",
            "holds one rollout",
        ),
    ],
)
def test_what_cannot_be_made(
    change: dict[str, Any], path: str, says: str, recipe: Path, tmp_path: Path
) -> None:
    base = offline(recipe, tmp_path / "data")
    with pytest.raises(ConfigError, match=says) as caught:
        train([base, change], run_dir=tmp_path / "run", quiet=True)
    assert path in str(caught.value)
    assert not (tmp_path / "run").exists() and not (tmp_path / "data" / "mixed.npz").exists()


def test_data_without_a_recipe_is_not_made() -> None:
    plain = {"environment": {"id": "Pendulum-v1"}, "learner": {"type": "bc"}, "data": "some.npz"}
    assert makings(load(plain)) == []
    assert makings(load([plain, {"data": None, "learner": {"type": "sac"}}])) == []
