"""Hints before training: for settings that seldom go well, none for the samples, never an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT
from uniarena import cli
from uniarena.analysis.doctor.hints import hints
from uniarena.config import load, recipes, to_mapping

SAMPLES = ROOT / "tests" / "samples"


def topics(learner: dict[str, Any], cores: int = 4, **sections: Any) -> list[str]:
    config = {"environment": "CartPole-v1", "learner": {"type": "ppo", **learner}, **sections}
    return [hint.topic for hint in hints(to_mapping(load([config])), cores)]


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_there_is_none_for_the_samples(sample: Path, cores: int):
    assert hints(to_mapping(load([sample])), cores) == []


@pytest.mark.parametrize(
    ("learner", "found"),
    [
        ({}, []),
        ({"n_steps": 2048, "batch_size": 100}, ["rollouts"]),
        ({"n_steps": 128, "batch_size": 64}, ["rollouts"]),
        ({"n_steps": 2048, "batch_size": 16}, ["batches"]),
        ({"n_steps": 8192, "batch_size": 1024}, ["batches"]),
        ({"gae_lambda": 0.9}, ["traces"]),
        ({"gae_lambda": 1.0}, ["traces"]),
        ({"learning_rate": 1e-3}, ["learning rate"]),
        ({"learning_rate": 1e-3, "clip_range": 0.1}, []),
        ({"learning_rate": 0.1, "clip_range": 0.1}, ["learning rate"]),
        ({"learning_rate": 1e-7}, ["learning rate"]),
        ({"n_epochs": 50}, ["epochs"]),
        ({"n_epochs": 50, "target_kl": 0.02}, []),
        ({"ent_coef": 1.0}, ["exploration"]),
        ({"type": "a2c"}, []),
        ({"type": "dqn", "learning_starts": 900_000}, ["length"]),
    ],
)
def test_what_gets_a_hint(learner: dict[str, Any], found: list[str]):
    assert topics(learner) == found


def test_environments_and_epsilon_and_short_runs():
    many = {"environment": {"id": "CartPole-v1", "num_envs": 16, "vectorization": "async"}}
    few = {"environment": {"id": "CartPole-v1", "num_envs": 2, "vectorization": "async"}}
    assert topics({}, **many) == ["environments"] == topics({}, **few)
    assert topics({}, cores=16, **many) == []
    assert topics({"type": "dqn"}, agent={"explorer": {"type": "epsilon_greedy", "epsilon": 0.5}}) == [
        "exploration"
    ]
    assert topics({}, training={"total_timesteps": 4096}) == ["length"]
    endless = {"environment": "Pendulum-v1"}
    assert (
        topics({"gae_lambda": 0.99}, **endless) == ["traces"] and topics({"gae_lambda": 0.9}, **endless) == []
    )


def test_changes_can_be_pasted_and_then_the_hint_is_gone():
    config = {"environment": "CartPole-v1", "learner": {"type": "ppo", "n_steps": 1000, "gae_lambda": 0.8}}
    found = hints(to_mapping(load([config])), 4)
    assert [hint.topic for hint in found] == ["rollouts", "traces"]
    assert hints(to_mapping(load([config], [hint.change.override for hint in found])), 4) == []


def test_the_command_never_fails(capsys: pytest.CaptureFixture[str]):
    for name in recipes():
        assert cli.invoke(["check-config", name]) == 0
    capsys.readouterr()
    assert cli.invoke(["check-config", "ppo/cartpole", "learner.gae_lambda=0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {
        "topic": "traces",
        "text": "gae_lambda is 0.5; 0.95 to 0.99 suits episodes",
        "override": "learner.gae_lambda=0.95",
    } in told["hints"]
    assert cli.invoke(["check-config", str(SAMPLES / "robot_distributed.yaml")]) == 0
    assert capsys.readouterr().out == "no hints: nothing unusual\n"


def test_every_topic_is_explained():
    page = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8").lower()
    for topic in (
        "rollouts",
        "batches",
        "environments",
        "traces",
        "learning rate",
        "epochs",
        "exploration",
        "length",
    ):
        assert f"## {topic}" in page
