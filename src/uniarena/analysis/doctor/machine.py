"""What the run makes of the machine."""

from __future__ import annotations

from uniarena.analysis.doctor.finding import Change, Finding
from uniarena.analysis.doctor.setup import Setup
from uniarena.analysis.doctor.table import Table, figure

IDLE = 50.0
"""Percent of one core below which a run mostly waits."""


def resource_under_use(table: Table, setup: Setup) -> Finding | None:
    """The run waits for something other than its own arithmetic, on a machine that is free."""
    cpu, load, fps = (table.series(name) for name in ("system/cpu_percent", "system/load", "fps"))
    if (
        len(cpu) < 5
        or not cpu.median() < IDLE
        or str(setup.section("training").get("device", "")).startswith("cuda")
    ):
        return None
    if not len(load) or load.median() > 0.7:  # others use it, or nobody knows
        return None
    idle = f"{cpu.median():.0f} % of one core, load {load.median():.2f} of all cores"
    symptom = "the run mostly waits, and the machine is free"
    if setup.offline:
        rate = table.series("updates_per_s")
        return Finding(
            "resource_under_use",
            symptom,
            (f"{idle}, {figure(rate.median())} updates per second (medians)",),
            ("rows are read from a slow disk: the data does not fit into what is kept in memory",),
            (
                Change(
                    "data.memory_gb=16",
                    "keeps so much in memory, where there is room; a quarter of it is usual",
                ),
                Change("data.fraction=0.5", "half of the episodes, which may fit"),
            ),
            cpu.span,
        )
    environment = setup.section("environment")
    changes = []
    if environment.get("vectorization") != "async":
        changes.append(
            Change("environment.vectorization=async", "environments wait in processes of their own")
        )
    changes.append(
        Change(f"environment.num_envs={2 * int(environment.get('num_envs') or 1)}", "more of them at once")
    )
    return Finding(
        "resource_under_use",
        symptom,
        (f"{idle}, {figure(fps.median())} env steps per second (medians)",),
        ("environments that wait: a simulator elsewhere, a disk, a sleep", "one environment at a time"),
        tuple(changes),
        cpu.span,
    )
