"""What a stage takes over from the one before, and what every command makes of a run in stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stages.runs import config, rows_of, said, unlike
from tests.stages.test_kills import Interrupts
from uniarena import Agent, checkpoint, cli, train
from uniarena.config import ConfigError
from uniarena.run import diff, doctor, evaluate, resume, train_seeds, verify
from uniarena.run.resuming import NothingToDo


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    settings = config(data)
    settings["environment"]["wrappers"] = [{"type": "normalize_observation"}]
    train(settings, run_dir=folder, quiet=True)
    return folder


def test_the_agent_goes_on_where_the_learner_is_the_same(whole: Path) -> None:
    before = checkpoint.load(whole / "1-pretrain" / "checkpoints" / "40")[0]["agent"]["learner"]
    after = checkpoint.load(whole / "2-finetune" / "checkpoints" / "60")[0]["agent"]["learner"]
    counts = [state["_extra_state"]["optimizers"]["value_optimizer"]["torch"]["state"][0]["step"]
              for state in (before, after)]  # fmt: skip
    assert [int(count) for count in counts] == [40, 40 + 27]
    assert [int(state["turns._extra_state"]["updates"]) for state in (before, after)] == [40, 67]
    name = "model.policy.normalizer.moments.count"
    assert [int(state[name]) for state in (before, after)] == [240, 299], "the last came after an update"
    log = said(whole / "2-finetune")
    assert "stage 2 of 2: finetune" in log and "(iql, 40 updates): networks, targets, statistics" in log
    assert "50% to 25% of each batch are demonstrations: 240 transitions in 12 episodes" in log
    assert "learner.learning_starts=5: as many env steps are random actions" in log


PAIRS = {
    ("bc", "sac"): "model.policy is taken over; of model.policy.network",
    ("bc", "ppo"): "the rows of the means; model.value_net, model.policy.head.log_std begin anew",
    ("iql", "sac"): "model.policy, model.q, target are taken over",
    ("cql", "sac"): "model.policy, model.q, target, temperature are taken over",
    ("td3_bc", "td3"): "model.policy, model.q, policy_target, q_target are taken over",
}


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_another_learner_takes_over_what_fits(
    pair: tuple[str, str], data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(data, *pair)
    if pair == ("bc", "ppo"):
        settings["agent"]["policy"] |= {"distribution": "squashed_gaussian", "activation": "tanh"}
    train(settings, run_dir=tmp_path / "run", quiet=True)
    log = said(tmp_path / "run" / "2-finetune")
    assert (
        PAIRS[pair] in log and "the agent starts from" in log and "does not act as the earlier one" not in log
    ), log


def test_a_policy_that_is_read_otherwise_is_told(data: Path, tmp_path: Path) -> None:
    train(config(data, "bc", "ppo"), run_dir=tmp_path / "run", quiet=True)
    log = said(tmp_path / "run" / "2-finetune")
    assert "does not act as the earlier one" in log and "distribution" in log


@pytest.mark.parametrize("learner", ["awac", "td3_bc", "cql"])
def test_learners_from_data_go_on_online_and_are_the_same_when_interrupted(
    learner: str, data: Path, tmp_path: Path
) -> None:
    settings = config(data, learner)
    falls = {"type": "linear", "start": 1.0, "end": 0.1}
    terms = {"td3_bc": {"behaviour_weight": falls}, "cql": {"conservative": {"weight": falls, "samples": 2}}}
    settings["stages"][1]["learner"] |= terms.get(learner, {})
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(settings, run_dir=whole, quiet=True, callbacks=[Interrupts()])
    train(settings, run_dir=cut, quiet=True, callbacks=[Interrupts("env_steps", 20)])
    resume(cut, quiet=True, callbacks=[Interrupts()])
    assert unlike(whole, cut) == []
    if learner == "cql":
        weights = [row["conservative_weight"] for row in rows_of(whole / "2-finetune")]
        assert 1.0 > weights[0] > weights[1] > weights[2] > 0.1


def test_two_stages_online_with_environments_of_their_own(data: Path, tmp_path: Path) -> None:
    settings = config(data, "ppo", "ppo")
    _, hard = settings["stages"]
    settings["learner"] = {"type": "ppo", "n_steps": 16, "batch_size": 16}
    settings["stages"] = [
        {**hard, "name": "easy", "learner": {}, "environment": {"kwargs": {"g": 1.0}}},
        {**hard, "name": "hard", "learner": {"learning_rate": 1e-3}, "callbacks": [{"type": "checkpoint"}]},
    ]
    train(settings, run_dir=tmp_path / "run", quiet=True)
    assert "(ppo, 4 updates): networks" in said(tmp_path / "run" / "2-hard")
    assert rows_of(tmp_path / "run" / "2-hard")[0]["learning_rate"] == 1e-3
    texts = [(tmp_path / "run" / name / "config.yaml").read_text() for name in ("1-easy", "2-hard")]
    assert ["g: 1.0" in text for text in texts] == [True, False]


def test_commands_mean_the_last_stage(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last, first = whole / "2-finetune", whole / "1-pretrain"
    assert evaluate(whole, 2).returns == evaluate(last, 2).returns != evaluate(first, 2).returns
    assert Agent.load(whole).spec == Agent.load(last).spec
    assert doctor(whole)[1] == doctor(last)[1] and diff(whole, last).equal and not diff(whole, first).equal
    verdict = verify(whole)
    assert verdict.reproduces and verdict.run == last and verify(first).reproduces
    assert cli.invoke(["eval", str(whole), "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["eval"]["episodes"] == 1
    assert cli.invoke(["profile", str(whole), "--help"]) == 0
    forked = resume(whole, ["training.total_timesteps=80"], as_new=tmp_path / "fork", quiet=True)
    assert forked.env_steps == 80 and forked.stages == ()


def test_the_answer_of_train_has_a_part_for_each_stage(data: Path, tmp_path: Path, capsys: Any) -> None:
    file, run = tmp_path / "run.json", tmp_path / "run"
    file.write_text(json.dumps(config(data)), encoding="utf-8")
    assert cli.invoke(["train", str(file), "--run-dir", str(run), "--quiet", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["run"] == str(run) and told["env_steps"] == 60
    assert [stage["run"] for stage in told["stages"]] == [str(run / "1-pretrain"), str(run / "2-finetune")]
    assert told["stages"][0]["updates"] == 40 and told["eval"] == told["stages"][1]["eval"]
    assert cli.invoke(["train", str(run / "stages.yaml"), "--print-config", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert [stage["name"] for stage in tree["stages"]] == ["pretrain", "finetune"]
    assert tree["stages"][1]["agent"]["buffer"]["demonstrations"]["path"] == str(data)


def test_seeds_of_a_run_in_stages(data: Path, tmp_path: Path) -> None:
    settings = config(data)
    report = train_seeds(settings, seeds=2, run_dir=tmp_path / "all", quiet=True)
    assert sorted(report.results) == [3, 4] and report.failures == {}
    texts = [(tmp_path / "all" / f"seed-{k}" / "2-finetune" / "config.yaml").read_text() for k in (3, 4)]
    assert ["seed: 4" in text for text in texts] == [False, True]
    with pytest.raises(NothingToDo):
        train_seeds(settings, seeds=2, run_dir=tmp_path / "all", resume_if_exists=True, quiet=True)


def test_what_is_wrong_with_any_stage_is_told_before_the_first_begins(data: Path, tmp_path: Path) -> None:
    settings = config(data)
    settings["stages"][0]["learner"] = {"expectile": 2}
    settings["stages"][1]["learner"] = {"gamma": 7, "updates_per_env_step": -1}
    with pytest.raises(ConfigError) as caught:
        train(settings, run_dir=tmp_path / "run", quiet=True)
    paths = {
        f"stages.{path}"
        for path in ("0.learner.expectile", "1.learner.gamma", "1.learner.updates_per_env_step")
    }
    assert {fault.path for fault in caught.value.faults} == paths and not (tmp_path / "run").exists()


def test_all_that_fits_is_taken_without_stages_too(whole: Path, tmp_path: Path) -> None:
    start = whole / "2-finetune" / "checkpoints" / "60"
    settings = {
        "environment": {"id": "Pendulum-v1", "wrappers": [{"type": "normalize_observation"}]},
        "learner": {"type": "iql", "batch_size": 16},
        "agent": {"policy": {"hidden_sizes": [16]}, "init_from": {"path": str(start), "take": "all"}},
        "training": {"total_timesteps": 20, "n_eval_episodes": 1},
    }
    train(settings, run_dir=tmp_path / "run", quiet=True)
    assert "(iql, 27 updates): networks, targets" in said(tmp_path / "run")
    state = checkpoint.load(tmp_path / "run" / "checkpoints" / "20")[0]["agent"]["learner"]
    assert int(state["turns._extra_state"]["updates"]) == 67, "nothing was learned in twenty steps"
    assert all(isinstance(value, torch.Tensor) for name, value in state.items() if name.startswith("model."))
