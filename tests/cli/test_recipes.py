"""Every recipe is a whole config that trains; its results are measured elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from uniarena import assembly
from uniarena.config import Experiment, dump, load, recipes

HIDDEN = "velocity-hidden-"
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
    squashed = "".join(letter for letter in str(exp.environment.id).lower() if letter.isalnum())
    assert all(word in squashed for word in task.split("-"))
    assembly.check(exp)
    assert load([_mapping(exp)], []) == exp
    first = recipes()[name].read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ") and first.endswith((".", ")."))  # what `uniarena list recipes` shows
    total = exp.training.total_timesteps
    for interval in (exp.training.eval_every_env_steps, exp.training.save_every_env_steps):
        assert interval is not None and interval <= total


def _mapping(exp: Experiment) -> dict:
    import yaml

    return yaml.safe_load(dump(exp))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains(ua, name: str) -> None:
    told = ua(
        "train",
        name,
        "training.total_timesteps=64",
        "training.n_eval_episodes=1",
        "environment.max_episode_steps=50",
        "--json",
    )
    assert told.code == 0, told.err
    assert told.json["env_steps"] >= 64
    assert Path(told.json["run"], "checkpoints", "best").is_dir()
