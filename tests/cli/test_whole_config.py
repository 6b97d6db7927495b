"""`--print-config` shows every default, and what it prints is the same configuration."""

from pathlib import Path

import pytest
import yaml

from uniarena import assembly
from uniarena.config import load
from uniarena.config.dump import dump_mapping, without_nulls
from uniarena.run.compare import filled

ROOT = Path(__file__).parents[2]
CONFIGS = [*sorted((ROOT / "recipes").glob("*/*.yaml")), *sorted((ROOT / "tests" / "samples").glob("*.yaml"))]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_the_whole_configuration_loads_as_what_it_was_written_from(file: Path, tmp_path: Path):
    whole = without_nulls(filled(load([file], [])))
    again = tmp_path / "whole.yaml"
    again.write_text(dump_mapping(whole))
    loaded = load([again], [])
    assembly.check(loaded)
    assert without_nulls(filled(loaded)) == whole


def test_defaults_are_shown(ua):
    Path("short.yaml").write_text("environment: {id: CartPole-v1}\nlearner: {type: ppo}\n")
    shown = yaml.safe_load(ua("train", "short.yaml", "--print-config").out)
    assert shown["learner"]["gamma"] == 0.99 and shown["learner"]["optimizer"]["type"] == "adam"
    assert shown["agent"]["explorer"] == {"type": "sample"}


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
