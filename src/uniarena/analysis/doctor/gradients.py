"""Gradients: dead or exploding, by layer; numbers that are none."""

from __future__ import annotations

import numpy as np

from uniarena.analysis.doctor import remedies
from uniarena.analysis.doctor.finding import Change, Finding
from uniarena.analysis.doctor.progress import thrives
from uniarena.analysis.doctor.setup import Setup
from uniarena.analysis.doctor.table import Table, figure

GRADIENT = "gradient/"
DEAD, ALIVE = 1e-9, 1e-5
SILENT = 0.9
GROWTH, HUGE = ((100.0, 10.0), (20.0, 1e3)), 1e6
"""Factors by which gradients grew, each with the least that they must have reached; and what is too large at once."""


def dead_gradients(table: Table, setup: Setup) -> Finding | None:
    """Layers that no gradient reaches while others learn, or hidden units that answer nothing."""
    layers = {
        name.removeprefix(GRADIENT): table.series(name).part(0.5).median()
        for name in table.names
        if name.startswith(GRADIENT)
    }
    dead = sorted(name for name, size in layers.items() if size < DEAD)
    alive = any(size > ALIVE for size in layers.values())
    silent, near = (table.series(f"health/{kind}_units") for kind in ("dead", "saturated"))
    evidence = []
    if dead and alive:
        evidence.append(f"no gradient in {', '.join(dead)}, up to {figure(max(layers.values()))} elsewhere")
    # where a task is solved, observations hardly differ, and units have nothing to tell apart
    units = ((silent, "ReLU units answer nothing"), (near, "bounded units stand at a bound"))
    solved = thrives(table)
    for share, kind in units:
        late = share.part(0.5).median()
        always = (
            len(share) >= 4 and share.part(0.0, 0.25).median() > SILENT
        )  # then it is no sign of a solved task
        if len(share) >= 3 and late > SILENT and (always or not solved):
            evidence.append(
                f"{100 * late:.0f} % of a layer's {kind}" + (", from the beginning on" if always else "")
            )
    if not evidence:
        return None
    changes = [remedies.slower(setup)]
    if not setup.wrapped("normalize_observation"):
        changes.append(
            remedies.wrapper(setup, "normalize_observation", "inputs that do not push units to one side")
        )
    changes.append(Change("agent.policy.activation=leaky_relu", "units that cannot die"))
    start = (
        silent.part(0.5) if len(silent) else table.series(*(f"{GRADIENT}{name}" for name in dead)).part(0.5)
    )
    return Finding(
        "dead_gradients",
        "parts of the network no longer learn",
        tuple(evidence),
        (
            "a step so large that units never answer again: the learning rate is too high",
            "inputs far from 0: observations are not normalised",
            "a part of the network that nothing depends on",
        ),
        tuple(changes),
        start.span if len(start) else None,
    )


def exploding_gradients(table: Table, setup: Setup) -> Finding | None:
    """Gradients grow by orders of magnitude."""
    norm = table.series("grad_norm", "value_grad_norm")
    if len(norm) < 8:
        return None
    early, late = norm.part(0.0, 0.25).median(), norm.part(0.75).median()
    largest = int(norm.values.argmax())
    grew = any(late > max(factor * early, least) for factor, least in GROWTH)
    if not (grew or norm.values[largest] > HUGE):
        return None
    layers = {
        name: table.series(name).part(0.75).median() for name in table.names if name.startswith(GRADIENT)
    }
    evidence = [
        f"gradient norm {figure(early)} early, {figure(late)} late, at most {figure(float(norm.values[largest]))} at "
        f"{norm.steps[largest]:,} {setup.unit}"
    ]
    if layers:
        worst = max(layers, key=lambda name: layers[name])
        evidence.append(f"largest in {worst.removeprefix(GRADIENT)}")
    scale = (
        ()
        if setup.wrapped("normalize_reward") or setup.clones
        else remedies.smaller_rewards(setup, "losses of a usual size")
    )
    return Finding(
        "exploding_gradients",
        "gradients grow by orders of magnitude",
        tuple(evidence),
        ("the learning rate is too high",)
        if setup.clones
        else ("targets that run away", "rewards of a large scale", "the learning rate is too high"),
        (remedies.clip_gradients(setup), remedies.slower(setup), *scale),
        (int(norm.steps[largest]), int(norm.steps[-1])),
    )


def not_a_number(table: Table, setup: Setup) -> Finding | None:
    """Figures that are NaN or infinite, beyond those that are so by nature."""
    found = [(step, [n for n in names if n != "explained_variance"]) for step, names in table.non_finite()]
    found = [(step, names) for step, names in found if names]
    if not found:
        return None
    step, names = found[0]
    return Finding(
        "not_a_number",
        "figures are not numbers any more",
        (f"{', '.join(names[:6])} at {step:,} {setup.unit}, the first of {len(found)} such rows",),
        ("an update that went much too far", "bad numbers in observations or rewards"),
        (
            remedies.slower(setup),
            remedies.clip_gradients(setup),
            Change("training.guard=rollback", "goes back to the last good state when it happens"),
        ),
        (step, int(np.max([each[0] for each in found]))),
    )
