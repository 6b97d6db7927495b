"""Policies: moved too far or not at all, collapsed, saturated, exploring for ever, a temperature that runs away."""

from __future__ import annotations

import numpy as np

from uniarena.analysis.doctor import offline, remedies
from uniarena.analysis.doctor.finding import Change, Finding
from uniarena.analysis.doctor.progress import thrives
from uniarena.analysis.doctor.setup import Setup
from uniarena.analysis.doctor.table import Series, Table, figure

KL_FACTOR, KL_MOST, CLIPPED = 1.5, 0.3, 0.6
"""An update went too far where KL exceeds this many clip ranges, or this, or this share of ratios is clipped."""
KL_LASTING = 0.06
"""Half of all updates beyond this are too far as well: those of healthy runs move the policy by 0.005 to 0.03."""
TIMID, IDLE, STILL = 2e-4, 2e-5, 1e-3
"""KL of a whole update below which nothing is learned: where the return does not rise, and in any case; off-policy, how
far parameters move in an iteration, relative to their size (healthy ones by 0.005 to 0.5)."""
NOISY = frozenset({"gaussian_noise", "ornstein_uhlenbeck"})
"""Explorers whose level is in half widths of the bounds of actions."""
MOVED = 0.02
"""KL of a whole update that is not timid: a policy that has moved so far and stands still now is spent."""


def kl_too_high(table: Table, setup: Setup) -> Finding | None:
    """Updates move the policy far beyond what clipping means to allow."""
    kl, clipped = table.series("kl", "health/kl_update"), table.series("clip_fraction")
    if not len(kl):
        return None
    bound = max(min(KL_FACTOR * setup.number("clip_range", 0.2), KL_MOST), 0.05)
    if len(kl) >= 8 and kl.median() > KL_LASTING:
        bound = min(bound, KL_LASTING)
    far = set(kl.steps[kl.values > bound].tolist()) | set(clipped.steps[clipped.values > CLIPPED].tolist())
    if len(far) < max(2, 0.1 * len(kl)) and not (len(kl) < 10 and len(far) > 1):
        return None
    largest = int(kl.values.argmax())
    evidence = [
        f"KL {figure(float(kl.values[largest]))} at {kl.steps[largest]:,} {setup.unit}, bound {bound:g}; "
        f"{len(far)} of {len(kl)} updates went too far"
    ]
    if len(clipped):
        evidence.append(f"up to {100 * float(clipped.values.max()):.0f} % of ratios clipped")
    changes = [remedies.slower(setup)]
    if setup.on_policy:
        changes += [remedies.kl_stop(setup), remedies.clip(setup), remedies.fewer_epochs(setup)]
    return Finding(
        "kl_too_high",
        "updates move the policy much too far",
        tuple(evidence),
        (
            "the learning rate is too high",
            "too many epochs on one rollout, and no stop by KL",
            "a standard deviation that shrank, so that small moves are large ones",
        ),
        tuple(changes),
        (min(far), max(far)),
    )


def updates_too_timid(table: Table, setup: Setup) -> Finding | None:
    """Updates hardly change the policy, from the beginning on."""
    early = table.series("health/kl_update").part(0.0, 0.5)
    if setup.on_policy:
        if len(early) < 2 or float(early.values.max()) > MOVED:
            return None
        level, bound = early.median(), IDLE if thrives(table) else TIMID
        what = "KL between the policies before and after an update"
    else:
        moves = table.series("health/update_ratio")
        early = moves.part(0.0, 0.7)
        if len(moves) < 2 or thrives(table):
            return None
        level, bound, what = (
            early.median(),
            STILL,
            "move of the parameters in an iteration, relative to their size",
        )
    if not level < bound:
        return None
    changes = [remedies.faster(setup)]
    if setup.on_policy:
        changes.append(remedies.more_epochs(setup))
    length, more = offline.too_short(table, setup)
    return Finding(
        "updates_too_timid",
        "updates hardly change the policy",
        (f"{what}: {level:.2g} (median of the earlier part), expected above {bound:g}",),
        (
            *length,
            "the learning rate is too low",
            "gradients are clipped to almost nothing",
            *([] if setup.offline else ["too few epochs or updates"]),
        ),
        (*more, *changes),
        early.span,
    )


def entropy_collapse(table: Table, setup: Setup) -> Finding | None:
    """The policy became certain while its return did not become good."""
    share, std = table.series("health/entropy_share"), table.series("exploration_std")
    if thrives(table) is not False:
        return None
    if len(share) >= 2 and share.part(0.5).median() < 0.05:
        gone, name = _first_below(share, 0.05), "entropy as a share of the largest"
    elif len(std) >= 4 and std.part(0.5).median() < 0.1 * float(std.values[0]):
        gone, name = _first_below(std, 0.1 * float(std.values[0])), "standard deviation of actions"
    else:
        return None
    value = (share if name.startswith("entropy") else std).part(0.5).median()
    return Finding(
        "entropy_collapse",
        "the policy became certain without having become good",
        (f"{name}: {figure(value)} in the later half, low since {gone:,} {setup.unit}",),
        (
            "it follows data whose actions leave no choice, which do not lead far",
            "the data is known by heart: more updates than it bears",
        )
        if setup.offline
        else (
            "updates too large early on: chance decided",
            "no reward for entropy",
            "advantages of huge variance",
        ),
        _less_certain(setup),
        (gone, table.end),
    )


