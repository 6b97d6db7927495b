"""The doctor: figures of a run in, findings in plain words out. Pure functions; nothing is trained or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from uniarena.analysis.doctor import (
    data,
    evaluation,
    gradients,
    machine,
    offline,
    policy,
    progress,
    values,
)
from uniarena.analysis.doctor.finding import Change, Finding
from uniarena.analysis.doctor.setup import Setup
from uniarena.analysis.doctor.table import Table
from uniarena.config.errors import counted

__all__ = ["ILLNESSES", "Change", "Finding", "Setup", "Table", "examine", "report", "statements"]

_ORDER: tuple[Callable[[Table, Setup], Finding | None], ...] = (
    gradients.not_a_number,
    data.episodes_of_length_one,
    policy.kl_too_high,
    policy.temperature_runs_away,
    gradients.exploding_gradients,
    gradients.dead_gradients,
    offline.offline_q_diverged,
    offline.offline_q_overestimation,
    values.q_overestimation,
    data.reward_scale_off,
    data.intrinsic_reward_dominates,
    policy.entropy_collapse,
    policy.updates_too_timid,
    policy.saturated_actions,
    policy.exploration_never_ends,
    values.value_overfitting,
    values.value_explains_nothing,
    data.normalizer_drift,
    progress.rise_then_collapse,
    progress.oscillation,
    progress.stuck_low,
    progress.no_progress,
    evaluation.evaluation_far_below_training,
    evaluation.evaluation_far_above_training,
    machine.resource_under_use,
)
ILLNESSES: dict[str, str] = {rule.__name__: (rule.__doc__ or "").strip() for rule in _ORDER}
"""Name of an illness → what it is. Those that cause others come first."""


def examine(rows: Iterable[Mapping[str, Any]], config: Mapping[str, Any] | None = None) -> list[Finding]:
    """What ails a run, causes before their effects; empty where nothing does, or too little is known.

    Args:
        rows: as in `metrics.jsonl`, in order of `env_steps`.
        config: the resolved configuration as plain data, for defaults and for overrides that fit it.
    """
    table, setup = Table(rows), Setup(config)
    found = (rule(table, setup) for rule in _ORDER)
    return [replace(finding, unit=setup.unit) for finding in found if finding is not None]


def statements(rows: Iterable[Mapping[str, Any]], config: Mapping[str, Any] | None = None) -> list[str]:
    """What should be said of a run also where nothing ails it, one sentence each.

    Args:
        rows, config: as in `examine`.
    """
    found = (offline.statement(Table(rows), Setup(config)),)
    return [text for text in found if text is not None]


def report(findings: Iterable[Finding], rows: int, statements: Iterable[str] = ()) -> str:
    """The findings as text, and what is to be said besides."""
    parts = [str(finding) for finding in findings]
    if not parts:
        parts.append(
            f"nothing found in {counted(rows, 'row', 'rows')} of figures"
            + ("; that is too few to tell much" if rows < 8 else ", as far as figures can tell")
        )
    return "\n\n".join([*parts, *statements])
