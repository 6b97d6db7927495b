"""Every recipe is a whole config that trains; its results are measured elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import datasets
from uniarena import assembly
from uniarena.checkpoint.find import meant
from uniarena.config import Experiment, dump, load, parse, recipes
from uniarena.data.config import MadeFromConfig
from uniarena.run.making import makings

HIDDEN, MIXED, ONLINE = "velocity-hidden-", "-mixed", "-offline-to-online"
NEEDS = {"lunarlander": "box2d", "bipedalwalker": "box2d", "halfcheetah": "mujoco", "minatar": "minatar"}
RECIPES = [
    pytest.param(
        name,
        marks=[pytest.mark.extra(extra) for word, extra in NEEDS.items() if word in name],
    )
    for name in recipes()
]


def test_there_are_recipes() -> None:
    assert {"ppo/cartpole", "a2c/cartpole", "ppo/pendulum"} <= set(recipes())


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_is_canonical_and_says_what_it_does(name: str) -> None:
    exp = load(name)
    algorithm, _, task = name.partition("/")
    assert exp.learner["type"] == algorithm
    assert exp.notices == ()  # nothing old, nothing left to a default that decides the run's length
    if task.startswith(HIDDEN):
        task = task.removeprefix(HIDDEN)
        assert "select_entries" in [wrapper["type"] for wrapper in exp.environment.wrappers]
    assert (exp.parts[0].data is not None) == task.endswith((MIXED, ONLINE))
    assert [part.data is not None for part in exp.parts[1:]] == [False] * task.endswith(ONLINE)
    squashed = "".join(letter for letter in str(exp.environment.id).lower() if letter.isalnum())
    assert all(word in squashed for word in task.removesuffix(MIXED).removesuffix(ONLINE).split("-"))
    assembly.check(exp)
    assert load([_mapping(exp)], []) == exp
    first = recipes()[name].read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ") and first.endswith((".", ")."))  # what `uniarena list recipes` shows
    for part in exp.parts:
        every = "{}_interval" if part.data is not None else "{}_every_env_steps"
        for what in ("eval", "save"):
            interval = getattr(part.training, every.format(what))
            assert interval is not None and interval <= part.total


@pytest.mark.parametrize("name", [name for name in recipes() if name.endswith((MIXED, ONLINE))])
def test_a_recipe_from_data_makes_what_benchmarks_make(name: str) -> None:
    """So that it does not matter which of the two is there first."""
    exp = load(name)
    (making,) = makings(exp.parts[0])
    for part in exp.parts:  # demonstrations are the data of before
        assert [(each.path, each.cfg) for each in makings(part)] == [(making.path, making.cfg)]
    task = name.partition("/")[2].removesuffix(MIXED).removesuffix(ONLINE)
    of, episodes = datasets.TASKS[task]
    assert making.path == datasets.FOLDER / task / "mixed.npz"
    assert making.cfg == parse(MadeFromConfig, {"recipe": of, "kind": "mixed", "episodes": episodes})
    assert load(of).environment.id == exp.environment.id


def _mapping(exp: Experiment) -> dict:
    import yaml

    return yaml.safe_load(dump(exp))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where recipes of one task share what the first of them makes."""
    return tmp_path_factory.mktemp("datasets")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains(ua, data: Path, name: str) -> None:
    length = ["training.total_timesteps=64"]
    if name.endswith((MIXED, ONLINE)):
        path = data / name.partition("/")[2] / "mixed.npz"
        length = [
            "training.total_updates=64",
            f"data.path={path}",
            "data.made_from.env_steps=200",
            "data.made_from.episodes=3",
        ]
    if name.endswith(ONLINE):
        length = [f"stages.offline.{change}" for change in length]
        length += ["stages.online.training.total_timesteps=64"]
    told = ua(
        "train",
        name,
        *length,
        "training.n_eval_episodes=1",
        "environment.max_episode_steps=50",
        "--json",
    )
    assert told.code == 0, told.err
    assert told.json["updates" if name.endswith(MIXED) else "env_steps"] >= 64
    assert (meant(told.json["run"]) / "checkpoints" / "best").is_dir()
