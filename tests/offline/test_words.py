"""What is said of data that cannot be read, or should be looked at: in the file's own words, with a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.offline.episodes import keyed
from tests.offline.test_broken import episode
from uniarena.config import ConfigError, parse
from uniarena.config.errors import counted
from uniarena.config.section import Section
from uniarena.data import DataConfig, DataError, load, records
from uniarena.data.audit import audit

OFFLINE = pytest.mark.extra("offline")
FORMS = [".npz", pytest.param(".hdf5", marks=OFFLINE)]


def steps(count: int = 12, **changed: Any) -> dict[str, Any]:
    """Three episodes of a third of the steps each; None leaves a key out."""
    at = np.arange(count)
    found = {
        "observations": np.cumsum(np.random.default_rng(0).normal(size=(count, 2)), axis=0),
        "actions": np.linspace(-1, 1, count)[:, None],
        "rewards": at.astype(float),
        "terminals": at % 4 == 3,
    }
    return {name: array for name, array in {**found, **changed}.items() if array is not None}


def refused(path: Path, **options: Any) -> DataError:
    with pytest.raises(DataError) as error:
        load(DataConfig(path=str(path), **options))
    return error.value


def test_counts_agree_with_their_words() -> None:
    assert counted(1, "flag is", "flags are") == "1 flag is"
    assert (counted(0, "flag", "flags"), counted(2000, "flag", "flags")) == ("0 flags", "2,000 flags")


@pytest.mark.parametrize(
    "name",
    ["a.npz", *(pytest.param(f"a.{each}", marks=OFFLINE) for each in ("hdf5", "tfrecord", "array_record"))],
)
@pytest.mark.parametrize("form", ["auto", "own"])
def test_a_file_of_no_bytes_is_empty(tmp_path: Path, name: str, form: str) -> None:
    (tmp_path / name).touch()
    own = {"npz": "npz", "hdf5": "d4rl"}.get(name[2:], "rlds")
    error = refused(tmp_path / name, format=own if form == "own" else "auto")
    assert error.message == "is empty (0 bytes)" and error.hint


@OFFLINE
def test_files_of_no_bytes_within_a_folder(tmp_path: Path) -> None:
    (tmp_path / "features.json").touch()
    (tmp_path / "a.array_record").touch()
    assert refused(tmp_path).message == "is empty (0 bytes)"  # of the features
    (tmp_path / "features.json").unlink()
    error = refused(tmp_path)
    assert error.message == "is empty (0 bytes)" and error.where.endswith("a.array_record")
    for name in ("metadata.json", "main_data.hdf5"):
        (tmp_path / "toy" / "data").mkdir(parents=True, exist_ok=True)
        (tmp_path / "toy" / "data" / name).write_text("")
        error = refused(tmp_path / "toy")
        assert error.message == "is empty (0 bytes)" and error.where.endswith(name)
        (tmp_path / "toy" / "data" / name).write_text("{}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rewards": np.ones((12, 2))}, r"one number a step, got rows of shape \(2,\)"),
        ({"terminals": np.where(np.arange(12) == 3, 0.5, 0)}, r"got 0\.5, the first of 1 at row 3"),
        ({"terminals": np.where(np.arange(12) > 9, np.nan, 0)}, "got nan, the first of 2 at row 10"),
        ({"terminals": np.full(12, 2)}, "got 2, the first of 12 at row 0"),
        ({"terminals": np.zeros((12, 2), bool)}, "one flag a step"),
        ({"terminals": np.zeros(9, bool)}, "the key terminals has 9 rows, and there are 12 rewards"),
        ({name: array[:0] for name, array in steps().items()}, "holds no steps"),
    ],
)
def test_every_error_has_a_way_out(tmp_path: Path, form: str, changed: dict[str, Any], said: str) -> None:
    path = keyed(tmp_path / f"a{form}", **steps(**changed))
    with pytest.raises(DataError, match=said) as error:
        load(path)
    assert error.value.hint


@OFFLINE
def test_rlds_with_one_action_less_than_steps(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    records.write_tf_records(path, [episode(action=np.ones(3))])
    error = refused(path)
    assert error.message == (
        "the steps are misaligned: action has 3 numbers, which 4 steps cannot share evenly"
    )
    assert error.hint


@pytest.mark.parametrize("form", FORMS)
def test_keys_within_a_group_are_found(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"a{form}"
    keyed(path, **{f"data/steps/{name}": array for name, array in steps().items()})
    hint = refused(path).hint
    assert hint == (
        "they lie in the group data/steps: keys: {obs: data/steps/observations, action: data/steps/actions, "
        "reward: data/steps/rewards, terminated: data/steps/terminals}"
    )
    keys = dict(pair.split(": ") for pair in hint.partition("{")[2].rstrip("}").split(", "))
    assert len(load(DataConfig(path=str(path), keys=keys))) == 12
    path = tmp_path / f"b{form}"
    keyed(path, **{f"traj_{k}/{name}": array for k in range(2) for name, array in steps().items()})
    assert "2 groups have such keys (traj_0, traj_1)" in refused(path).hint
    path = tmp_path / f"c{form}"
    keyed(path, **{f"meta/{name}": array for name, array in steps().items() if name == "rewards"})
    assert "name the key that holds it" in refused(path).hint


def test_the_files_own_keys_are_named(tmp_path: Path) -> None:
    ended = steps()["terminals"]
    odd = {"state": steps()["observations"], "acts": steps()["actions"], "reward": np.ones(12)}

    def said(**changed: Any) -> str:
        path = keyed(tmp_path / "a.npz", terminals=ended, **{**odd, **changed})
        return str(refused(path))

    hole = np.where(np.arange(12) == 3, np.nan, 1.0)
    assert "state has 1 row with NaN" in said(state=odd["state"] * hole[:, None])
    assert "acts has 1 row with NaN" in said(acts=odd["acts"] * hole[:, None])
    assert "reward has 1 row with NaN" in said(reward=hole)
    assert "next_state has 1 row with NaN" in said(next_state=(odd["state"] + 1) * hole[:, None])
    assert "misaligned: state has 9 rows" in said(state=odd["state"][:9])
    assert "a.npz acts" in said(acts=np.array(["left"] * 12))
    path = keyed(tmp_path / "a.npz", terminals=ended, **{**odd, "state": odd["state"] * hole[:, None]})
    found = audit(load(DataConfig(path=str(path)), lazy=True))
    assert any(warning.startswith("state: 1 row has NaN") for warning in found["warnings"])
    assert [leaf["name"] for leaf in found["observations"]] == ["obs"]  # one word for programs


def test_one_of_each_is_said_in_the_singular(tmp_path: Path) -> None:
    flags = {"terminals": np.isin(np.arange(12), (0, 11)), "timeouts": np.arange(12) == 0}
    path = keyed(tmp_path / "a.npz", **steps(**flags, rewards=np.where(np.arange(12) == 3, np.nan, 1.0)))
    space = spaces.Box(-1, 1, (1,), np.float32)
    found = audit(load(DataConfig(path=str(path)), None, space, lazy=True))
    for said in (
        "1 transition is both terminated and truncated; it counts as terminated.",
        "1 episode has one step.",
        "1 reward is NaN or infinite",
    ):
        assert any(warning.startswith(said) for warning in found["warnings"]), found["warnings"]
    path = keyed(
        tmp_path / "a.npz",
        **steps(terminals=np.zeros(12, bool), next_observations=steps()["observations"] + 1),
    )
    found = audit(load(DataConfig(path=str(path)), lazy=True))
    assert not any(
        " 1 rows" in each or each.startswith(("1 flags", "1 episodes")) for each in found["warnings"]
    )


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ({"episodes": 3}, "a list of 2 values", "write two values, such as [0, 3]"),
        ({"episodes": 0}, "a list of 2 values", "write two values, such as [0, 1]"),
        ({"action_bounds": -2.0}, "a list of 2 values", "write two values, such as [-2.0, 0]"),
        ({"episodes": "all"}, "a list of 2 values", "write 2 values: […, …]"),
        ({"jump": float("inf")}, "a finite number, got inf", "give a number"),
        ({"memory_gb": float("inf")}, "a finite number, got inf", "leave it out"),
        ({"min_return": float("inf")}, "a finite number, got inf", "leave it out"),
    ],
)
def test_settings_that_are_refused(given: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(DataConfig, Section({"path": "a.npz", **given}))
    assert said in str(error.value) and hint in str(error.value)


def test_where_minari_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    for name, options in (("mujoco/hopper/expert-v0", {}), ("hopper", {"format": "minari"})):
        error = refused(Path(name), **options)
        assert str(tmp_path / "sets") in error.message and "MINARI_DATASETS_PATH" in error.hint
    assert "Minari" not in str(refused(Path("none.hdf5")))
