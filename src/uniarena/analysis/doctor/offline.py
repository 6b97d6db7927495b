"""Runs from data alone: Q on the data beside the returns that are in it, and those that can be."""

from __future__ import annotations

import math
from collections.abc import Mapping

from uniarena.analysis.doctor import remedies
from uniarena.analysis.doctor.finding import Change, Finding
from uniarena.analysis.doctor.setup import Setup
from uniarena.analysis.doctor.table import Series, Table, figure

BEYOND = 0.05
"""Of the range of returns: by so much Q may be outside of it, since networks are never exact; above it by no more than
what lies between the mean and the best return of the data."""
NEAR = 0.02
"""Of the size of a return: by so much Q may be beside it in any case. Where every step pays the same and nothing ends,
all returns are one number, and no network gives exactly that."""
WAY = 0.02
"""Q begins near 0. While it is between 0 and the bounds and grows towards them by more than this share of its size from
before the last third of the run to the last, it is on its way."""
ABOVE = 0.1
"""Of the way from the mean to the best return of the data: by so much the mean of Q may be above the best."""
FALLING = 0.1
"""Q begins near 0. Where returns are negative it comes from above, and is on its way while it falls from the middle
third of the run to the last by more than this share of its size."""
WHO = {"health/data_q": "the data's actions", "health/data_q_policy": "the policy's actions"}


def offline_q_diverged(table: Table, setup: Setup) -> Finding | None:
    """Q on the data is outside of what rewards such as the data's can add up to."""
    found, (low, high) = [], _range(table)
    for name, who in WHO.items():
        late = _late(table, name)
        if len(late) and _outside(table, late.mean()) and not _on_its_way(table, name):
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
        if (
            not len(middle)
            or _on_its_way(table, name)
            or middle.mean() - late.mean() > FALLING * abs(late.mean())
        ):
            continue
        if late.mean() > best + max(ABOVE * (best - mean), NEAR * (abs(best) or 1.0)):
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


def rises(table: Table) -> bool:
    """Whether Q of the data's actions is short of the returns that can be, and still grows towards them."""
    late = _late(table, "health/data_q")
    grew = _before(table, "health/data_q")
    return len(grew) > 0 and _outside(table, late.mean()) and _on_its_way(table, "health/data_q")


def too_short(table: Table, setup: Setup) -> tuple[tuple[str, ...], tuple[Change, ...]]:
    """The cause, and the change, of a run from data that is too short; nothing where it is long enough."""
    if not setup.offline or not (setup.short or rises(table)):
        return (), ()
    said = "Q has not arrived at the returns that can be, and still grows" if rises(table) else "few updates"
    return (f"the run is too short: {said}",), (remedies.longer(setup),)


def statement(table: Table, setup: Setup) -> str | None:
    """One sentence about Q on the data, or why it is not known; None where a run is not from data."""
    q, policy = (_late(table, name).mean() for name in WHO)
    if math.isnan(q):
        return f"Q on the data was not measured: {_unmeasured(setup)}" if setup.offline else None
    low, high = _range(table)
    mean, best = _seen(table)
    parts = {"on average": mean, "at best": best}
    had = " and ".join(f"{figure(value)} {where}" for where, value in parts.items() if math.isfinite(value))
    parts = {"its actions": q, "the policy's": policy}
    said = ", ".join(f"{figure(value)} of {whose}" for whose, value in parts.items() if math.isfinite(value))
    returns = [f"are {had}"] if had else []
    returns += [f"can be {_told(low, high)}"] if math.isfinite(high - low) else []
    return f"Q on the data: {said}" + (f"; returns in the data {', and '.join(returns)}" if returns else "")


def _unmeasured(setup: Setup) -> str:
    """Why a run from data has no figures of it."""
    watched = [
        each for each in setup.callbacks if isinstance(each, Mapping) and each.get("type") == "monitor"
    ]
    if setup.clones:
        return f"{setup.algorithm} learns no Q"
    if any(each.get("networks") is False for each in watched):
        return "the callback monitor has networks: false"
    if setup.section("agent").get("memory"):
        return "a policy with memory has no Q of a single row"
    return "the learner has no Q, or the run has neither ended nor come to a look of the callback monitor"


def _late(table: Table, name: str) -> Series:
    """The last third of a figure, its last value at least."""
    series = table.series(name)
    return series.part(0.67) if len(series) > 1 else series


def _before(table: Table, name: str) -> Series:
    """The middle third, the value before the last third at least; empty where there is one value alone."""
    series = table.series(name)
    return series.part(0.33, 0.67) if len(series) > 2 else series.part(0.0, 0.5)


def _outside(table: Table, q: float) -> bool:
    """Whether Q is not among the returns that can be, by more than networks are inexact."""
    (low, high), (mean, best) = _range(table), _seen(table)
    if not math.isfinite(high - low):
        return False
    near = NEAR * (max(abs(low), abs(high)) or 1.0)
    below = BEYOND * (high - low)
    above = min(below, best - mean) if best > mean else below
    return not low - max(below, near) <= q <= high + max(above, near)


def _on_its_way(table: Table, name: str) -> bool:
    """Whether Q is between 0 and the returns that can be, and grows towards them, as far as anybody saw."""
    late, before, (low, high) = _late(table, name).mean(), _before(table, name), _range(table)
    if not (0.0 <= late < low or high < late <= 0.0):
        return False
    return not len(before) or abs(late) - abs(before.mean()) > WAY * abs(late)


def _seen(table: Table) -> tuple[float, float]:
    """Mean and best return of the data; NaN where it is not known."""
    mean, best = (_late(table, f"health/data_return{name}").mean() for name in ("", "_best"))
    return mean, best


def _range(table: Table) -> tuple[float, float]:
    low, high = (_late(table, f"health/data_return_{end}").mean() for end in ("low", "high"))
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
            why = "learns from data without valuing actions that it lacks, or holds them low"
            changes.append(remedies.learner(setup, other, why))
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
