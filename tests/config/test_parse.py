"""`parse`: values become what the declared type says, or an error that says what was expected."""

from __future__ import annotations

import enum
import math
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from uniarena.config import Between, ConfigError, Section, as_mapping, config, describe, parse, split
from uniarena.config.errors import Location


@config
class Ramp:
    """A schedule."""

    type: str = "linear"
    start: float  # first value
    end: float = 0.0


@config
class Inner:
    """Nested."""

    type: str = "adam"  # which one
    betas: tuple[float, float] | None = None


class Colour(enum.Enum):
    RED = "red"


@config
class Outer:
    """Every kind of field."""

    rate: float | Ramp = 3e-4  # step size
    steps: Annotated[int, Between(1)] = 8
    flag: bool = False
    name: str = "x"
    mode: Literal["hard", "none", "dual"] = "hard"
    threads: Literal["auto"] | Annotated[int, Between(1)] = "auto"
    share: Annotated[float, Between(0, 1, above=True)] = 1.0
    sizes: tuple[int, ...] = (64, 64)
    # stands above,
    # in two lines
    inner: Inner = Inner()
    maybe: int | None = None
    folder: Path = Path("runs")
    colour: Colour = Colour.RED
    anything: Any = None
    table: dict[str, int] = field(default_factory=dict)
    wrapped: float | None = None  # stands inside of the brackets


def given(**keys: Any) -> Outer:
    return parse(Outer, keys, "learner")


