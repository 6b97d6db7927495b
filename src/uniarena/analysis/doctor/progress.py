"""How the return went: no progress, oscillation, rise then collapse, stuck low."""

from __future__ import annotations

import numpy as np

from uniarena.analysis.doctor import offline, remedies
from uniarena.analysis.doctor.finding import Change, Finding
from uniarena.analysis.doctor.setup import Setup
from uniarena.analysis.doctor.table import Course, Table, course, figure, returns

COLLAPSE = 0.5
"""Share of the gain that must be lost at the end."""
SWING, SWINGS = 0.35, 5
"""Share of the whole range that a swing must have, and how many make an oscillation: more than learning, one dip and
the way out of it."""


_TOO_LONG = (
    "the data is known by heart: more updates than it bears",
    "the critic values actions that the data lacks, and the policy takes them",
)
_ONE_SIDED = (
    "the critic learns a value that later experience refutes",
    "exploration ended, and experience became one-sided",
)
_NOT_FOUND = (
    "the reward is too rare to be found by chance: what leads to it must be explored",
    "the policy settled before it had seen anything better",
)
_NOT_IN_DATA = (
    "the data has few episodes that do better, or none",
    "where it acts otherwise than the data, the policy comes to places that the data lacks",
)


def thrives(table: Table) -> bool | None:
    """Whether the return rose, and most of the gain is kept; None where that cannot be told."""
    found = course(returns(table))
    if found is None:
        return None
    return found.rose and float(found.means.max() - found.means[-1]) < COLLAPSE * found.gain


def _met(found: Course, setup: Setup) -> bool:
    """Whether the return is as good as it need be."""
    goal = setup.solved_at()
    return goal is not None and float(found.means.max()) >= goal - 0.1 * abs(goal)


def no_progress(table: Table, setup: Setup) -> Finding | None:
    """The return of the run's best part is no better than that of its beginning."""
    series = returns(table)
    found = course(series)
    if found is None or found.rose or series.values.std() == 0.0 or _met(found, setup):
        return None
    changes = [_other_rate(setup)]
    if not setup.wrapped("normalize_observation"):
        changes.append(_normalise(setup))
    if setup.on_policy:
        changes += [remedies.more_entropy(setup), remedies.larger_batch(setup)]
    if setup.offline:
        changes.insert(0, remedies.inspect(setup, "it says what its episodes return"))
    length, more = offline.too_short(table, setup)
    return Finding(
        "no_progress",
        "the return is no better than at the start",
        (
            f"return {figure(found.means[0])} at first, {figure(float(found.means[1:].max()))} at best later, "
            f"noise of such a mean {figure(found.noise)}",
            *_still(table),
        ),
        (
            *length,
            "the learning rate is far off",
            "inputs or rewards of a size that the network cannot take",
            "the data shows nothing better, or all there is to learn of it was learned at once"
            if setup.offline
            else "too little exploration, or a reward that says nothing of what is done",
        ),
        (*more, *changes),
        series.span,
    )


