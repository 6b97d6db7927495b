"""Runs from data alone: Q on the data beside the returns that are in it, and those that can be."""

from __future__ import annotations

import math

from uniarena.analysis.doctor import remedies
from uniarena.analysis.doctor.finding import Change, Finding
from uniarena.analysis.doctor.setup import Setup
from uniarena.analysis.doctor.table import Series, Table, figure

BEYOND = 0.05
"""Of the range of returns: by so much Q may be outside of it, since networks are never exact; above it by no more than
what lies between the mean and the best return of the data."""
ABOVE = 0.1
"""Of the way from the mean to the best return of the data: by so much the mean of Q may be above the best."""
FALLING = 0.1
"""Q begins near 0. Where returns are negative it comes from above, and is on its way while it falls from the middle
third of the run to the last by more than this share of its size."""
WHO = {"health/data_q": "the data's actions", "health/data_q_policy": "the policy's actions"}


def offline_q_diverged(table: Table, setup: Setup) -> Finding | None:
    """Q on the data is outside of what rewards such as the data's can add up to."""
    found = []
    for name, who in WHO.items():
        late = table.series(name).part(0.67)
        low, high = _range(table)
        mean, best = _seen(table)
        below = BEYOND * (high - low)
        above = min(below, best - mean) if best > mean else below
        if len(late) and not low - below <= late.mean() <= high + above:
            found.append((late, f"Q of {who} is {figure(late.mean())}; returns are {_told(low, high)}"))
    if not found:
        return None
    return _finding(
        "offline_q_diverged",
        "Q left the range that returns can have",
        tuple(said for _, said in found),
        found[0][0],
        setup,
    )


def offline_q_overestimation(table: Table, setup: Setup) -> Finding | None:
    """Q on the data is, on average over all places, above the best return that any place of the data has."""
    if offline_q_diverged(table, setup) is not None:
        return None
    mean, best = _seen(table)
    if math.isnan(mean) or math.isnan(best):
        return None
    found = []
    for name, who in WHO.items():
        middle, late = table.series(name).part(0.33, 0.67), table.series(name).part(0.67)
        if not len(middle) or middle.mean() - late.mean() > FALLING * abs(late.mean()):
            continue
        if late.mean() > best + ABOVE * (best - mean):
            found.append((late, f"Q of {who} is {figure(late.mean())} on average"))
    if not found:
        return None
    seen = f"the best return in the data is {figure(best)}, the mean {figure(mean)}"
    return _finding(
        "offline_q_overestimation",
        "Q promises more everywhere than was ever had anywhere",
        (*(said for _, said in found), seen),
        found[0][0],
        setup,
    )


def statement(table: Table) -> str | None:
    """One sentence about Q on the data; None where a run has no such figures."""
    q = table.series("health/data_q").part(0.67)
    if not len(q):
        return None
    low, high = _range(table)
    policy, mean, best = (
        table.series(f"health/{name}").part(0.67).mean()
        for name in ("data_q_policy", "data_return", "data_return_best")
    )
    return (
        f"Q on the data: {figure(q.mean())} of its actions, {figure(policy)} of the policy's; returns in the data are "
        f"{figure(mean)} on average and {figure(best)} at best, and can be {_told(low, high)}"
    )


def _seen(table: Table) -> tuple[float, float]:
    """Mean and best return of the data; NaN where it is not known."""
    mean, best = (table.series(f"health/data_return{name}").part(0.67).mean() for name in ("", "_best"))
    return mean, best


def _range(table: Table) -> tuple[float, float]:
    low, high = (table.series(f"health/data_return_{end}").part(0.67).mean() for end in ("low", "high"))
    return (low, high) if low == low and high == high else (-math.inf, math.inf)


def _told(low: float, high: float) -> str:
    return f"{figure(low)} to {figure(high)}"


def _finding(name: str, symptom: str, evidence: tuple[str, ...], late: Series, setup: Setup) -> Finding:
    """What both illnesses have in common: where they come from, and what holds Q."""
    changes = []
    if setup.has("behaviour_weight"):
        now = setup.number("behaviour_weight", 0.0)
        value = 1.0 if now < 1.0 else 4 * now
        changes.append(
            Change(f"learner.behaviour_weight={value:g}", f"holds the policy near the data; it is {now:g}")
        )
    if setup.has("conservative"):
        changes.append(_conservative(setup))
    box = setup.has("policy_learning_rate") or setup.has("policy_update_every")
    if not any("behaviour_weight" in change.override for change in changes):
        other = "iql" if box or not setup.has("double") else "discrete_cql"
        if setup.algorithm != other:
            changes.append(
                Change(
                    f"learner.type={other}",
                    "learns from data without valuing actions that it lacks, or holds them low",
                )
            )
    changes.append(remedies.slower(setup))
    return Finding(
        name,
        symptom,
        evidence,
        (
            "actions that the data lacks are thought to be good, and nothing ever shows that they are not",
            "the learner is made for experience of its own, or its constraint to the data is too weak",
            "targets follow too fast, or the learning rate is too high",
        ),
        tuple(changes),
        late.span,
    )


def _conservative(setup: Setup) -> Change:
    """A larger weight of the conservative penalty, or one where there is none."""
    now = setup.learner("conservative")
    if isinstance(now, int | float):  # of discrete actions
        value = 1.0 if now < 1.0 else 4 * float(now)
        return Change(
            f"learner.conservative={value:g}", f"keeps actions that the data lacks low; it is {now:g}"
        )
    weight = getattr(now, "weight", None) or (now.get("weight") if isinstance(now, dict) else None)
    value = 5.0 if weight is None else 2 * float(weight)
    said = "there is none" if weight is None else f"it is {float(weight):g}"
    return Change(
        f"learner.conservative={{weight: {value:g}}}", f"keeps actions that the data lacks low; {said}"
    )
