"""One run in a folder of its own: begun, gone on with, and brought to its end."""

from __future__ import annotations

import logging
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from uniarena import assembly, checkpoint, provenance
from uniarena.buffers.dataset import misplaced
from uniarena.checkpoint import CheckpointError
from uniarena.checkpoint.find import whole_of
from uniarena.config import ConfigError, Experiment, dump, secrets_of, to_mapping
from uniarena.data import DataError
from uniarena.envs.fit import compare_saved
from uniarena.run.changes import settings
from uniarena.run.folder import CONFIG, RESULT, clear_crashed, made, read_result, write_result
from uniarena.run.origin import continued, portable
from uniarena.run.result import Result
from uniarena.run.resuming import Plan, requeued
from uniarena.run.saved import imported
from uniarena.run.surroundings import (
    INTERRUPTED,
    OUT_OF_TIME,
    deadline,
    ended_early,
    interrupts,
    messages,
    note_failure,
)
from uniarena.seeding import seed_globals
from uniarena.trainer.trainer import Trainer

log = logging.getLogger("uniarena")

RUNS = Path("runs")
"""Where new runs go."""


def train_one(
    exp: Experiment,
    run_dir: str | Path | None,
    *,
    resume_if_exists: bool = False,
    quiet: bool = False,
    callbacks: Sequence[Any] = (),
    started: float | None = None,
) -> Result:
    """Train what one config without stages says, whose data is there. Arguments and errors as of `training.train`.

    Args:
        exp: checked.
        started: `time.perf_counter()` of the start; None: now.
    """
    started = time.perf_counter() if started is None else started
    with ended_early():
        if not resume_if_exists:
            folder = new_folder(exp, name_of(exp), run_dir)
            with checkpoint.locked(folder):
                return _begin(exp, folder, started, quiet, callbacks)
        folder = made(own_folder(exp, run_dir))
        with checkpoint.locked(folder):
            found = requeued(folder, exp)
            if found is not None:
                return go_on(found, folder, quiet, callbacks, started)
            clear_crashed(folder)
            return _begin(exp, folder, started, quiet, callbacks)


def _begin(exp: Experiment, folder: Path, started: float, quiet: bool, callbacks: Sequence[Any]) -> Result:
    """Train in `folder`, which is locked and holds nothing of worth."""
    provenance.hide(secrets_of(exp))
    seed_globals(exp.experiment.seed)
    place = folder.absolute()  # an environment may change the working directory
    with messages(folder, quiet):
        try:
            trainer, notices = assembly.build_trainer(
                exp, place, {"config": dump(exp)}, quiet=quiet, callbacks=callbacks
            )
        except BaseException:
            provenance.discard_if_empty(place)
            raise
        provenance.replace_text(place / CONFIG, dump(exp))
        provenance.write_provenance(place, seed=exp.experiment.seed)
        trainer.meta["provenance"] = portable(place)
        for text in (*exp.notices, *notices):
            log.warning(text)
        log.info("run folder: %s\n%s", folder, assembly.summary(trainer))
        return _fit(trainer, exp, folder, started)


def go_on(
    found: Plan, folder: Path, quiet: bool, callbacks: Sequence[Any], started: float | None = None
) -> Result:
    """Go on as planned in `folder`, which is locked and holds the checkpoint: that of the run, or a new one that starts
    from it. Its data is there.
    """
    exp, place = found.exp, folder.absolute()  # an environment may change the working directory
    provenance.hide(secrets_of(exp))
    started = time.perf_counter() if started is None else started
    with messages(folder, quiet):
        for path, why in found.broken:
            log.warning("checkpoint %s is broken (%s); using an older one", path, why)
        state, meta = checkpoint.load(found.source)
        seed_globals(exp.experiment.seed)
        fresh = replace(exp, agent=replace(exp.agent, init_from=None))  # the checkpoint knows better
        record = {"config": dump(exp), "changes": found.history}
        try:
            trainer, notices = assembly.build_trainer(fresh, place, record, quiet=quiet, callbacks=callbacks)
        except DataError as error:
            raise _gone(error, exp, folder) from error
        _restore(trainer, state, found)
        if (reason := _ending(state, meta, found, place)) is not None:
            trainer.request_stop(reason)
        found.record(place)
        provenance.write_provenance(place, seed=exp.experiment.seed, more=continued(found, place))
        trainer.meta["provenance"] = portable(place)
        (place / RESULT).unlink(missing_ok=True)
        if not meta["exact"]:
            notices.append("this checkpoint came between those due by env steps, and the environment cannot save its "
                           "state, so the run goes on, but not exactly as it would have")  # fmt: skip
        for text in notices:
            log.warning(text)
        for text in found.account():
            log.info(text)
        how = "with new episodes" if state["sampler"]["env"] is None else "in the middle of its episodes"
        log.info(
            "resumed %s at %s %s, %s\n%s",
            folder,
            f"{found.env_steps:,}",
            trainer.counters.units,
            "on its data" if trainer.counters.unit == "updates" else how,
            assembly.summary(trainer),
        )
        return _fit(trainer, exp, folder, started)


