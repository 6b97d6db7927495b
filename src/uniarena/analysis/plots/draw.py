"""Pictures as PNG files, by matplotlib: the only file that imports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uniarena.analysis.plots.data import Flow, Panel
from uniarena.analysis.plots.probe import Map, Worth

COLUMNS = 3


class PlotError(Exception):
    """Nothing can be drawn; the message says what to install."""


def require() -> Any:
    """What draws: matplotlib's figure.

    Raises:
        PlotError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError('pictures need matplotlib: pip install "uniarena[plot]"') from error
    return Figure


def _figure(width: float, height: float) -> Any:
    """An empty figure that belongs to no window."""
    return require()(figsize=(width, height), layout="constrained", dpi=110)


def _saved(figure: Any, path: Path) -> Path:
    figure.savefig(path, format="png")
    return path


def curves(panels: Sequence[Panel], path: Path) -> Path:
    """Every chart with its figures; the band in which the first one usually is lies behind it."""
    rows = -(-len(panels) // COLUMNS)
    figure = _figure(4.6 * COLUMNS, 2.5 * rows)
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(rows, COLUMNS, index + 1)
        if panel.band is not None:
            axes.axhspan(*panel.band, color="tab:green", alpha=0.12, linewidth=0)
        for name, series in panel.curves.items():
            mark = "." if len(series) < 10 else ""
            axes.plot(series.steps, series.values, linewidth=1.2, marker=mark, label=name)
        if _wide(panel):
            axes.set_yscale("log")
        axes.legend(fontsize=7, loc="best")
        axes.tick_params(labelsize=7)
        axes.set_xlabel("env steps", fontsize=7)
    return _saved(figure, path)


def _wide(panel: Panel) -> bool:
    """Whether values are positive and go over more than two orders of magnitude."""
    values = np.concatenate([series.values for series in panel.curves.values()])
    return bool(values.min() > 0 and values.max() > 100 * values.min())


def policy(found: Map, path: Path) -> Path:
    """A map for each action, or the course of all of them over a walk."""
    if not found.axes:
        figure = _figure(9, 3.2)
        axes = figure.add_subplot()
        for name, layer in zip(found.names, found.layers, strict=True):
            axes.plot(layer, label=name, linewidth=1.0)
        axes.set_xlabel("step of the walk")
        axes.legend(fontsize=7)
        return _saved(figure, path)
    figure = _figure(4.2 * len(found.names), 3.6)
    for index, (name, layer) in enumerate(zip(found.names, found.layers, strict=True)):
        axes = figure.add_subplot(1, len(found.names), index + 1)
        image = axes.imshow(layer, origin="lower", extent=found.extent, aspect="auto", cmap="viridis")
        figure.colorbar(image, ax=axes)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel(found.axes[0])
        axes.set_ylabel(found.axes[1])
    return _saved(figure, path)


def values(found: Worth, path: Path) -> Path:
    """Predicted against realised return; on the line they are equal."""
    figure = _figure(5, 4.6)
    axes = figure.add_subplot()
    axes.scatter(found.realised, found.predicted, s=6, alpha=0.4, linewidths=0)
    ends = [
        min(found.realised.min(), found.predicted.min()),
        max(found.realised.max(), found.predicted.max()),
    ]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set_xlabel("realised discounted return")
    axes.set_ylabel("predicted")
    over = float((found.predicted - found.realised).mean())
    axes.set_title(f"{len(found.realised)} rows, predictions {over:+.3g} on average", fontsize=9)
    return _saved(figure, path)


def gradients(found: Flow, path: Path) -> Path:
    """Gradient norms of all layers over the run, on a logarithmic scale."""
    figure = _figure(9, 1.2 + 0.32 * len(found.layers))
    axes = figure.add_subplot()
    shown = np.log10(np.where(found.norms > 0, found.norms, np.nan))
    image = axes.imshow(shown, aspect="auto", interpolation="nearest", cmap="magma")
    axes.set_yticks(range(len(found.layers)), found.layers, fontsize=7)
    marks = np.linspace(0, len(found.steps) - 1, min(6, len(found.steps))).astype(int)
    axes.set_xticks(marks, [f"{found.steps[mark]:,}" for mark in marks], fontsize=7)
    axes.set_xlabel("env steps")
    figure.colorbar(image, ax=axes, label="log10 of the gradient's norm")
    return _saved(figure, path)


def shares(parts: Mapping[str, float], sides: Mapping[str, float], title: str, path: Path) -> Path:
    """Fractions of a run's time as bars, and below them how busy each thread and process was."""
    figure = _figure(8, 1.4 + 0.3 * (len(parts) + len(sides)))
    upper, lower = figure.subplots(2, 1, height_ratios=[len(parts) + 1, len(sides) + 1])
    for axes, bars, colour in ((upper, parts, "tab:blue"), (lower, sides, "tab:orange")):
        values = [100 * value for value in bars.values()]
        drawn = axes.barh(list(bars), values, color=colour)
        axes.bar_label(drawn, fmt="%.1f %%", padding=3, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlim(0, max([*values, 1.0]) * 1.15)
        axes.tick_params(labelsize=8)
    upper.set_title(title, fontsize=10)
    lower.set_title("busy, of the time", fontsize=9)
    return _saved(figure, path)