@pytest.mark.parametrize(
    ("key", "value", "result"),
    [
        ("rate", "3e-4", 3e-4),
        ("rate", "1_000", 1000.0),
        ("rate", 1, 1.0),
        ("rate", math.inf, math.inf),
        ("rate", {"start": "1e-3"}, Ramp(start=1e-3)),
        ("steps", "1_000_000", 1_000_000),
        ("steps", "1e6", 1_000_000),
        ("steps", 3.0, 3),
        ("flag", "True", True),
        ("mode", "Hard", "hard"),
        ("mode", "NONE", "none"),
        ("threads", "AUTO", "auto"),
        ("threads", "4", 4),
        ("sizes", [64, 32.0, "16"], (64, 32, 16)),
        ("sizes", [], ()),
        ("inner", {"betas": [0.9, "0.99"]}, Inner(betas=(0.9, 0.99))),
        ("inner", "sgd", Inner(type="sgd")),
        ("inner", Inner(type="x"), Inner(type="x")),
        ("maybe", None, None),
        ("maybe", "7", 7),
        ("folder", "a/b", Path("a/b")),
        ("colour", "red", Colour.RED),
        ("anything", {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        ("table", {"a": "1"}, {"a": 1}),
    ],
)
def test_values_are_coerced_by_declared_type(key: str, value: Any, result: Any) -> None:
    parsed = getattr(given(**{key: value}), key)
    assert parsed == result
    assert type(parsed) is type(result)


@pytest.mark.parametrize(
    ("key", "value", "message", "hint"),
    [
        ("rate", "fast", "expected a number or a map (end, start, type), got 'fast'", ""),
        ("rate", True, "expected a number or a map (end, start, type), got true", ""),
        ("rate", float("nan"), "expected a number or a map (end, start, type), got nan", ""),
        ("steps", True, "expected a whole number, got true", ""),
        ("steps", 2.5, "expected a whole number, got 2.5", "write 2"),
        ("steps", 0, "expected a whole number, at least 1; got 0", ""),
        ("steps", None, "expected a whole number, got nothing (null)", ""),
        ("flag", 1, "expected true or false, got 1", "write true"),
        ("flag", "maybe", "expected true or false, got 'maybe'", ""),
        ("name", 7, "expected text, got 7", "quote it: '7'"),
        ("name", False, "expected text, got false", "quote it: 'false'"),
        ("mode", "hrad", "expected one of 'hard', 'none', 'dual', got 'hrad'", "did you mean hard?"),
        (
            "mode",
            False,
            "expected one of 'hard', 'none', 'dual', got false",
            "a word such as no or off needs quotes",
        ),
        (
            "threads",
            "atuo",
            "expected 'auto' or a whole number (at least 1), got 'atuo'",
            "did you mean auto?",
        ),
        ("share", 0, "expected a number, above 0 and at most 1; got 0", ""),
        ("sizes", 64, "expected a list (of a whole number each), got 64", "write [64]"),
        ("sizes", "64", "expected a list (of a whole number each), got '64'", "write [64]"),
        ("inner", [1], "expected a map (betas, type), got [1]", "write `key: value` lines"),
        ("inner", [{"type": "x"}], "expected a map (betas, type)", "remove the dashes"),
        ("inner", 3, "expected a map (betas, type), got 3", "write `type: …` below it"),
        ("colour", "blue", "Input should be 'red'; got 'blue'", ""),
        ("table", 3, "expected a map, got 3", "write `key: value` lines below it"),
    ],
)
def test_wrong_values_say_given_expected_and_where(key: str, value: Any, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(**{key: value})
    assert message in caught.value.faults[0].message
    assert hint in caught.value.hint
    assert bool(hint) == bool(caught.value.hint)
    assert caught.value.path == f"learner.{key}"


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"inner": {"betas": [0.9]}}, "learner.inner.betas"),
        ({"sizes": [64, "x"]}, "learner.sizes.1"),
        ({"table": {"a": []}}, "learner.table.a"),
        ({"rate": {"end": 1}}, "learner.rate.start"),
        ({"rate": {"start": 1, "stop": 2}}, "learner.rate.stop"),
    ],
)
def test_paths_lead_into_nested_values(keys: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(**keys)
    assert caught.value.path == path


def test_unknown_keys_are_suggested_and_all_faults_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        given(stepps=1, lr=1, flag=3)
    text = str(caught.value)
    assert "learner.stepps" in text and "write steps" in text
    assert "unknown key 'lr'" in text
    assert "learner.flag" in text


def test_spellings_of_other_libraries_are_recognised_in_a_plug_in_learner() -> None:
    @config
    class Mine:
        learning_rate: float = 1.0

    with pytest.raises(ConfigError) as caught:
        parse(Mine, {"lr": 2}, "learner")
    assert caught.value.hint == "write learning_rate"


def test_keys_that_belong_elsewhere_are_sent_there() -> None:
    with pytest.raises(ConfigError) as caught:
        given(n_eval_episodes=3)
    assert caught.value.hint == "this belongs elsewhere: training.n_eval_episodes"


def test_a_required_key_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(Ramp, {}, "learner.gamma")
    assert str(caught.value) == (
        "learner.gamma.start\n  required and missing; expected a number\n  fix: add start: …"
    )


def test_lines_of_the_file_are_named() -> None:
    section = Section(location=Location("run.yaml", 3))
    section.put("steps", "many", Location("run.yaml", 5))
    section.put("rate", Section({"strat": 3}, Location("run.yaml", 6)), Location("run.yaml", 6))
    with pytest.raises(ConfigError) as caught:
        parse(Outer, section, "learner")
    assert [str(fault.location) for fault in caught.value.faults] == [
        "run.yaml:5",
        "run.yaml:6",
        "run.yaml:6",
    ]


@config
class Checked:
    """Refuses in `__post_init__`."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"low is {self.low} and high is {self.high}", path="high", hint="swap them")
        if self.low == self.high:
            raise ValueError("low and high are equal")


def test_refusals_of_a_config_itself_get_path_and_line() -> None:
    section = Section()
    section.put("low", 2, Location("run.yaml", 8))
    section.put("high", 1, Location("run.yaml", 9))
    with pytest.raises(ConfigError) as caught:
        parse(Checked, section, "environment.wrappers.0")
    assert str(caught.value).startswith("run.yaml:9: environment.wrappers.0.high\n")
    with pytest.raises(ConfigError, match="are equal") as caught:
        parse(Checked, {"low": 1, "high": 1}, "here")
    assert caught.value.path == "here"


def test_configs_are_frozen_keyword_only_and_independent() -> None:  # case B89
    first, second = given(steps=3), given(steps=4)
    assert (first.steps, second.steps) == (3, 4)
    assert first.table is not second.table
    with pytest.raises(AttributeError):
        first.steps = 9  # type: ignore[misc]
    with pytest.raises(TypeError):
        Ramp("linear", 1.0)  # type: ignore[misc]


def test_an_instance_and_its_mapping_are_the_same_config() -> None:
    cfg = given(rate={"start": 1.0}, sizes=[3], inner={"betas": [0.1, 0.2]}, table={"a": 1})
    assert parse(Outer, cfg, "learner") is cfg
    assert parse(Outer, as_mapping(cfg), "learner") == cfg


def test_split_separates_known_keys_from_those_of_a_users_module() -> None:
    section = Section({"steps": 3, "width": 5}, Location("run.yaml", 1))
    section.lines["width"] = Location("run.yaml", 2)
    known, extra = split(Outer, section)
    assert dict(known) == {"steps": 3}
    assert dict(extra) == {"width": 5}
    assert str(extra.where("width")) == "run.yaml:2"


def test_comments_are_the_help() -> None:
    fields = {f.name: f for f in describe(Outer)}
    assert fields["rate"].help == "step size"
    assert fields["inner"].help == "stands above, in two lines"
    assert fields["wrapped"].help == "stands inside of the brackets"
    assert fields["maybe"].help == ""
    assert fields["steps"].default == 8


def test_help_of_an_inherited_field_is_kept() -> None:
    @config
    class Derived(Ramp):
        end: float = 1.0  # last value

    assert {f.name: f.help for f in describe(Derived)} == {
        "type": "",
        "start": "first value",
        "end": "last value",
    }


def test_a_class_without_source_has_no_help_and_no_trouble() -> None:
    made = config(type("Made", (), {"__annotations__": {"x": int}, "x": 1}))
    assert [(f.name, f.help) for f in describe(made)] == [("x", "")]
