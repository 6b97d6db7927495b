"""What the networks learn from: episodes, rewards, bonuses, normalisers."""

from __future__ import annotations

import numpy as np

from uniarena.analysis.doctor import remedies
from uniarena.analysis.doctor.finding import Change, Finding
from uniarena.analysis.doctor.setup import Setup
from uniarena.analysis.doctor.table import Table, figure

LARGE, SMALL = 1e3, 1e-2
"""Discounted returns beyond these are of a scale that default settings are not made for."""


def episodes_of_length_one(table: Table, setup: Setup) -> Finding | None:
    """Episodes end with their first step."""
    length = table.series("length_mean")
    if len(length) < 2 or not length.median() <= 1.05:
        return None
    return Finding(
        "episodes_of_length_one",
        "episodes end with their first step",
        (f"mean length {figure(length.median())} (median over {len(length)} iterations)",),
        (
            "the environment says terminated at once: a start that is outside of its own limits, a flag the wrong way",
            "actions in another unit than the environment expects",
            "an environment that is reset after every step by a wrapper",
        ),
        (
            Change("", "run `uniarena check-env` on it, and step it by hand with a fixed action"),
            Change(
                "environment.wrappers=[rescale_action]", "where actions are in [-1, 1] and the bounds are not"
            ),
            Change("", "nothing to mend where the task is of one step by intent"),
        ),
        length.span,
    )


def intrinsic_reward_dominates(table: Table, setup: Setup) -> Finding | None:
    """What is paid for novelty outweighs the task's reward."""
    share, zeros = table.series("health/intrinsic_share"), table.series("health/reward_zero").part(0.5)
    if len(share) < 2 or share.part(0.5).median() < 0.6 or (len(zeros) and zeros.median() > 0.99):
        return None
    return Finding(
        "intrinsic_reward_dominates",
        "bonuses outweigh the task's own reward",
        (f"bonuses are {100 * share.part(0.5).median():.0f} % of what is paid (median of the later half)",),
        ("the weight of the bonus is too high beside this reward", "a bonus that does not fade"),
        remedies.less_intrinsic(setup),
        share.part(0.5).span,
    )


def reward_scale_off(table: Table, setup: Setup) -> Finding | None:
    """Discounted returns, as the learner is paid, are far from 1."""
    real = table.series("health/return_realised")
    paid, zeros = table.series("health/reward_max"), table.series("health/reward_zero")
    sizes = np.abs(real.part(0.3).values)
    if len(real) < 2 or setup.wrapped("normalize_reward"):
        return None
    size = float(np.median(sizes))
    small = size < SMALL and len(paid) and 0.0 < paid.median() < SMALL and zeros.median() < 0.9
    reach = paid.median() / max(1.0 - setup.number("gamma", 0.99), 1e-6)
    large = size > LARGE and not reach < LARGE  # else it is the values that are out of scale
    if not (large or small):
        return None
    factor = 10.0 ** -round(np.log10(max(size, 1e-12) / 10.0))
    return Finding(
        "reward_scale_off",
        f"rewards are of a scale that the defaults are not made for: too {'large' if large else 'small'}",
        (
            f"discounted returns of {figure(size)} (median magnitude), rewards of up to {figure(paid.median())}; "
            "1 to 100 is usual",
        ),
        ("the environment's unit of reward", "a discount so near 1 that sums grow large"),
        (Change("", f"multiply the rewards of the data by {factor:g}, and learn from the copy"),)
        if setup.offline
        else (
            remedies.wrapper(setup, "normalize_reward", "divides by the running deviation of returns"),
            remedies.wrapper(setup, f"{{type: scale_reward, scale: {factor:g}}}", "or a fixed factor"),
        ),
        real.part(0.3).span,
    )


def normalizer_drift(table: Table, setup: Setup) -> Finding | None:
    """The observation normaliser keeps moving, or clips much of what comes."""
    shift, clipped = (
        table.series("health/normalizer_shift").part(0.5),
        table.series("health/obs_clipped").part(0.5),
    )
    moving = len(shift) >= 2 and shift.median() > 0.1
    cut = len(clipped) >= 2 and clipped.median() > 0.05
    if not (moving or cut):
        return None
    evidence = [f"the mean moves by {figure(shift.median())} deviations an iteration"] if moving else []
    evidence += [f"{100 * clipped.median():.0f} % of normalised entries are clipped"] if cut else []
    if setup.offline:  # it stands still, at the data's statistics
        return Finding(
            "normalizer_drift",
            "many entries of the data's observations are far from all others",
            tuple(evidence),
            (
                "an observation entry that grows without end, such as a clock or a position",
                "one wild episode",
            ),
            (
                remedies.inspect(setup, "it says the range of every entry"),
                Change("", "leave such entries or episodes out of the data, or make them relative"),
            ),
            clipped.span,
        )
    return Finding(
        "normalizer_drift",
        "the observation normaliser does not come to rest",
        tuple(evidence),
        (
            "an observation entry that grows without end, such as a clock or a position",
            "one wild episode that stretched the statistics",
        ),
        (
            Change(
                "", "leave such entries out or make them relative; a wrapper of your own, or the environment"
            ),
            Change("environment.max_episode_steps=1000", "where they grow with the length of an episode"),
        ),
        (shift if moving else clipped).span,
    )
