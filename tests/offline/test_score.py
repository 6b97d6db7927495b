"""Normalised scores: the formula by hand, published references as facts, and where they show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.offline.test_regime import config, recording, rows_of
from uniarena import train
from uniarena.assembly.reference import known_reference, reference_of
from uniarena.cli import invoke
from uniarena.config import ConfigError, Reference, dump, load
from uniarena.config.reference import named, published
from uniarena.data import Recorder
from uniarena.data import load as load_data
from uniarena.run import diff, evaluate
from uniarena.run.folder import read_result
from uniarena.sampling.evaluation import EvalResult


def test_the_score_by_hand() -> None:
    known = Reference(random=-20.0, expert=180.0)
    assert [known.score(value) for value in (-20.0, 180.0, 30.0, -70.0)] == [0.0, 100.0, 25.0, -25.0]
    result = EvalResult("deterministic", (20.0, 40.0), (1, 1), reference=known)
    assert result.score == 25.0 and result.figures()["score"] == 25.0 and "score 25.0" in str(result)
    assert EvalResult("deterministic", (20.0,), (1,)).score is None


@pytest.mark.parametrize(
    ("name", "random", "expert"),
    [
        ("d4rl/hopper-medium-v2", -20.272305, 3234.3),
        ("d4rl/HalfCheetah", -280.178953, 12135.0),
        ("d4rl/walker2d-full-replay-v1", 1.629008, 4592.3),
        ("d4rl/ant-random-v0", -325.6, 3879.7),
        ("d4rl/pen-human-v1", 96.262799, 3076.8331017826877),
        ("d4rl/antmaze-large-diverse-v2", 0.0, 1.0),
        ("d4rl/maze2d-umaze-v1", 23.85, 161.86),
        ("d4rl/kitchen-partial-v0", 0.0, 4.0),
    ],
)
def test_published_references(name: str, random: float, expert: float) -> None:
    assert named(name) == Reference(random=random, expert=expert)


def test_a_published_score() -> None:
    assert named("d4rl/hopper-medium-v2").score(1607.0138475) == pytest.approx(50.0)
    assert len(published()) > 100 and all(each.expert > each.random for each in published().values())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("d4rl/hoper-medium-v2", "did you mean d4rl/hopper-medium-v2"),
        ("mine", "no reference is known"),
        ({"random": 1.0, "expert": 1.0}, "an expert earns more than random"),
        ({"random": 2.0, "expert": 1.0}, "are they exchanged"),
        ({"random": 0.0, "expert": float("inf")}, "expected a finite number, got inf"),
        ({"random": float("nan"), "expert": 1.0}, "expected a number, got nan"),
        ({"random": 1.0}, "expert"),
    ],
)
def test_a_reference_that_is_none_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load(config("bc", "CartPole-v1", reference=given))
    assert "training.reference" in str(caught.value)


def carded(path: Path, **origin: Any) -> Path:
    """A recording whose header says what the makers of sets say."""
    data = load_data(recording(path))
    recorder = Recorder(data.observation_space, data.action_space, data.source.env, origin)
    for episode in data:
        recorder.add(episode)
    return recorder.save(path)


def test_the_datas_own_card(tmp_path: Path) -> None:
    path = carded(tmp_path / "a.npz", random_return=-120.0, agents={"10": -100.0, "20": -20.0})
    exp = load([config("bc", "Pendulum-v1", reference="data"), {"data": None}, {"data": {"path": str(path)}}])
    assert reference_of(exp) == Reference(random=-120.0, expert=-20.0)
    assert reference_of(load([_file(tmp_path, dump(exp))])) == reference_of(exp)
    path.unlink()
    assert known_reference(exp) is None, "who only evaluates goes on without"


def _file(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def test_random_data_is_its_own_reference(tmp_path: Path) -> None:
    path = carded(tmp_path / "a.npz", kind="random", agents={"20": 0.0})
    exp = load([config("bc", "Pendulum-v1", reference="data"), {"data": None}, {"data": {"path": str(path)}}])
    found = reference_of(exp)
    assert found is not None and found.random == pytest.approx(load_data(path).returns.mean())


def test_a_card_that_does_not_say(tmp_path: Path) -> None:
    settings = config("bc", "Pendulum-v1", reference="data")
    with pytest.raises(ConfigError, match="no file"):
        reference_of(load(settings))
    settings["data"] = {"path": str(recording(tmp_path / "a.npz"))}
    with pytest.raises(ConfigError, match="does not say what"):
        train(settings, run_dir=tmp_path / "run", quiet=True)


def test_a_run_shows_its_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = {"random": -200.0, "expert": 0.0}
    runs = [tmp_path / "one", tmp_path / "two"]
    for updates, run in zip((20, 40), runs, strict=True):
        result = train(
            config("bc", "Pendulum-v1", reference=known, total_updates=updates), run_dir=run, quiet=True
        )
        assert result.eval is not None
        score = 100 * (result.eval.return_mean + 200) / 200
        assert rows_of(run)[-1]["eval/score"] == pytest.approx(score)
        written = json.loads((run / "result.json").read_text())["eval"]
        assert written["score"] == pytest.approx(score) and written["reference"] == known
        again = read_result(run)
        assert again is not None and again.eval is not None and again.eval.score == pytest.approx(score)
        assert result.to_json()["eval"]["score"] == pytest.approx(score)
    compared = diff(*runs)
    assert set(compared.results) == {"return_mean", "score"} and "score" in str(compared)
    assert evaluate(runs[0], 1, trust=True).reference == Reference(**known)
    capsys.readouterr()
    assert invoke(["eval", str(runs[0]), "--episodes", "1", "--trust", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["eval"]["reference"] == known
