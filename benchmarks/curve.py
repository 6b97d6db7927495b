"""Draw learning curves from the figures that runs wrote: training return against environment steps.

    python benchmarks/curve.py runs/one runs/other --output curve.png
    python benchmarks/curve.py ppo/cartpole --seeds 0 1 2 3 4 --output docs/images/ppo-cartpole.png
    python benchmarks/curve.py benchmarks/results/sample/lunarlander-{rnd,plain} --output curve.png

The first form reads `metrics.jsonl` of finished or running runs. The second trains a recipe with each seed in a scratch
folder first. The third reads what `benchmarks/learn.py` stored, a folder per colour. Every run is a thin line, the mean
of a colour's runs a thick one. Drawn with Pillow, which is installed anyway.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import uniarena
from uniarena.trainer.loggers.jsonl import read_rows

SIZE = (840, 460)  # pixels of the picture
SCALE = 3  # drawn so many times larger, then reduced: smooth lines
MARGINS = (78, 46, 24, 58)  # left, top, right, bottom
INK, GRID = (30, 36, 48), (226, 229, 234)
PALE, MEAN = (120, 160, 210), (20, 88, 170)
COLOURS = (
    (PALE, MEAN),
    ((240, 180, 130), (200, 90, 20)),
    ((150, 205, 160), (30, 130, 60)),
)  # runs, their mean


class Curve(NamedTuple):
    """Environment steps `[n]`, rising, and the figure at each of them `[n]`."""

    steps: np.ndarray
    values: np.ndarray


def read(run: Path, metric: str) -> Curve:
    """The figure's history in one run.

    Raises:
        SystemExit: the run never wrote it.
    """
    rows = [row for row in read_rows(run / "metrics.jsonl") if row.get(metric) is not None]
    if not rows:
        raise SystemExit(f"{run}/metrics.jsonl has no figure {metric!r}")
    return Curve(np.array([row["env_steps"] for row in rows]), np.array([row[metric] for row in rows], float))


def stored(folder: Path) -> list[Curve]:
    """The training returns in the results of one recipe, a curve per seed.

    Raises:
        SystemExit: no result there holds a curve.
    """
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("seed-*.json"))]
    curves = [
        Curve(*(np.array(row["curve"][key], float) for key in Curve._fields))
        for row in rows
        if "curve" in row
    ]
    if not curves:
        raise SystemExit(f"{folder} holds no result with a curve")
    return curves


def bin_means(curve: Curve, edges: np.ndarray) -> np.ndarray:
    """Mean of the figure in each of the bins between `edges [k + 1]`; a bin without a value takes the last one."""
    index = np.clip(np.searchsorted(edges, curve.steps, side="left") - 1, 0, len(edges) - 2)
    means = np.full(len(edges) - 1, np.nan)
    for k in range(len(means)):
        inside = curve.values[index == k]
        means[k] = inside.mean() if len(inside) else means[k - 1] if k else curve.values[0]
    return means


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that cover low … high."""
    high = high if high > low else low + 1.0  # a flat curve
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(k * step, 10) for k in range(first, last + 1)]


def train(recipe: str, seeds: Sequence[int], overrides: Sequence[str], scratch: Path) -> list[Path]:
    """One run per seed in the scratch folder."""
    runs = []
    for seed in seeds:
        run = scratch / f"seed-{seed}"
        result = uniarena.train(recipe, [f"experiment.seed={seed}", *overrides], run_dir=run, quiet=True)
        print(f"{recipe} seed {seed}: {result.eval}", flush=True)
        runs.append(run)
    return runs


