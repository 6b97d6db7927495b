"""Whole runs with regularisers: from one line of a config, killed and resumed, and what they are good for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
import yaml

import uniarena
from tests.regularizers.demos import Lock, record, secret
from tests.regularizers.test_terms import BOX, DISCRETE
from tests.resume.runs import KILLED, differences, resume, train
from uniarena import Agent, ConfigError, assembly
from uniarena.config import as_mapping, component, config, dump, load
from uniarena.config.assembly import regularizers
from uniarena.learners.regularizers.base import Regularizer, Weight, digest
from uniarena.run.compare import filled
from uniarena.run.making import makings


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("demos")
    return {env: record(gym.make(env), folder / f"{env}.npz") for env in (DISCRETE, BOX)}


def tree(kind: str, env: str, terms: Any, total: int = 160, **more: Any) -> dict[str, Any]:
    on_policy = kind in ("ppo", "a2c", "trpo")
    fields = {"n_steps": 16, "batch_size": 16} if on_policy else {"learning_starts": 40, "batch_size": 8}
    return {
        "experiment": {"seed": 3, "loggers": [{"type": "jsonl"}]},
        "environment": {"id": env, "num_envs": 2, "max_episode_steps": 20},
        "learner": {"type": kind, **fields, "regularizers": terms},
        "agent": {"policy": {"hidden_sizes": [8]}},
        "training": {
            "total_timesteps": total,
            "save_every_env_steps": 32,
            "n_eval_episodes": 1,
            "threads": 1,
        },
        **more,
    }


def one(data: Any, weight: Any = 0.5, **more: Any) -> dict[str, Any]:
    return {"type": "behavior_cloning", "data": data, "weight": weight, **more}


def last_row(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return found


# -- one line --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["ppo", "a2c", "trpo", "sac", "td3", "dqn", "iql", "awac", "tqc", "rainbow"])
def test_every_learner_takes_it_by_one_line(kind: str, demos: dict[str, str], tmp_path: Path) -> None:
    env = DISCRETE if kind in ("ppo", "dqn", "rainbow") else BOX
    line = f"{{type: behavior_cloning, data: {{path: '{demos[env]}'}}, weight: 0.1}}"
    exp = tree(kind, env, [yaml.safe_load(line)], 80)
    uniarena.train(exp, run_dir=tmp_path / "run", quiet=True)
    row = last_row(tmp_path / "run")
    assert row["regularizer/behavior_cloning_weight"] == 0.1
    assert row["regularizer/behavior_cloning_loss"] > 0.0


@pytest.mark.parametrize("kind", ["bc", "iql", "td3_bc"])
def test_runs_from_data_take_it_too(kind: str, demos: dict[str, str], tmp_path: Path) -> None:
    exp = tree(
        kind, BOX, [one(demos[BOX])], data=demos[BOX], training={"total_updates": 10, "n_eval_episodes": 1}
    )
    exp["learner"].pop("learning_starts")
    uniarena.train(exp, run_dir=tmp_path / "run", quiet=True)
    assert last_row(tmp_path / "run")["regularizer/behavior_cloning_loss"] > 0.0


# -- resumed ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "sampling"),
    [
        ("ppo", "pipelined"),
        *[
            pytest.param(*given, marks=pytest.mark.slow)
            for given in (("ppo", "local"), ("td3", "local"), ("dqn", "pipelined"), ("trpo", "local"))
        ],
    ],
)
def test_a_killed_run_goes_on_bit_for_bit(
    kind: str, sampling: str, demos: dict[str, str], tmp_path: Path
) -> None:
    env, folder = BOX if kind == "td3" else DISCRETE, tmp_path / "teacher"
    terms = [one(demos[env], {"type": "linear", "start": 1.0, "end": 0.1}, batch_size=7)]
    if kind == "ppo":
        made = uniarena.make_env(env, 1)
        Agent.assemble(made, "ppo", {"hidden_sizes": [8]}, seed=1).save(folder)
        made.close()
        terms.append({"type": "policy_constraint", "to": str(folder), "weight": 0.2})
    given = tree(kind, env, terms, 128, sampling=sampling)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train(given, whole) == 0
    assert train(given, cut, f"KILL@{30 if kind in ('td3', 'dqn') else 3}") == KILLED
    assert resume(cut) == 0
    assert differences(whole, cut) == []


def test_other_data_and_another_teacher_are_told_at_a_resume(demos: dict[str, str], tmp_path: Path) -> None:
    data, teacher = tmp_path / "demos.npz", tmp_path / "teacher"
    data.write_bytes(Path(demos[DISCRETE]).read_bytes())
    env = uniarena.make_env(DISCRETE, 1)
    try:
        Agent.assemble(env, "ppo", seed=1).save(teacher)
        terms = [one({"path": str(data)}), {"type": "policy_constraint", "to": str(teacher), "weight": 1}]
        state = Agent.assemble(env, {"type": "ppo", "regularizers": terms}).state_dict()
        Agent.assemble(env, {"type": "ppo", "regularizers": terms}).load_state_dict(state)
        record(gym.make(DISCRETE), data, episodes=2)
        with pytest.raises(ConfigError, match=r"not\s+the\s+data\s+that\s+the\s+run\s+learned") as caught:
            Agent.assemble(env, {"type": "ppo", "regularizers": terms}).load_state_dict(state)
        assert caught.value.path == "learner.regularizers.0.data"
        Agent.assemble(env, "ppo", seed=2).save(teacher)
        with pytest.raises(ConfigError, match=r"is not the\s+one") as caught:
            Agent.assemble(env, {"type": "ppo", "regularizers": terms[1:]}).load_state_dict(state)
        assert caught.value.path == "learner.regularizers.0.to"
    finally:
        env.close()


def test_fingerprints_are_of_names_shapes_and_bits() -> None:
    tensors = {"count": torch.tensor(2.0), "weight": torch.ones(2, 2), "on": torch.tensor(True)}
    assert digest(tensors) == digest(dict(reversed(tensors.items())))
    others = [{"weight": torch.ones(4)}, {"count": torch.tensor(3.0)}, {"count": torch.tensor(2.0).double()}]
    assert len({digest(tensors | other) for other in others} | {digest(tensors)}) == 4


def test_a_term_may_come_and_its_weight_change_at_a_resume(demos: dict[str, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    uniarena.train(tree("ppo", DISCRETE, [], 64), run_dir=run, quiet=True)
    line = (
        f"learner.regularizers=[{{type: behavior_cloning, data: {{path: {demos[DISCRETE]}}}, weight: 0.5}}]"
    )
    longer = tmp_path / "longer"
    uniarena.resume(run, [line, "training.total_timesteps=128"], as_new=longer, quiet=True)
    assert last_row(longer)["regularizer/behavior_cloning_weight"] == 0.5
    last = tmp_path / "last"
    changed = ["learner.regularizers.0.weight=0.25", "training.total_timesteps=192"]
    uniarena.resume(longer, changed, as_new=last, quiet=True)
    assert last_row(last)["regularizer/behavior_cloning_weight"] == 0.25
    for given, key, said in (
        ("learner.regularizers=[]", "learner.regularizers", "none may go"),
        (
            "learner.regularizers.0.data=other.npz",
            "learner.regularizers.0.data.path",
            "train a new run: uniarena train",
        ),
        (
            f"learner.regularizers=[{{type: policy_constraint, to: {run}, weight: 1}}, {line[22:-1]}]",
            "learner.regularizers",
            "learner.regularizers.0.type differs",
        ),
    ):
        with pytest.raises(ConfigError) as refused:
            uniarena.resume(
                longer, [given, "training.total_timesteps=192"], as_new=tmp_path / "no", quiet=True
            )
        assert refused.value.path == key and said in " ".join(str(refused.value).split())


# -- the config ------------------------------------------------------------------------------------------------
def test_other_spellings_overrides_and_the_written_config(demos: dict[str, str]) -> None:
    exp = load(
        [
            {
                "environment": {"id": DISCRETE},
                "learner": {"type": "ppo", "regularisers": {"type": "BC", "demos": "d.npz", "coef": 1}},
            }
        ],
        ["learner.regularizers.0.weight=0.25"],
    )
    (section,) = regularizers(exp)
    assert section == {"type": "behavior_cloning", "data": {"path": "d.npz"}, "weight": 0.25}
    cfg = component("regularizer", section, "learner.regularizers.0")[1]
    assert (cfg.data.path, cfg.weight, cfg.batch_size) == ("d.npz", 0.25, 128)
    again = load([yaml.safe_load(dump(exp))], [])
    assert regularizers(again) == [section]
    whole = filled(exp)["learner"]["regularizers"][0]
    assert (
        whole["batch_size"] == 128
        and whole["data"]["format"] == "auto"
        and whole["type"] == "behavior_cloning"
    )
    assert filled(load([{"environment": DISCRETE, "learner": "ppo"}], []))["learner"]["regularizers"] == []


@pytest.mark.parametrize(
    ("section", "path", "said"),
    [
        (
            {"type": "behavior_clonin", "data": "x", "weight": 1},
            "learner.regularizers.0.type",
            "behavior_clonin",
        ),
        ({"type": "behavior_cloning", "data": "x"}, "learner.regularizers.0.weight", "required"),
        ({"type": "behavior_cloning", "weight": 1}, "learner.regularizers.0.data", "required"),
        (one("x", -1.0), "learner.regularizers.0.weight", r"at\s+least 0"),
        (one("x", {"type": "lineare", "start": 1}), "learner.regularizers.0.weight.type", "lineare"),
        (
            one({"path": "x", "boundary": "fixed_length"}),
            "learner.regularizers.0.data.episode_length",
            "needs",
        ),
        ({"data": "x", "weight": 1}, "learner.regularizers.0", "type"),
    ],
)
def test_faults_are_told_before_anything_is_built(section: dict[str, Any], path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        assembly.check(
            load(
                [{"environment": {"id": DISCRETE}, "learner": {"type": "ppo", "regularizers": [section]}}], []
            )
        )
    assert caught.value.path == path


def test_data_that_is_not_there_is_made(tmp_path: Path) -> None:
    recipe = tmp_path / "short.yaml"
    recipe.write_text(yaml.safe_dump(tree("sac", BOX, [], 100)))
    how = {"recipe": str(recipe), "kind": "random", "episodes": 3}
    data = {"path": str(tmp_path / "made.npz"), "made_from": how}
    exp = load([tree("sac", BOX, [one(data)])], [])
    (making,) = makings(exp)
    assert (making.path, making.where) == (tmp_path / "made.npz", "learner.regularizers.0.data")
    run = tmp_path / "run"
    uniarena.train(tree("sac", BOX, [one(data)], 60), run_dir=run, quiet=True)
    assert (tmp_path / "made.npz").exists() and last_row(run)["regularizer/behavior_cloning_loss"] > 0.0


@config
class ShrinkConfig:
    weight: Weight = 0.5  # of the term


class Shrink(Regularizer):
    """The mean square of the policy's last layer."""

    Config = ShrinkConfig

    def loss(self, batch: Any) -> Any:
        return self.policy.network.actor.output.weight.square().mean(), {}

    def probe(self) -> Any:
        return None

    def describe(self) -> str:
        return "small outputs"


