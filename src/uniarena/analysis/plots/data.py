"""What curves and gradient flow are drawn from: figures of a run, and the bands in which they usually are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from uniarena.analysis.doctor.table import Series, Table

BANDS: dict[str, tuple[float, float]] = {
    "kl": (0.0, 0.05),
    "health/kl_update": (2e-4, 0.1),
    "clip_fraction": (0.01, 0.4),
    "explained_variance": (0.3, 1.0),
    "health/entropy_share": (0.05, 0.97),
    "health/action_saturation": (0.0, 0.7),
    "health/dead_units": (0.0, 0.9),
    "health/saturated_units": (0.0, 0.9),
    "health/obs_clipped": (0.0, 0.05),
    "health/normalizer_shift": (0.0, 0.1),
    "health/intrinsic_share": (0.0, 0.6),
    "health/update_ratio": (1e-4, 0.2),
}
"""Figure → where it usually is while a run learns; the bounds are those that the doctor speaks at, or near them."""

PANELS: tuple[tuple[str, ...], ...] = (
    ("return_mean", "eval/return_mean", "eval_stochastic/return_mean"),
    ("length_mean",),
    ("kl", "health/kl_update"),
    ("clip_fraction",),
    ("health/entropy_share",),
    ("entropy",),
    ("exploration_std", "health/exploration", "alpha"),
    ("value_loss", "td_error"),
    ("explained_variance",),
    ("health/value_mean", "health/return_realised"),
    ("grad_norm", "value_grad_norm", "policy_grad_norm"),
    ("health/update_ratio",),
    ("health/dead_units", "health/saturated_units"),
    ("health/action_saturation", "health/action_top_share"),
    ("health/obs_clipped", "health/normalizer_shift"),
    ("health/intrinsic_share",),
    ("learning_rate",),
    ("fps",),
)


class Panel(NamedTuple):
    """One chart: figures by name, and the band of the first that has one."""

    curves: dict[str, Series]
    band: tuple[float, float] | None


def panels(table: Table) -> list[Panel]:
    """Charts of every figure that the run has, returns first."""
    found = []
    for names in PANELS:
        curves = {name: table.series(name) for name in names if len(table.series(name))}
        if curves:
            found.append(Panel(curves, next((BANDS[name] for name in curves if name in BANDS), None)))
    return found


class Flow(NamedTuple):
    """Gradient norms: `layers [L]`, `steps [n]`, `norms [L, n]`, NaN where one was not reported."""

    layers: list[str]
    steps: np.ndarray
    norms: np.ndarray


def gradient_flow(table: Table) -> Flow | None:
    """The gradients of all layers over the run; None where none was reported."""
    prefix = "gradient/"
    names = [name for name in table.order if name.startswith(prefix) and len(table.series(name))]
    if not names:
        return None
    steps = np.unique(np.concatenate([table.series(name).steps for name in names]))
    norms = np.full((len(names), len(steps)), np.nan)
    for index, name in enumerate(names):
        series = table.series(name)
        norms[index, np.searchsorted(steps, series.steps)] = series.values
    return Flow([name.removeprefix(prefix) for name in names], steps, norms)
