"""Critics: Q too large, values that fit too well and then jump, values that explain nothing."""

from __future__ import annotations

import numpy as np

from uniarena.analysis.doctor import remedies
from uniarena.analysis.doctor.finding import Change, Finding
from uniarena.analysis.doctor.progress import thrives
from uniarena.analysis.doctor.setup import Setup
from uniarena.analysis.doctor.table import Table, figure

TINY, JUMP, SURPRISE = 0.05, 20.0, 0.2
"""A value loss is tiny below this share of its early level, and jumps by this factor, to this share of it at least."""
BLIND = 0.05
RANDOM = 0.3
"""Share of random actions beyond which returns say little of Q."""


def q_overestimation(table: Table, setup: Setup) -> Finding | None:
    """Q is far above the return that follows, and the gap does not close."""
    over, real = table.series("health/value_bias"), table.series("health/return_realised")
    if setup.offline:
        return None  # a policy may well be better than the data; `offline` knows by how much
    if setup.on_policy or len(over) < 3 or len(over) != len(real):
        return None
    if setup.has("double") and table.series("health/exploration").part(0.67).median() > RANDOM:
        return None  # Q is of the greedy policy, and what followed is mostly chance
    late, middle, followed = over.part(0.67), over.part(0.33, 0.67), real.part(0.67)
    error = table.series("health/td_error_median").part(0.67).median()
    large = late.mean() > 0.5 * abs(followed.mean()) + 3.0 * (error if error == error else 0.0)
    diverged = late.mean() > 10.0 * float(np.abs(real.values).max()) + 10.0
    if not large or (late.mean() < 1.2 * middle.mean() and not diverged):
        return None
    changes = []
    if setup.has("double"):
        if not setup.learner("double"):
            changes.append(Change("learner.double=true", "chooses and judges by two networks"))
        if (setup.learner("target_interval") or 0) < 100:
            changes.append(_slow_targets(setup))
    else:
        if setup.number("n_critics", 2) < 2:
            changes.append(Change("learner.n_critics=2", "the smaller of two critics counts"))
        if setup.learner("target_reduce") != "min":
            changes.append(
                Change("learner.target_reduce=min", "the smaller of the critics counts in targets")
            )
        if setup.number("tau", 0.005) > 0.005:
            changes.append(Change("learner.tau=0.005", "targets follow more slowly"))
    changes += [remedies.slower(setup), remedies.clip_gradients(setup)]
    return Finding(
        "q_overestimation",
        "the critic promises much more than follows",
        (
            f"Q is {figure(late.mean())} above a realised return of {figure(followed.mean())}; "
            f"{figure(middle.mean())} above it in the middle of the run",
        ),
        (
            "maximising over noisy Q, with no second critic to hold it",
            "targets follow too fast, or the learning rate is too high",
            "actions that are never tried are thought to be good",
        ),
        tuple(changes),
        late.span,
    )


def value_overfitting(table: Table, setup: Setup) -> Finding | None:
    """The value loss becomes tiny, and then jumps, more than once."""
    loss, fit = table.series("value_loss"), table.series("explained_variance")
    if len(loss) < 20 or not len(fit) or thrives(table):
        return None
    early, jumps = float(np.median(loss.values[: max(5, len(loss) // 5)])), []
    for index in range(10, len(loss)):
        before = float(np.median(loss.values[index - 10 : index]))
        if before < TINY * early and loss.values[index] > max(JUMP * before, SURPRISE * early):
            jumps.append(index)
    bad = [
        i for i in jumps if fit.values[np.searchsorted(fit.steps, loss.steps[i]).clip(0, len(fit) - 1)] < 0.3
    ]
    if len(bad) < 2:
        return None
    at = bad[0]
    return Finding(
        "value_overfitting",
        "the value loss is tiny, and then jumps",
        (
            f"value loss {figure(early)} early; {figure(float(np.median(loss.values[at - 10 : at])))} before it jumps "
            f"to {figure(float(loss.values[at]))} at {loss.steps[at]:,} env steps; {len(bad)} such jumps, where values "
            "explain less than 30 % of returns",
        ),
        (
            "the critic learns its few rollouts by heart",
            "rewards that come rarely, and surprise it each time",
        ),
        (
            remedies.decay_weights(setup),
            *([remedies.less_value(setup), remedies.fewer_epochs(setup)] if setup.on_policy else []),
            remedies.slower(setup),
        ),
        (int(loss.steps[at]), int(loss.steps[bad[-1]])),
    )


def value_explains_nothing(table: Table, setup: Setup) -> Finding | None:
    """The critic of a policy gradient is no better than a constant in the later half of the run."""
    fit = table.series("explained_variance").part(0.5)
    if len(fit) < 5 or not fit.median() < BLIND or thrives(table):
        return None  # where all is solved, returns hardly differ, and there is nothing to explain
    if table.series("health/reward_zero").part(0.5).mean() > 0.995:
        return None
    changes = (
        []
        if setup.wrapped("normalize_reward")
        else [*remedies.smaller_rewards(setup, "returns of a size that values can reach")]
    )
    now = setup.number("learning_rate", 3e-4)
    changes.append(remedies.faster(setup) if now < 1e-4 else remedies.slower(setup))
    changes.append(remedies.shorter_traces(setup))
    return Finding(
        "value_explains_nothing",
        "values are no better than a constant",
        (f"explained variance {figure(fit.median())} (median of the later half; 1 is perfect)",),
        (
            "returns are of a size that the network reaches slowly",
            "the learning rate is far off, or λ so high that targets are noise",
            "observations do not hold what returns depend on",
        ),
        tuple(changes),
        fit.span,
    )


def _slow_targets(setup: Setup) -> Change:
    """Targets of a Q-network that stand still for 500 updates."""
    why = "targets that stand still between copies"
    if setup.learner("target_update_env_steps") is not None:
        return Change("learner.target_update_env_steps=2000", why)
    return Change("learner.target_update_updates=500", why)
