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
    assert [line.split()[0] for line in ua("list", "wrappers").out.splitlines()] == registry.names("wrapper")
    assert (
        "ppo/cartpole " in ua("list", "recipes").out and "CartPole-v1 with PPO" in ua("list", "recipes").out
    )
    monkeypatch.setattr(listing, "find_spec", lambda name: None)
    envs = ua("list", "envs").out
    assert 'MuJoCo (pip install "uniarena[mujoco]"): ' in envs
    assert "package.module:Name" in envs


def test_every_component_says_what_it_is(ua) -> None:
    from uniarena.cli.listing import SENTENCE, described

    for kind in registry.KINDS:
        for name in registry.BUILT_IN[kind]:
            said = described(kind, name)
            assert 5 < len(said) <= SENTENCE + 60 and "\n" not in said, (kind, name)
            assert said[-1] != ".", (kind, name)
    learners = ua("list", "learners").out
    assert (
        "\ntd3                   A deterministic policy, its critics, and targets of both, from" in learners
    )
    assert "Advantage actor-critic: one unclipped step on each short rollout (Mnih et al. 2016" in learners
    assert "A named learner" not in learners
    assert "Mnih et al. 2015" in ua("list", "networks").out  # no sentence ends at "al."


def test_a_component_that_does_not_import_says_so_in_its_line(ua) -> None:
    uniarena.register("explorer", "of_no_module", "no_such_module:Explorer")
    try:
        told = ua("list", "explorers")
        assert told.code == 0 and "no_such_module" in told.out and "epsilon_greedy" in told.out
    finally:
        registry._registered["explorer"].pop("of_no_module")


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
