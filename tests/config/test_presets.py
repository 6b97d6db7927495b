"""A config class with defaults of its own, without a subclass."""

from __future__ import annotations

import pytest

from uniarena import registry
from uniarena.config import ConfigError, WithDefaults, config, describe, parse


@config
class Inner:
    type: str = "adam"
    eps: float | None = None
    decay: float | None = None


@config
class Outer:
    rate: float = 1.0  # speed
    size: int = 2
    inner: Inner = Inner()


Fast = WithDefaults(Outer, "Fast", rate=9.0, inner=Inner(eps=0.5))


def test_its_defaults_hold_where_nothing_is_given() -> None:
    assert parse(Fast, {}) == Outer(rate=9.0, inner=Inner(eps=0.5)) == Fast()
    assert parse(Fast, {"rate": 3, "size": 4}) == Outer(rate=3.0, size=4, inner=Inner(eps=0.5))
    assert parse(Fast, Outer()) == Outer()


def test_a_map_completes_what_is_set_inside_and_another_type_does_not() -> None:
    assert parse(Fast, {"inner": {"decay": 1}}).inner == Inner(eps=0.5, decay=1.0)
    assert parse(Fast, {"inner": {"type": "adam"}}).inner == Inner(eps=0.5)
    assert parse(Fast, {"inner": {"type": "sgd"}}).inner == Inner(type="sgd")
    assert parse(Fast, {"inner": "sgd"}).inner == Inner(type="sgd")


def test_faults_and_help_are_those_of_the_class() -> None:
    with pytest.raises(ConfigError, match="unknown key 'raet'"):
        parse(Fast, {"raet": 1})
    assert [(field.name, field.default, field.help) for field in describe(Fast)][:2] == [
        ("rate", 9.0, "speed"),
        ("size", 2, ""),
    ]
    with pytest.raises(TypeError, match="Outer has no speed"):
        WithDefaults(Outer, "Odd", speed=1)


def test_a_default_gives_way_to_what_says_the_same_otherwise() -> None:
    other = WithDefaults(Outer, "Other", unless={"rate": ("size",)}, rate=9.0)
    assert (other().rate, other(size=3).rate, other(size=3, rate=2.0).rate) == (9.0, 1.0, 2.0)
    rainbow = registry.lookup("learner", "rainbow").Config
    assert parse(rainbow, {"target_update_updates": 7}).target_interval == 7
    assert parse(rainbow, {"tau": 0.5}).target_interval == 1
    assert parse(rainbow, {}).target_interval == 2_000


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN["learner"]))
def test_configs_of_learners_are_at_most_one_level_below_a_base(name: str) -> None:
    schema = registry.lookup("learner", name).Config
    plain = getattr(schema, "cls", schema)
    assert len([base for base in plain.__mro__ if base is not object]) <= 2
    assert isinstance(parse(schema, {}, "learner"), plain)


def test_an_optimiser_that_is_refined_keeps_what_the_preset_says() -> None:
    schema = registry.lookup("learner", "c51").Config
    assert parse(schema, {"optimizer": {"weight_decay": 0.1}}).optimizer.eps == 0.01 / 32
