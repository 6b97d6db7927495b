"""Profile a configuration: a short run of it in a scratch folder, watched."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from uniarena import assembly, provenance
from uniarena.analysis import profile as profiling
from uniarena.analysis import rates
from uniarena.analysis.plots import draw
from uniarena.analysis.sampling import cores
from uniarena.config import Experiment, Section
from uniarena.run.surroundings import ended_early
from uniarena.sampling import LocalSampler
from uniarena.sampling.evaluation import evaluate_agent
from uniarena.seeding import seed_globals
from uniarena.trainer.callbacks.evaluate import Evaluate
from uniarena.trainer.schedule import OfflineSchedule
from uniarena.trainer.trainer import Trainer

FILE, PICTURE = "profile.json", "profile.png"
ITERATIONS, LEAST = 4, {"env_steps": 2_000, "updates": 200}
"""Length of the window unless it is told: so many updates of a rollout, and at least so many of the clock's units."""


@dataclass(frozen=True)
class Profiled:
    """A profile and what was written of it.

    Attributes:
        found: the figures.
        file, picture: where they are; picture None: matplotlib is missing.
        load: processes that wanted a core meanwhile, this run's own included.
    """

    found: profiling.Profile
    file: Path
    picture: Path | None
    load: float

    @property
    def crowded(self) -> bool:
        """Whether more wanted a core than there are."""
        return self.load > cores() + 0.5


def profile(
    exp: Experiment,
    folder: str | Path,
    steps: int | None = None,
    seconds: float = 1.0,
    plot: str | Path | None = None,
) -> Profiled:
    """Train for a while as `exp` says, from the beginning and in a scratch folder, and say where the time goes.

    Args:
        exp: the configuration; `assembly.check` comes first.
        folder: where `profile.json` and its picture go.
        plot: a file for the picture instead.
        steps: env steps of the window; None: 4 updates' worth, 2,000 at least. Before it come the warm-up and two
            iterations with an update. From data alone it is updates, 200 unless told.
        seconds: of each floor.

    Raises:
        ConfigError: what it names cannot be built.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="uniarena-profile-") as scratch, ended_early():
        found = _profiled(exp, Path(scratch), steps, seconds)
    provenance.replace_text(place / FILE, json.dumps(found.to_json(), indent=1) + "\n")
    picture: Path | None = Path(plot) if plot else place / PICTURE
    try:
        assert picture is not None
        picture.parent.mkdir(parents=True, exist_ok=True)
        parts = {phase: found.share(phase) for phase in profiling.PHASES if found.share(phase) >= 0.001}
        busy = {side.name: side.busy for side in found.sides}
        draw.shares(parts, busy, f"{found.steps_per_second:,.0f} {found.unit.replace('_', ' ')}/s", picture)
    except draw.PlotError:
        picture = None
    return Profiled(found, place / FILE, picture, profiling.load())


def _profiled(exp: Experiment, scratch: Path, steps: int | None, seconds: float) -> profiling.Profile:
    with _own_threads():
        seed_globals(exp.experiment.seed)
        quiet = replace(exp, experiment=replace(exp.experiment, loggers=_local(exp.experiment.loggers)))
        watch = profiling.Watch(steps or 0)
        trainer, _ = assembly.build_trainer(quiet, scratch, {}, quiet=True, callbacks=[watch])
        try:
            if isinstance(
                trainer.schedule, OfflineSchedule
            ):  # its iterations are long, for nothing ends them
                trainer.schedule = OfflineSchedule(steps or LEAST["updates"])
            columns, schedule = trainer.sampler.columns, trainer.schedule
            each = schedule.steps_per_update(columns)
            watch.wanted = steps or max(LEAST[trainer.counters.unit], ITERATIONS * each)
            start = getattr(schedule, "learning_starts", 0)
            round_ = max(each, getattr(schedule, "iteration", 1))
            trainer.fit(max(exp.total, start + 4 * round_ + 2 * watch.wanted))
            return _figures(exp, trainer, watch, seconds)
        finally:
            watch.detach(trainer)
            trainer.close()


def _figures(exp: Experiment, trainer: Trainer, watch: profiling.Watch, seconds: float) -> profiling.Profile:
    """The window's figures, and what has to be measured beside it."""
    stopwatch, threads = watch.stopwatch, torch.get_num_threads()
    overhead = stopwatch.price() * sum(stopwatch.calls.values()) / max(stopwatch.total, 1e-9)
    busy = profiling.sides(watch.used, stopwatch.total)
    every, _ = assembly.intervals(exp, trainer.agent, trainer.sampler.env)
    once = {
        profiling.EVALUATION: (_evaluation(trainer), _due(every["eval"], exp)),
        profiling.CHECKPOINT: (_checkpoint(trainer), _due(every["save"], exp)),
    }
    parts = profiling.in_proportion(watch, once)
    shares = {name: spent / stopwatch.total for name, spent in watch.told.items() if name != "waited"}
    alone = _floors(trainer, seconds)
    found = profiling.Profile(
        watch.steps, parts, busy, threads, alone, overhead, shares, unit=trainer.counters.unit
    )
    here = isinstance(trainer.sampler, LocalSampler) and trainer.sampler.env.device.type == "cpu"
    can_overlap = hasattr(exp, "sampling") and here and cores() > 1
    return replace(found, advice=profiling.advise(found, trainer.sampler.columns, can_overlap))


def _due(every: int, exp: Experiment) -> int | None:
    """Env steps between two; None where the run is over before the first."""
    return every if every <= exp.total else None


def _evaluation(trainer: Trainer) -> float:
    """Seconds of one evaluation of the agent as it is now; 0 without."""
    callback = next((each for each in trainer.callbacks if isinstance(each, Evaluate)), None)
    if callback is None:
        return 0.0
    cfg = callback.cfg
    started = time.perf_counter()
    env = trainer.env_factory(num_envs=cfg.num_envs or min(cfg.n_episodes, 8), seed=0)
    try:
        evaluate_agent(trainer.agent, env, cfg.n_episodes, deterministic=cfg.deterministic, seed=0)
    finally:
        env.close()
    return time.perf_counter() - started


def _checkpoint(trainer: Trainer) -> float:
    """Seconds of one checkpoint."""
    started = time.perf_counter()
    trainer.save()
    return time.perf_counter() - started


def _floors(trainer: Trainer, seconds: float) -> dict[str, float]:
    """Environments alone and updates alone, as far as there are any. The agent is not needed afterwards."""
    if trainer.counters.unit == "updates":
        return {"updates": rates.update_rate(trainer, None, seconds).per_second}
    env = trainer.env_factory(num_envs=trainer.sampler.env.num_envs, seed=0)
    try:
        environments = rates.environment_rate(env, seconds)
    finally:
        env.close()
    ready = rates.ready_data(trainer)
    updates = rates.update_rate(trainer, ready, seconds)
    each = trainer.schedule.steps_per_update(trainer.sampler.columns) if ready is None else ready.T * ready.B
    return profiling.floors(environments, updates, each)


@contextlib.contextmanager
def _own_threads() -> Iterator[None]:
    """A run sets torch's number of threads; the caller gets its own back."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _local(loggers: tuple[Any, ...]) -> tuple[Section, ...]:
    """Loggers that write into the run's folder; others would tell the world of a run that is none."""
    return tuple(each for each in loggers if each["type"] in ("jsonl", "tensorboard"))