def saturated_actions(table: Table, setup: Setup) -> Finding | None:
    """Nearly all actions are at their bounds."""
    share = table.series("health/action_saturation").part(0.5)
    bound = 0.95 if thrives(table) else 0.7
    if len(share) < 2 or not share.median() > bound:
        return None
    changes = [remedies.slower(setup)]
    if setup.on_policy:
        changes.insert(0, Change("agent.policy.log_std_init=-1", "begins with smaller actions"))
    elif setup.offline:
        changes.insert(0, remedies.inspect(setup, "where its actions are at their bounds, leave it"))
    else:
        changes.append(remedies.wrapper(setup, "normalize_reward", "smaller gradients of Q push less"))
    return Finding(
        "saturated_actions",
        "nearly all actions are at their bounds",
        (f"{100 * share.median():.0f} % of action components at a bound (median of the later half)",),
        (
            *(
                ["the data's own actions are at their bounds, and the policy follows"]
                if setup.offline
                else []
            ),
            "the network's output runs away: learning rate or reward scale too large",
            *([] if setup.offline else ["a standard deviation wider than the bounds"]),
            "the task may want it so (bang-bang control); then leave it",
        ),
        tuple(changes),
        share.span,
    )


def exploration_never_ends(table: Table, setup: Setup) -> Finding | None:
    """At the end of the run the policy still acts at random for a large part."""
    level, share = table.series("health/exploration"), table.series("health/entropy_share")
    std, entropy = table.series("exploration_std"), setup.number("ent_coef", 0.0)
    if setup.offline or table.end < 0.8 * max(setup.total, 1):
        return None  # from data alone nobody explores
    if "epsilon" in _explorer(setup) and len(level) and level.values[-1] >= 0.2:
        said, change = f"ε is {level.values[-1]:.2g} at the end", remedies.linear_epsilon(setup)
    elif _explorer(setup) in NOISY and len(level) and level.values[-1] >= 0.5:
        said = f"noise of {level.values[-1]:.2g} half widths of the bounds is added to actions at the end"
        change = Change("agent.explorer.sigma=0.1", "a tenth of the half width is usual")
    elif len(share) >= 3 and share.part(0.67).median() > (0.97 if entropy < 0.1 else 0.9) and entropy >= 0.02:
        said = f"entropy is {100 * share.part(0.67).median():.0f} % of the largest there can be, at the end"
        change = remedies.less_entropy(setup)
    elif len(std) >= 5 and std.values[-1] > max(2.0 * std.values[0], 2.0):
        said = f"the standard deviation of actions grew from {std.values[0]:.2g} to {std.values[-1]:.2g}"
        change = remedies.less_entropy(setup)
    else:
        return None
    return Finding(
        "exploration_never_ends",
        "the policy still acts at random for a large part when the run ends",
        (said,),
        ("a schedule that ends too late or too high", "randomness is paid better than the task"),
        (change,),
        (int(0.9 * table.end), table.end),
    )


def temperature_runs_away(table: Table, setup: Setup) -> Finding | None:
    """The temperature of a maximum-entropy learner grows without bound: its entropy target cannot be reached."""
    alpha, entropy = table.series("alpha"), table.series("entropy")
    if len(alpha) < 3:
        return None
    first, last = float(np.median(alpha.values[: max(1, len(alpha) // 5)])), float(alpha.values[-1])
    if not (last > 20.0 and last > 10.0 * min(first, 1.0) and last >= 0.5 * alpha.part(0.5).median()):
        return None
    return Finding(
        "temperature_runs_away",
        "the temperature grows and grows: the wanted entropy cannot be reached",
        (
            f"alpha from {figure(first)} to {figure(last)}"
            + (f", entropy {figure(float(entropy.values[-1]))} nats at the end" if len(entropy) else ""),
        ),
        (
            "learner.target_entropy is above what any useful policy here has (0.98 log n for few actions, tiny bounds)",
            "rewards so large that only a huge temperature counts beside them",
        ),
        (
            Change("learner.target_entropy=auto", "the default, which can be reached"),
            Change("learner.alpha=0.2", "a fixed temperature"),
            *remedies.smaller_rewards(setup, "rewards near 1"),
        ),
        alpha.part(0.5).span,
    )


def _less_certain(setup: Setup) -> tuple[Change, ...]:
    """What keeps a policy from certainty."""
    if setup.offline:
        return remedies.stop_in_time(setup), remedies.decay_weights(setup), remedies.slower(setup)
    if not setup.on_policy:
        return (remedies.slower(setup),)
    return (
        remedies.more_entropy(setup),
        remedies.slower(setup),
        remedies.shorter_traces(setup),
        remedies.kl_stop(setup),
    )


def _first_below(series: Series, bound: float) -> int:
    return int(series.steps[int(np.argmax(series.values < bound))])


def _explorer(setup: Setup) -> str:
    """The kind of the explorer: as named, or as the learner brings it."""
    named = setup.section("agent").get("explorer") or {}
    kind = named.get("type") if hasattr(named, "get") else str(named)
    if kind:
        return str(kind)
    return "epsilon_greedy" if setup.has("double") else ""
