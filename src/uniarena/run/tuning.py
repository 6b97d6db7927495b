"""Which way of stepping its environments suits a config, or an environment alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from uniarena import assembly
from uniarena.analysis import rates, sampling
from uniarena.analysis.rates import Clock
from uniarena.config import Experiment, WorkersConfig
from uniarena.envs import make_env
from uniarena.envs.protocol import Env
from uniarena.seeding import seed_globals

COUNTS = (1, 8, 64)
"""Numbers of environments that are tried unless others are named."""


def tune_sampling(
    what: str | Experiment,
    counts: Sequence[int] | None = None,
    seconds: float = 0.5,
    clock: Clock = time.perf_counter,
    updates: bool = True,
) -> sampling.Tuning:
    """Measure every way of stepping an environment, and for a config also its policy's torch threads.

    Args:
        what: an environment's id, or a configuration.
        counts: numbers of environments; None: 1, 8 and 64, and the config's own.
        seconds: of each measurement.
        clock: what is measured with.
        updates: of a config, also measure acting and updating with different numbers of threads.

    Raises:
        ConfigError: the environment cannot be made.
    """
    exp = what if isinstance(what, Experiment) else None
    own = None if exp is None else exp.environment.num_envs
    tried = sorted(set(counts or COUNTS) | ({own} if own is not None and counts is None else set()))

    def make(count: int, how: str | WorkersConfig) -> Env:
        if exp is None:
            assert isinstance(what, str)
            return make_env(what, count, vectorization=how)
        workers = how if isinstance(how, WorkersConfig) else None
        mode: Any = how if workers is None else "async"
        section = replace(exp.environment, vectorization=mode, workers=workers, num_envs=count)
        return assembly.build_env(replace(exp, environment=section), training=True)

    rows = tuple(sampling.measure(make, tried, seconds, clock))
    if all(row.rate is None for row in rows):
        make(tried[0], "auto").close()  # raises what is wrong with it
    advice = sampling.advise(rows, own if own in tried else None)
    threads = () if exp is None or not updates else _threads(exp, seconds, clock)
    if threads:
        count, why = sampling.advise_threads(threads)
        advice = replace(advice, training={"threads": count}, reasons=(*advice.reasons, why))
    name = (
        what if isinstance(what, str) else getattr(what.environment.id, "__name__", str(what.environment.id))
    )
    return sampling.Tuning(name, rows, threads, advice)


def _threads(exp: Experiment, seconds: float, clock: Clock) -> tuple[sampling.ThreadRow, ...]:
    """Acting and updating with one torch thread and with all cores."""
    seed_globals(exp.experiment.seed)
    trainer, _ = assembly.build_trainer(exp, None, {}, quiet=True)
    found = []
    try:
        ready = rates.ready_data(trainer)
        for count in rates.threads_of(sorted({1, sampling.cores()})):
            act = rates.act_rate(trainer, seconds, clock)
            found.append(sampling.ThreadRow(count, act, rates.update_rate(trainer, ready, seconds, clock)))
    finally:
        trainer.close()
    return tuple(found)
