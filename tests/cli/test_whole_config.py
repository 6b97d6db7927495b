"""`--print-config` shows every default, and what it prints is the same configuration."""

from pathlib import Path

import pytest
import torch
import yaml
from gymnasium import Space, spaces

from uniarena import assembly
from uniarena.config import ConfigError, Section, as_mapping, component, load
from uniarena.config.dump import dump_mapping
from uniarena.config.fields import field_types
from uniarena.config.schema import SECTIONS
from uniarena.registry import BUILT_IN, lookup
from uniarena.run.whole import filled
from uniarena.seeding import Streams
from uniarena.values.sections import whole_policy

ROOT = Path(__file__).parents[2]
CONFIGS = [*sorted((ROOT / "recipes").glob("*/*.yaml")), *sorted((ROOT / "tests" / "samples").glob("*.yaml"))]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_the_whole_configuration_loads_as_what_it_was_written_from(file: Path, tmp_path: Path):
    whole = filled(load([file], []))
    again = tmp_path / "whole.yaml"
    again.write_text(dump_mapping(whole))
    loaded = load([again], [])
    assembly.check(loaded)
    assert filled(loaded) == whole


def test_defaults_are_shown(ua):
    Path("short.yaml").write_text("environment: {id: CartPole-v1}\nlearner: {type: ppo}\n")
    shown = yaml.safe_load(ua("train", "short.yaml", "--print-config").out)
    assert shown["learner"]["gamma"] == 0.99 and shown["learner"]["optimizer"]["type"] == "adam"
    assert shown["agent"]["explorer"] == {"type": "sample", "warmup": None}


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_key_is_shown_in_its_place(file: Path):
    exp = load([file], [])
    for part, tree in zip(exp.parts, filled(exp).get("stages", [filled(exp)]), strict=True):
        names = [name for name in SECTIONS if name in tree]
        assert [name for name in tree if name != "name"] == names
        assert set(SECTIONS) - set(names) <= ({"experiment", "distributed"} if exp.stages else set())
        for name in ("environment", "agent", "sampling", "training"):
            known = set(field_types(SECTIONS[name]))
            assert set(tree[name]) == known - (
                {"total_timesteps"} if part.data is not None and name == "training" else set()
            )
        learner = lookup("learner", part.learner["type"])
        wanted = {"type", "regularizers", *field_types(learner.Config)}
        assert set(tree["learner"]) == wanted and "lr" not in tree["learner"]["optimizer"]
        assert {"network", "hidden_sizes", "activation", "layout"} <= set(tree["agent"]["policy"])


def test_components_in_lists_are_shown_whole_but_for_what_follows_from_training(ua):
    text = "environment: {id: CartPole-v1, wrappers: [frame_stack]}\nlearner: {type: sac}\n"
    Path("short.yaml").write_text(text + "callbacks: [evaluate, {type: early_stopping, patience: 3}]\n")
    shown = yaml.safe_load(ua("train", "short.yaml", "--print-config").out)
    assert len(shown["environment"]["wrappers"][0]) > 1 and "folder" in shown["experiment"]["loggers"][1]
    assert shown["callbacks"][0] == {"type": "evaluate"}  # n_episodes is training.n_eval_episodes
    assert "patience" in shown["callbacks"][1]
    policy = shown["agent"]["policy"]
    assert (policy["hidden_sizes"], policy["activation"]) == ([256, 256], "relu")  # of its own family


@pytest.mark.parametrize("name", BUILT_IN["learner"])
@pytest.mark.parametrize("value", [{}, {"hidden_sizes": [7]}], ids=["bare", "value"])
def test_a_policy_written_out_in_full_is_the_same_network(name: str, value: dict):
    cfg = component("learner", Section({"type": name}), "learner")[1]
    learner, given = lookup("learner", name), Section({"activation": "elu"})

    def weights(policy: Section, kind: Space) -> dict[str, torch.Tensor]:
        seen = spaces.Box(-1.0, 1.0, (3,))
        return learner.build_model(seen, kind, policy, Section(value), None, Streams(0), cfg=cfg).state_dict()

    whole = Section(as_mapping(whole_policy(learner.build_model, given, Section(value))))
    assert {"network", "layout", "encoders"} <= set(whole)
    for kind in (spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,))):
        try:
            before = weights(given, kind)
        except ConfigError:  # the learner is not for such actions
            continue
        after = weights(whole, kind)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)
        break
    else:
        pytest.fail(f"{name} takes neither kind of action")


def test_a_network_of_the_users_keeps_its_own_keys():
    tree = {"environment": "CartPole-v1", "learner": "ppo", "agent": {"policy": {"network": "a.b:C", "x": 1}}}
    assert filled(load([tree]))["agent"]["policy"] == {"network": "a.b:C", "x": 1}


def test_the_version(ua):
    assert ua("--version").out.split()[0] == "uniarena"


def test_a_key_without_a_value_is_no_file(ua):
    told = ua("train", "ppo/cartpole", "learner.gamma")
    assert told.code == 2 and "learner.gamma=VALUE" in told.err


def test_import_paths_have_neither_slashes_nor_py(ua):
    told = ua("check-env", "./my_env.py:Corridor")
    assert told.code == 2 and "my_env:Corridor" in told.err


@pytest.mark.parametrize("recipe", ["dqn/cartpole", "dqn/acrobot"])
def test_from_dqn_to_rainbow_is_one_line(ua, recipe: str):
    told = ua("train", recipe, "learner.type=rainbow", "--print-config")
    assert told.code == 0, told.err


def test_a_run_that_ended_before_its_first_checkpoint_says_how_to_begin_again(ua):
    Path("runs/short").mkdir(parents=True)
    Path("runs/short/config.yaml").write_text("environment: {id: CartPole-v1}\nlearner: {type: ppo}\n")
    told = ua("resume", "runs/short")
    assert told.code == 2 and "--resume-if-exists" in told.err


def test_a_video_that_cannot_be_made_is_told_before_training(ua):
    told = ua("train", "small.yaml", "callbacks=[{type: video}]", "environment.id=tests.cli.users:Walk")
    assert "callbacks.video" in told.err and "0 env steps" not in told.out
    assert told.code in (1, 2)