def test_ones_own_is_named_by_import_path(tmp_path: Path) -> None:
    terms = [{"type": f"{__name__}:Shrink", "weight": {"type": "constant", "start": 2.0}}]
    uniarena.train(tree("a2c", DISCRETE, terms, 64), run_dir=tmp_path / "run", quiet=True)
    row = last_row(tmp_path / "run")
    assert row["regularizer/Shrink_weight"] == 2.0 and 0.0 < row["regularizer/Shrink_loss"] < 1.0
    assert as_mapping(ShrinkConfig()) == {"weight": 0.5}


# -- what it is good for ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("shown", [True, False])
def test_a_lock_that_chance_does_not_open_is_opened_after_demonstrations(shown: bool, tmp_path: Path) -> None:
    """Random dials open it once in 4 ** 14 tries. The weight ends at 0: what is learned is PPO's own in the end."""
    data = record(Lock(), tmp_path / "opened.npz", secret, episodes=2)
    terms = [one(data, {"type": "linear", "start": 1.0, "end": 0.0}, batch_size=32)] if shown else []
    exp = tree("ppo", "", terms, 4096, environment={"id": Lock, "num_envs": 4})
    exp["learner"] |= {"n_steps": 64, "batch_size": 64, "learning_rate": 3e-3}
    exp["agent"]["policy"]["hidden_sizes"] = [32]
    exp["training"] |= {"save_every_env_steps": 4096, "eval_every_env_steps": 4096, "n_eval_episodes": 5}
    result = uniarena.train(exp, run_dir=tmp_path / "run", quiet=True)
    assert result.eval is not None
    assert result.eval.return_mean == (1.0 if shown else 0.0)
