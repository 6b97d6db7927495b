"""`list` and `check-env`."""

from __future__ import annotations

from pathlib import Path

import pytest

import uniarena
from uniarena import registry

US = "tests.cli.users"


def test_every_kind_of_component_can_be_listed(ua) -> None:
    everything = ua("list", "--json").json
    assert set(everything) == {
        *(f"{kind}s" for kind in registry.KINDS if kind not in ("bonus", "memory")),
        *("bonuses", "memories", "recipes"),
    }
    for kind, names in everything.items():
        assert ua("list", kind, "--json").json == {kind: names}
        assert names, kind
    assert {"ppo", "a2c"} <= set(everything["learners"])
    assert {"CartPole-v1", "HalfCheetah-v5"} <= set(everything["envs"])
    assert "HalfCheetah-v4" not in everything["envs"]  # the newest of each
    assert "ppo/cartpole" in everything["recipes"]


def test_text_has_one_name_a_line_and_says_what_is_missing(ua, monkeypatch: pytest.MonkeyPatch) -> None:
    from uniarena.cli import listing

    overview = ua("list").out
    assert "learners: a2c" in overview and "envs: uniarena list envs" in overview
    assert ua("list", "wrappers").out.split() == registry.names("wrapper")
    assert (
        "ppo/cartpole " in ua("list", "recipes").out and "CartPole-v1 with PPO" in ua("list", "recipes").out
    )
    monkeypatch.setattr(listing, "find_spec", lambda name: None)
    envs = ua("list", "envs").out
    assert 'MuJoCo (pip install "uniarena[mujoco]"): ' in envs
    assert "package.module:Name" in envs


@pytest.mark.parametrize(
    ("word", "table"),
    [("learner", "learners"), ("bonus", "bonuses"), ("environments", "envs"), ("Recipes", "recipes")],
)
def test_kinds_are_found_by_what_people_call_them(ua, word: str, table: str) -> None:
    assert list(ua("list", word, "--json").json) == [table]


def test_an_unknown_kind_is_answered_with_the_nearest(ua) -> None:
    told = ua("list", "wrapers")
    assert told.code == 2 and "Did you mean wrappers?" in told.err


def test_names_of_the_users_own_are_listed(ua) -> None:
    uniarena.register("env", "walk_of_this_test", f"{US}:Walk")
    try:
        assert "walk_of_this_test" in ua("list", "envs", "--json").json["envs"]
        assert "registered: walk_of_this_test" in ua("list", "envs").out
    finally:
        registry._registered["env"].pop("walk_of_this_test")


def test_check_env_passes_a_good_environment(ua) -> None:
    told = ua("check-env", "CartPole-v1")
    assert (told.code, told.out) == (0, "CartPole-v1: no problems found.\n")
    assert ua("check-env", f"{US}:Walk", "--json").json == {"env": f"{US}:Walk", "problems": []}


@pytest.mark.parametrize("name", ["ChangesShape", "NaNReward", "FailsInStep", "FailsWhenMade", "NoReset"])
def test_check_env_fails_for_a_faulty_one(ua, name: str) -> None:
    told = ua("check-env", f"{US}:{name}", "--json")
    assert told.code == 1
    assert any(problem["level"] == "error" and problem["fix"] for problem in told.json["problems"])
    told = ua("check-env", f"{US}:{name}")
    assert told.code == 1 and "fix" in told.out and "Traceback" not in told.out + told.err


@pytest.mark.parametrize("name", ["CartPool-v1", "no_such_module:Env", f"{US}:Wak"])
def test_check_env_of_what_is_not_there_is_bad_input(ua, name: str) -> None:
    told = ua("check-env", name)
    assert told.code == 2 and told.out == ""
    assert not list(Path().glob("runs"))