def _gone(error: DataError, exp: Experiment, folder: Path) -> DataError:
    """The error of a run's data; where it is not there any more, with how to say where it is now."""
    path = str(exp.data.get("path")) if exp.data is not None else ""
    if error.where != str(Path(path)) or Path(path).exists():
        return error
    whole = whole_of(folder)
    key = "data.path" if whole == folder else f"stages.{folder.name.partition('-')[2]}.data.path"
    found = f"uniarena resume {shlex.quote(str(whole))} {key}=NEW"
    return DataError(error.message, error.where, f"put it back; or, where it lies elsewhere now: {found}")


def _ending(state: dict[str, Any], meta: dict[str, Any], found: Plan, folder: Path) -> str | None:
    """Why a callback had asked for the end when the checkpoint was taken, in a run that was killed before it ended.

    Whoever goes on with a run that has ended, with changes, or in another folder, wants it to go on: then the
    checkpoint is made to forget the end, so that another kill does not bring it back.
    """
    reason: str | None = state["trainer"].get("stop")
    if reason in (None, INTERRUPTED, OUT_OF_TIME):
        return None
    if folder == found.run and not found.changes and read_result(folder) is None:
        return reason
    checkpoint.save(found.source, {**state, "trainer": {**state["trainer"], "stop": None}}, meta)
    return None


def _restore(trainer: Trainer, state: dict[str, Any], found: Plan) -> None:
    """Put the trainer where the checkpoint was taken, but for what is to change.

    Raises:
        CheckpointError: what was saved does not fit the run's configuration, or the environment that it makes now.
        ConfigError: the run's data is not that of before.
    """
    changed = settings(trainer, found.changes)
    try:
        with checkpoint.rebuilding(found.source, "does not fit the run's config.yaml"):
            faults, bounds = compare_saved(found.meta["agent"], trainer.agent.spec)
            if faults:
                reason = "does not fit the environment that the run's config.yaml makes now: " + "; ".join(
                    faults
                )
                raise CheckpointError(found.source, f"{reason}. Bring back the environment as it was.")
            if not any(change.key == "training.threads" for change in found.changes):
                torch.set_num_threads(state["trainer"]["threads"])
            try:
                trainer.load_state_dict(state)
            except DataError as error:
                raise misplaced(error, "data.path") from error
    except BaseException:
        trainer.close()
        raise
    for optimizer, name, value in changed:
        for group in optimizer.groups:
            group[name] = value
    for text in bounds:
        log.warning(
            "the environment's bounds are not those of the checkpoint, which goes on all the same: %s", text
        )


def new_folder(exp: Experiment, name: str, run_dir: str | Path | None) -> Path:
    """A folder that was not there, by the run's name and seed, or the one that was asked for."""
    project = re.sub(r"[^\w.-]+", "-", exp.experiment.project or "").strip(".-")
    wanted = exp.experiment.run_dir if run_dir is None else run_dir
    return provenance.create_run_folder(RUNS / project, name, exp.experiment.seed, wanted)


def name_of(exp: Experiment) -> str:
    """The run's name: as the config says, or after its algorithm and environment."""
    where = exp.environment.id
    if where is None and exp.data is not None:
        where = Path(str(exp.data.get("path", "data"))).stem
    parts = [getattr(part, "__name__", str(part)) for part in (exp.learner["type"], where)]
    return exp.experiment.name or "-".join(re.split(r"[/:.]", part)[-1] for part in parts)


def own_folder(exp: Experiment, run_dir: str | Path | None) -> Path:
    """The folder that was named for the run.

    Raises:
        ConfigError: none was.
    """
    wanted = exp.experiment.run_dir if run_dir is None else run_dir
    if wanted is None:
        raise ConfigError(
            "--resume-if-exists looks for the run in a folder, and none is named",
            path="experiment.run_dir",
            hint="add --run-dir PATH",
        )
    return Path(wanted)


def _needs_trust(trainer: Trainer, exp: Experiment, folder: Path) -> bool:
    """Whether loading the run imports what its configuration names."""
    try:
        checkpoint.check_trust(trainer.agent.spec, folder, trust=False)
    except CheckpointError:
        return True
    return bool(imported(to_mapping(exp)))


def _fit(trainer: Trainer, exp: Experiment, folder: Path, started: float) -> Result:
    setup = time.perf_counter() - started
    with interrupts(trainer) as signals:  # also over what is written last
        try:
            with deadline(trainer, exp.training.max_wall_time):
                trainer.fit(exp.total)
        except BaseException as error:
            note_failure(error, trainer, folder)
            raise
        finally:
            trainer.close()
        interrupted = trainer.stop_reason == INTERRUPTED  # then the last evaluation is of an earlier agent
        result = Result(
            folder,
            trainer.counters.env_steps,
            setup,
            trainer.loop_seconds,
            None if interrupted else trainer.last_evaluation,
            trainer.stop_reason,
            trainer.stop_reason in (INTERRUPTED, OUT_OF_TIME),
            _needs_trust(trainer, exp, trainer.run_dir or folder),
            updates=trainer.counters.updates,
            halted=bool(signals),
            drawable=assembly.environment.can_be_drawn(exp),
            data=str(exp.data.get("path")) if exp.data is not None and exp.environment.id is None else None,
        )
        write_result(trainer.run_dir or folder, result)
        return result