def stuck_low(table: Table, setup: Setup) -> Finding | None:
    """Every episode returns the same, or the return stays far below the goal that the environment names."""
    series = returns(table)
    found = course(series)
    if found is None or _met(found, setup):
        return None
    zeros = table.series("health/reward_zero").part(0.5)
    same = len(series) >= 8 and float(np.ptp(series.part(0.25).values)) == 0.0
    silent = len(zeros) >= 1 and zeros.mean() > 0.995
    goal = setup.solved_at()
    later = found.means[len(found.means) // 2 :]
    flat = goal is not None and float(np.ptp(later)) < 0.1 * (goal - found.means[0]) and len(series) >= 16
    low = (
        goal is not None
        and found.rose
        and flat
        and found.means[-1] - found.means[0] < 0.5 * (goal - found.means[0])
    )
    if not (same or silent or low):
        return None
    evidence = [f"return {figure(float(found.means[-1]))} at the end" + (f", goal {goal:g}" if goal else "")]
    if len(zeros):
        evidence.append(f"{100 * zeros.mean():.1f} % of rewards are 0")
    length, more = offline.too_short(table, setup)
    return Finding(
        "stuck_low",
        "every episode returns the same" if same else "the return stays low",
        (*evidence, *_still(table)),
        (
            *length,
            *(_NOT_IN_DATA if setup.offline else _NOT_FOUND),
            "observation entries that never change or were filtered out: what matters is not seen",
            "the network is too small for the task",
        ),
        (*more, *_upwards(setup)),
        series.part(0.25).span,
    )


def _upwards(setup: Setup) -> tuple[Change, ...]:
    """What helps a return that stays low."""
    if setup.offline:
        more = "records more that succeeds, by another agent or a person, and adds it to the data"
        return (
            remedies.inspect(setup, "it says what its episodes return"),
            remedies.best_episodes(setup),
            remedies.wider(setup),
            Change("", f"where hardly an episode does well: whoever can {more}"),
        )
    easier = "make the task easier first (shorter, denser reward), and look at what the observation holds"
    return (
        Change("agent.intrinsic=rnd", "a bonus for what is new, weight 0.5"),
        *([remedies.more_entropy(setup)] if setup.on_policy else []),
        remedies.wider(setup),
        Change("", easier),
    )


def rise_then_collapse(table: Table, setup: Setup) -> Finding | None:
    """The return rose, and most of the gain is lost at the end."""
    series = returns(table)
    found = course(series)
    if found is None or not found.rose:
        return None
    best = int(found.means.argmax())
    lost = float(found.means[best] - found.means[-1])
    if best == 0 or lost < COLLAPSE * found.gain or lost < 4.0 * found.noise:
        return None
    changes = [remedies.slower(setup)]
    if setup.on_policy:
        changes += [remedies.kl_stop(setup), remedies.fewer_epochs(setup), remedies.clip(setup)]
    changes.append(remedies.stop_in_time(setup))
    return Finding(
        "rise_then_collapse",
        "the return rose, and then fell back",
        (
            f"return {figure(found.means[0])} at first, {figure(found.means[best])} near "
            f"{figure(found.steps[best])} {setup.unit}, {figure(found.means[-1])} at the end",
        ),
        (
            "updates move the policy too far: learning rate" + ("" if setup.offline else ", epochs"),
            *(_TOO_LONG[: 1 if setup.clones else 2] if setup.offline else _ONE_SIDED),
        ),
        tuple(changes),
        (int(found.steps[best]), int(series.steps[-1])),
    )


def oscillation(table: Table, setup: Setup) -> Finding | None:
    """The return goes up and down through a large part of its range, again and again."""
    series = returns(table)
    found = course(series, blocks=20, least=24)
    if found is None:
        return None
    means, size = found.means, float(np.ptp(found.means))
    turns = _turning_points(means, SWING * size)
    if size == 0.0 or len(turns) < SWINGS + 1 or SWING * size < 4.0 * found.within:
        return None
    changes = [remedies.slower(setup)]
    if setup.on_policy:
        changes += [remedies.clip(setup), remedies.larger_batch(setup), remedies.shorter_traces(setup)]
    else:
        changes.append(remedies.larger_batch(setup))
    return Finding(
        "oscillation",
        f"the return swings {len(turns) - 1} times through more than {SWING:.0%} of its range",
        (f"turns at {', '.join(figure(means[t]) for t in turns[:8])}",),
        (
            "updates overshoot: the learning rate is too high",
            "batches are too small" + ("" if setup.offline else ", or advantages too noisy"),
        ),
        tuple(changes),
        series.span,
    )


def _turning_points(means: np.ndarray, least: float) -> list[int]:
    """Indices of highs and lows in turn, each at least `least` from the one before; the ends may be among them."""
    turns: list[int] = []
    rising, low, high = 0, 0, 0  # of the leg that goes on: 1 up, -1 down, 0 not known yet
    for index in range(1, len(means)):
        low = index if means[index] < means[low] else low
        high = index if means[index] > means[high] else high
        if rising >= 0 and means[high] - means[index] >= least:
            turns.append(high)
            rising, low = -1, index
        elif rising <= 0 and means[index] - means[low] >= least:
            turns.append(low)
            rising, high = 1, index
    return [*turns, high if rising > 0 else low] if turns else []


def _other_rate(setup: Setup) -> Change:
    return remedies.faster(setup) if setup.number("learning_rate", 3e-4) < 1e-4 else remedies.slower(setup)


def _normalise(setup: Setup) -> Change:
    return remedies.wrapper(setup, "normalize_observation", "inputs of mean 0 and deviation 1")


def _still(table: Table) -> tuple[str, ...]:
    still = table.series("health/obs_still").part(0.5)
    if not len(still) or still.median() == 0.0:
        return ()
    return (f"{100 * still.median():.0f} % of observation entries do not change",)
