"""`dump`: canonical YAML that loads to the same experiment; secrets stay out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from uniarena.config import ConfigError, Experiment, dump, dump_mapping, load, recipes, to_mapping
from uniarena.config.section import REDACTED
from uniarena.config.text import from_text

SAMPLES = Path(__file__).parent.parent / "samples"
BASE: dict[str, Any] = {"environment": {"id": "CartPole-v1"}, "learner": {"type": "ppo"}}


def again(exp: Experiment) -> Experiment:
    return load(from_text(dump(exp), "config.yaml"))


@pytest.mark.parametrize("source", [*sorted(SAMPLES.glob("*.yaml")), *sorted(recipes())], ids=str)
def test_round_trip_of_files(source: str | Path) -> None:
    exp = load(source)
    assert again(exp) == exp
    assert dump(again(exp)) == dump(exp)
    assert again(exp).notices == tuple(n for n in exp.notices if "distributed" in n)


def test_only_canonical_names_are_written() -> None:
    text = dump(load(SAMPLES / "lunarlander_rnd_ppo.yaml"))
    for spelling in (
        "PPO_Agent",
        "MlpPolicy",
        "MlpValue",
        "NormalizeObservation",
        "Adam",
        "-v2",
        "module:",
        "wrapper:",
    ):
        assert spelling not in text
    assert "hidden_sizes: [64, 64]" in text
    assert "intrinsic:\n    type: rnd\n" in text


def test_defaults_of_the_sections_are_written_and_empty_ones_are_not() -> None:
    tree = yaml.safe_load(dump(load(BASE)))
    assert tree["training"]["total_timesteps"] == 1_000_000
    assert tree["experiment"]["seed"] == 0
    assert "agent" not in tree
    assert "tags" not in tree["experiment"]
    assert "log_interval" not in tree["training"]


def test_other_yaml_readers_see_the_same_types() -> None:
    kwargs = {
        "a": "3e-4",
        "b": "1e5",
        "c": "010",
        "d": "2024-01-01",
        "e": "yes",
        "f": "1:30",
        "g": 1e-5,
        "h": "null",
        "i": 1e16,
    }
    exp = load({**BASE, "environment": {"id": "x", "kwargs": kwargs}})
    assert yaml.safe_load(dump(exp))["environment"]["kwargs"] == kwargs
    assert json.loads(json.dumps(to_mapping(exp)))["environment"]["kwargs"] == kwargs


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Co"]), max_size=12).filter(
        lambda text: "${" not in text
    ),
    st.sampled_from(
        [
            "3e-4",
            "1_000",
            "010",
            "0x1f",
            "yes",
            "Null",
            "~",
            ".inf",
            "1:30",
            "2001-01-01",
            "<<",
            "=",
            "- a",
            "a: b",
            "#",
        ]
    ),
)
keys = st.text("abcxyz_", min_size=1, max_size=6).map(lambda name: f"k_{name}")
plain_data = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
own = st.dictionaries(keys, plain_data, max_size=4)
count = st.integers(1, 10**9)


def part(kind: str) -> Any:
    return own.map(lambda section: {"type": f"mine:{kind}", **section})


experiments = st.fixed_dictionaries(
    {
        "environment": st.fixed_dictionaries(
            {"id": st.sampled_from(["CartPole-v1", "mine:Env", "ALE/Pong-v5"])},
            optional={
                "num_envs": count,
                "kwargs": own,
                "wrappers": st.lists(part("Wrapper"), max_size=2),
                "max_episode_steps": count,
            },
        ),
        "learner": part("Learner"),
    },
    optional={
        "experiment": st.fixed_dictionaries(
            {},
            optional={
                "name": st.text("ab c", min_size=1),
                "seed": st.integers(0, 99),
                "tags": st.lists(st.text("ab")),
                "notes": st.text("ab\n:#"),
            },
        ),
        "agent": st.fixed_dictionaries(
            {},
            optional={
                "policy": own.map(lambda section: {"network": "mine:Net", **section}),
                "value": own,
                "explorer": part("Explorer"),
                "buffer": part("Buffer"),
                "intrinsic": st.lists(part("Bonus"), max_size=3),
                "init_from": st.text("ab/", min_size=1),
            },
        ),
        "training": st.fixed_dictionaries(
            {},
            optional={
                "total_timesteps": count,
                "log_interval": count,
                "eval_every_env_steps": count,
                "max_wall_time": st.floats(0.1, 1e6),
                "threads": st.integers(1, 1024),
            },
        ),
        "distributed": st.fixed_dictionaries(
            {}, optional={"sync_period": count, "backend": st.sampled_from(["auto", "gloo", "nccl"])}
        ),
        "callbacks": st.lists(part("Callback"), max_size=2),
    },
)


@given(experiments)
def test_round_trip_of_anything(tree: dict[str, Any]) -> None:
    exp = load(tree)
    assert again(exp) == exp
    assert dump(again(exp)) == dump(exp)


# -- secrets -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "key", ["password", "api_key", "API_KEY", "hub_token", "client_secret", "aws_access_key", "credentials"]
)
def test_values_of_secret_keys_are_left_out_and_asked_for(key: str) -> None:
    exp = load({**BASE, "environment": {"id": "x", "kwargs": {"deep": {key: "hunter2hunter2"}, "size": 3}}})
    text = dump(exp)
    assert "hunter2" not in text
    assert REDACTED in text
    tree = from_text(text, "config.yaml")
    with pytest.raises(ConfigError, match="this secret was left out") as caught:
        load(tree)
    path = f"environment.kwargs.deep.{key}"
    assert (caught.value.path, caught.value.hint) == (path, f"give it again: {path}=…")
    assert load(tree, [f"{path}=hunter2hunter2"]) == exp


@pytest.mark.parametrize(
    "key", ["max_tokens", "eos_token", "tokenizer", "monkey", "author", "token_dim", "keys"]
)
def test_ordinary_keys_are_no_secrets(key: str) -> None:
    value: Any = 64 if key.endswith("dim") else "plain text"
    exp = load({**BASE, "environment": {"id": "x", "kwargs": {key: value}}})
    assert again(exp).environment.kwargs == {key: value}


def test_values_of_secret_environment_variables_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "s3cr3t-value")
    monkeypatch.setenv("SHORT_PASSWORD", "abc")
    kwargs = {"url": "https://user:s3cr3t-value@host", "list": ["s3cr3t-value", "abc"], "plain": "abc"}
    text = dump(load({**BASE, "environment": {"id": "x", "kwargs": kwargs}}))
    assert "s3cr3t" not in text
    assert text.count(REDACTED) == 2
    assert "plain: abc" in text


def test_classes_from_python_are_written_as_import_paths() -> None:
    exp = load({"environment": {"id": Experiment}, "learner": {"type": "ppo"}})
    assert yaml.safe_load(dump(exp))["environment"]["id"] == "uniarena.config.schema:Experiment"


def test_dump_mapping_keeps_the_order_and_shares_nothing() -> None:
    shared = [1, 2]
    assert dump_mapping({"b": shared, "a": shared}) == "b: [1, 2]\na: [1, 2]\n"