def draw(groups: Mapping[str, Sequence[Curve]], title: str, ylabel: str, bins: int = 60) -> Image.Image:
    """The picture of one or more groups of curves, each with a name and in a colour."""
    if len(groups) > len(COLOURS):
        raise SystemExit(f"at most {len(COLOURS)} groups of runs fit into a picture, got {len(groups)}")
    end = max(float(curve.steps[-1]) for curves in groups.values() for curve in curves)
    edges = np.linspace(0.0, end, bins + 1)
    means = {name: np.stack([bin_means(curve, edges) for curve in curves]) for name, curves in groups.items()}
    every = np.concatenate(list(means.values()))
    xs, ys = ticks(0.0, end), ticks(float(every.min()), float(every.max()))
    left, top, right, bottom = (margin * SCALE for margin in MARGINS)
    width, height = (side * SCALE for side in SIZE)

    def place(step: float, value: float) -> tuple[float, float]:
        x = left + (width - left - right) * step / end
        return x, height - bottom - (height - top - bottom) * (value - ys[0]) / (ys[-1] - ys[0])

    image = Image.new("RGB", (width, height), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(13 * SCALE)
    for value in ys:
        pen.line([place(0, value), place(end, value)], fill=GRID, width=SCALE)
        pen.text((left - 10 * SCALE, place(0, value)[1]), f"{value:,.4g}", INK, font, anchor="rm")
    for step in (step for step in xs if step <= end):
        pen.text((place(step, 0)[0], height - bottom + 8 * SCALE), short(step), INK, font, anchor="mt")
    centres = (edges[:-1] + edges[1:]) / 2
    for (pale, _), rows in zip(COLOURS, means.values(), strict=False):
        for row in rows if len(rows) > 1 else ():
            pen.line(points(place, centres, row), fill=pale, width=SCALE, joint="curve")
    for k, ((_, strong), (name, rows)) in enumerate(zip(COLOURS, means.items(), strict=False)):
        pen.line(points(place, centres, rows.mean(axis=0)), fill=strong, width=3 * SCALE, joint="curve")
        if len(means) > 1:
            pen.text((left + 12 * SCALE, top + (6 + 18 * k) * SCALE), name, strong, font, anchor="lt")
    pen.line([place(0, ys[0]), place(end, ys[0])], fill=INK, width=SCALE)
    pen.text((left, 14 * SCALE), title, INK, ImageFont.load_default(16 * SCALE), anchor="lt")
    middle = (left + width - right) / 2
    pen.text((middle, height - 22 * SCALE), "environment steps", INK, font, anchor="mt")
    write_upright(image, ylabel, font, (14 * SCALE, (top + height - bottom) // 2))
    return image.resize(SIZE, Image.Resampling.LANCZOS)


def points(
    place: Callable[[float, float], tuple[float, float]], steps: np.ndarray, values: np.ndarray
) -> list[tuple[float, float]]:
    """The places of a line's points."""
    return [place(float(step), float(value)) for step, value in zip(steps, values, strict=True)]


def write_upright(image: Image.Image, text: str, font: ImageFont.FreeTypeFont, at: tuple[int, int]) -> None:
    """Text that runs upwards, its left edge and vertical middle at `at`."""
    _, _, width, height = font.getbbox(text)
    strip = Image.new("RGB", (int(width), int(height)), "white")
    ImageDraw.Draw(strip).text((0, 0), text, INK, font)
    strip = strip.rotate(90, expand=True)
    image.paste(strip, (at[0], at[1] - strip.height // 2))


def short(step: float) -> str:
    """20000 → 20k, 1500000 → 1.5M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if step >= size:
            return f"{step / size:g}{unit}"
    return f"{step:g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source",
        nargs="+",
        help="run folders, or one recipe and key.path=value overrides, or folders of results",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="of a recipe")
    parser.add_argument("--metric", default="return_mean", help="a figure of metrics.jsonl")
    parser.add_argument("--title", help="default: the recipe, or the run's name")
    parser.add_argument("--output", type=Path, default=Path("curve.png"))
    args = parser.parse_args()
    runs = [Path(source) for source in args.source]
    with tempfile.TemporaryDirectory() as scratch:
        title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
        if any(runs[0].glob("seed-*.json")):
            title = f"{runs[0].parent.name}: {', '.join(run.name for run in runs)}"
            groups = {run.name: stored(run) for run in runs}
        else:
            if not runs[0].is_dir():
                title = (
                    f"{args.source[0]}, {len(args.seeds)} seeds" if len(args.seeds) > 1 else args.source[0]
                )
                runs = train(args.source[0], args.seeds, args.source[1:], Path(scratch))
            groups = {title: [read(run, args.metric) for run in runs]}
    label = "return of training episodes" if args.metric == "return_mean" else args.metric
    args.output.parent.mkdir(parents=True, exist_ok=True)
    draw(groups, args.title or title, label).save(args.output, optimize=True)
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
