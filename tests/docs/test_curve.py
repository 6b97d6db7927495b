"""The script that draws the README's learning curve."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import curve


def write(run: Path, rows: list[dict]) -> Path:
    run.mkdir()
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_figures_are_averaged_by_bin_and_a_gap_keeps_the_last_value():
    history = curve.Curve(np.array([10, 20, 30, 90]), np.array([1.0, 3.0, 5.0, 9.0]))
    assert curve.bin_means(history, np.array([0.0, 25.0, 50.0, 75.0, 100.0])).tolist() == [2.0, 5.0, 5.0, 9.0]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 500, [0, 100, 200, 300, 400, 500]), (-1500, -100, [-1500, -1000, -500, 0]), (3, 3, [3.0, 3.2, 3.4])],
)
def test_ticks_are_round_and_cover_the_values(low: float, high: float, expected: list[float]):
    found = curve.ticks(low, high)
    assert (
        found[0] <= low and found[-1] >= high and found[: len(expected)] == pytest.approx(expected, abs=1e-6)
    )


def test_a_picture_is_drawn_from_the_figures_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = [{"env_steps": 100 * k, "return_mean": None if k % 3 else -float(k)} for k in range(1, 50)]
    runs = [write(tmp_path / name, rows) for name in ("one", "other")]
    target = tmp_path / "out" / "curve.png"
    monkeypatch.setattr(sys, "argv", ["curve.py", *map(str, runs), "--output", str(target)])
    curve.main()
    with Image.open(target) as picture:
        assert picture.size == curve.SIZE
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert {curve.MEAN, (255, 255, 255)} <= colours


def test_stored_results_are_drawn_in_a_colour_per_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, slope in (("with", 2.0), ("without", 1.0)):
        for seed in range(2):
            (tmp_path / name).mkdir(exist_ok=True)
            history = {"steps": [100, 200, 300], "values": [slope + seed, 5 * slope, 9 * slope]}
            (tmp_path / name / f"seed-{seed}.json").write_text(json.dumps({"curve": history}))
    target = tmp_path / "both.png"
    folders = [str(tmp_path / "with"), str(tmp_path / "without")]
    monkeypatch.setattr(sys, "argv", ["curve.py", *folders, "--output", str(target)])
    curve.main()
    with Image.open(target) as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert {strong for _, strong in curve.COLOURS[:2]} <= colours


def test_results_without_a_curve_are_named(tmp_path: Path):
    (tmp_path / "seed-0.json").write_text("{}")
    with pytest.raises(SystemExit, match="holds no result with a curve"):
        curve.stored(tmp_path)


def test_a_run_without_the_figure_is_named(tmp_path: Path):
    run = write(tmp_path / "run", [{"env_steps": 1}])
    with pytest.raises(SystemExit, match="no figure 'return_mean'"):
        curve.read(run, "return_mean")
