"""Errors read well: place first, what was given, what was expected, one likely fix, one screen."""

from __future__ import annotations

import copy
import pickle

import pytest

from uniarena.config.errors import MOST_LINES, WIDTH, ConfigError, Faults, Location, closest, squash


def test_the_place_comes_first_so_that_editors_can_jump_there() -> None:
    error = ConfigError("expected a number, got 'x'", "learner.gamma", Location("run.yaml", 7), "write 0.99")
    assert str(error) == "run.yaml:7: learner.gamma\n  expected a number, got 'x'\n  fix: write 0.99"


def test_a_bare_message_needs_no_indentation() -> None:
    assert str(ConfigError("nothing to train")) == "nothing to train"


def test_a_line_number_alone_is_accepted() -> None:
    assert str(ConfigError("odd", "a.b", 3)).startswith("line:3: a.b\n")


def test_many_faults_fit_one_screen() -> None:
    faults = Faults()
    for number in range(40):
        faults.add(
            f"fault {number} " + "word " * 400,
            f"learner.key{number}",
            Location("run.yaml", number + 1),
            "fix it",
        )
    with pytest.raises(ConfigError) as caught:
        faults.check()
    lines = str(caught.value).splitlines()
    assert lines[0] == "40 things are wrong in this config:"
    assert lines[-1] == "and 35 more"
    assert len(lines) <= 5 * (MOST_LINES + 5)
    assert max(map(len, lines)) <= WIDTH


def test_faults_are_gathered_and_other_errors_are_not() -> None:
    faults = Faults()
    with faults.gather():
        raise ConfigError("one")
    with pytest.raises(ZeroDivisionError), faults.gather():
        _ = 1 / 0
    with pytest.raises(ConfigError, match="one"):
        faults.check()


def test_the_same_fault_is_said_once() -> None:
    error = ConfigError.of([*ConfigError("same", "a").faults, *ConfigError("same", "a").faults])
    assert len(error.faults) == 1


def test_places_are_added_later_and_subclasses_stay_themselves() -> None:
    class SpecialError(ConfigError):
        pass

    place = Location("run.yaml", 4)
    error = SpecialError("no", "gamma").beneath("learner", lambda path: place)
    assert isinstance(error, SpecialError)
    assert (error.path, error.location) == ("learner.gamma", place)
    assert error.beneath("learner", lambda path: None).path == "learner.gamma"
    assert ConfigError("no", "x").located(lambda path: place).location == place


def test_errors_survive_a_process_boundary() -> None:
    error = ConfigError("no", "learner.gamma", Location("run.yaml", 4), "yes")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert str(twin) == str(error)
        assert twin.hint == "yes"


def test_closest_ignores_case_and_separators() -> None:
    assert closest("Clip-Rnage", ["clip_range", "gamma"]) == "clip_range"
    assert closest("zzz", ["clip_range"]) is None
    assert squash("Frame-Stack_2") == "framestack2"
