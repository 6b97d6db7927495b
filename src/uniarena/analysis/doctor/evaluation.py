"""Evaluation beside training: far below it, far above it."""

from __future__ import annotations

import numpy as np

from uniarena.analysis.doctor.finding import Change, Finding
from uniarena.analysis.doctor.setup import Setup
from uniarena.analysis.doctor.table import Table, figure

GAP = 0.4
"""Share of the whole range of returns."""


def _compare(table: Table) -> tuple[float, float, float, int] | None:
    """Last evaluated return, training return around it, range of all returns, env steps; None where one is missing."""
    evaluated, trained = table.series("eval/return_mean"), table.series("return_mean")
    if not len(evaluated) or len(trained) < 8:
        return None
    step = int(evaluated.steps[-1])
    near = trained.values[(trained.steps > step - 0.15 * table.end) & (trained.steps <= step)]
    if not len(near):
        return None
    size = float(np.ptp(np.concatenate((evaluated.values, trained.values))))
    return float(evaluated.values[-1]), float(np.mean(near)), size, step


def _modes(table: Table) -> list[str]:
    """What the other mode of the policy returned."""
    found = []
    for mode in ("stochastic", "deterministic"):
        other = table.series(f"eval_{mode}/return_mean")
        if len(other):
            found.append(
                f"{mode} evaluation: {figure(float(other.values[-1]))} at {other.steps[-1]:,} env steps"
            )
    return found


def evaluation_far_below_training(table: Table, setup: Setup) -> Finding | None:
    """The evaluated policy returns much less than the one that collects."""
    found = _compare(table)
    if found is None or not found[2] > 0.0 or found[1] - found[0] < GAP * found[2]:
        return None
    value, training, _, step = found
    return Finding(
        "evaluation_far_below_training",
        "the evaluated policy does much worse than the one that collects",
        (f"evaluation {figure(value)}, training {figure(training)} at {step:,} env steps", *_modes(table)),
        (
            "the mode of the policy is bad though its samples are good: the best policy is random, or is not sharp yet",
            "training and evaluation differ: noise of the explorer, wrappers, seeds, time limits",
            "few evaluation episodes",
        ),
        (
            Change("callbacks=[{type: evaluate, also_stochastic: true}]", "shows both modes each time"),
            Change("training.n_eval_episodes=50", "a mean of more episodes"),
            Change("callbacks=[{type: evaluate, deterministic: false}]", "where the best policy is random"),
        ),
        (step, step),
    )


def evaluation_far_above_training(table: Table, setup: Setup) -> Finding | None:
    """The collecting policy returns much less than the evaluated one at the end: exploration costs much."""
    found = _compare(table)
    if found is None or not found[2] > 0.0 or found[0] - found[1] < GAP * found[2]:
        return None
    value, training, _, step = found
    if step < 0.9 * max(setup.total, table.end):
        return None
    changes = [Change("", "nothing to mend if the evaluation is what counts")]
    if setup.on_policy:
        changes.insert(0, Change("learner.ent_coef=0", "less reward for randomness"))
    return Finding(
        "evaluation_far_above_training",
        "the policy does much worse while it explores than when it is evaluated",
        (f"evaluation {figure(value)}, training {figure(training)} at {step:,} env steps", *_modes(table)),
        ("exploration noise, ε or entropy is still high at the end", "training episodes are cut shorter"),
        tuple(changes),
        (step, step),
    )
