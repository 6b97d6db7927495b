"""Train a run, and go on with one."""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from uniarena import assembly, checkpoint, provenance
from uniarena.buffers.dataset import misplaced
from uniarena.checkpoint import CheckpointError
from uniarena.checkpoint.find import STAGES
from uniarena.config import ConfigError, Experiment, dump, load, secrets_of, to_mapping
from uniarena.data import DataError
from uniarena.envs.fit import compare_saved
from uniarena.run.changes import settings
from uniarena.run.folder import (
    CONFIG,
    RESULT,
    clear_crashed,
    fork,
    made,
    read_result,
    run_folder,
    write_result,
)
from uniarena.run.origin import continued, portable
from uniarena.run.result import Result
from uniarena.run.resuming import NothingToDo, Plan, checkpoint_of, plan, requeued
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

__all__ = ["NothingToDo", "read", "resume", "train"]

log = logging.getLogger("uniarena")

Source = str | Path | Mapping[str, Any]
RUNS = Path("runs")
"""Where new runs go."""


def train(
    config: Source | Sequence[Source] | Experiment,
    overrides: Sequence[str] = (),
    *,
    run_dir: str | Path | None = None,
    resume_if_exists: bool = False,
    quiet: bool = False,
    callbacks: Sequence[Any] = (),
) -> Result:
    """Train from one or more configs (merged left to right) and block until the run ends.

    Args:
        config: YAML or JSON file, recipe name (`ppo/cartpole`), mapping, several of them, or a loaded Experiment.
        overrides: `key.path=value` strings.
        run_dir: the run's folder itself; None: a new one under `runs/`.
        resume_if_exists: go on with the run that is in `run_dir` already; begin where there is none, or only the
            remains of a start that crashed. For jobs that are started again.
        quiet: only warnings and errors reach the terminal.
        callbacks: objects beside those that the config names.

    Raises:
        ConfigError: the configuration is wrong, or that of the run in `run_dir` is another; nothing was written.
        NothingToDo: the run in `run_dir` is complete.
    """
    started = time.perf_counter()
    exp = config if isinstance(config, Experiment) else read(config, overrides)
    assembly.check(exp)
    provenance.hide(secrets_of(exp))
    if exp.stages:
        from uniarena.run.stages import train_stages  # each of which is trained here

        options: Any = {"resume_if_exists": resume_if_exists, "quiet": quiet, "callbacks": callbacks}
        return train_stages(exp, run_dir, **options)
    ensure_data(exp, quiet)
    with ended_early():
        if not resume_if_exists:
            folder = new_folder(exp, name_of(exp), run_dir)
            with checkpoint.locked(folder):
                return _begin(exp, folder, started, quiet, callbacks)
        folder = made(own_folder(exp, run_dir))
        with checkpoint.locked(folder):
            found = requeued(folder, exp)
            if found is not None:
                return _continue(found, folder, started, quiet, callbacks)
            clear_crashed(folder)
            return _begin(exp, folder, started, quiet, callbacks)


def _begin(exp: Experiment, folder: Path, started: float, quiet: bool, callbacks: Sequence[Any]) -> Result:
    """Train in `folder`, which is locked and holds nothing of worth."""
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


def resume(
    run: str | Path,
    overrides: Sequence[str] = (),
    *,
    as_new: str | Path | None = None,
    quiet: bool = False,
    callbacks: Sequence[Any] = (),
) -> Result:
    """Continue a run from its newest whole checkpoint, without changes bit for bit as if it had never stopped.

    Args:
        run: the run's folder; with `as_new` also one of its checkpoints.
        overrides: `key.path=value` for what is to change from here on, such as `training.total_timesteps` or
            `learner.learning_rate`, and for what was left out of the saved config as a secret.
        as_new: continue in this new folder, and leave the run as it is.
        callbacks: those that were given to `train` beside the config's.

    Raises:
        NothingToDo: the run is finished.
        CheckpointError: no whole checkpoint is there, or it does not fit the run's configuration.
        ConfigError: a secret is missing, or a key is given that the state of a run is shaped by.
    """
    started = time.perf_counter()
    if as_new is not None:
        return _fork(checkpoint_of(Path(run)), overrides, Path(as_new), quiet, callbacks)
    if (Path(run) / STAGES).is_file():
        from uniarena.run.stages import resume_stages

        return resume_stages(Path(run), overrides, quiet=quiet, callbacks=callbacks)
    folder = run_folder(Path(run))
    with ended_early(), checkpoint.locked(folder):
        found = plan(folder, overrides)
        found.refuse_finished()
        return _continue(found, folder, started, quiet, callbacks)


def _fork(
    place: tuple[Path, Path | None],
    overrides: Sequence[str],
    new: Path,
    quiet: bool,
    callbacks: Sequence[Any],
) -> Result:
    """Continue a run's checkpoint in a new folder. The run itself may be going on meanwhile: it is only read."""
    started = time.perf_counter()
    found = plan(place[0], overrides, source=place[1])
    found.refuse_finished()
    with ended_early():
        copied = replace(found, source=fork(found.source, new, found.record))
        try:
            with checkpoint.locked(new):
                return _continue(copied, new, started, quiet, callbacks)
        except BaseException:
            if not (new / provenance.RECORD).exists():  # it did not begin
                shutil.rmtree(new, ignore_errors=True)
            raise


def continue_(found: Plan, folder: Path, quiet: bool, callbacks: Sequence[Any]) -> Result:
    """Go on as planned in `folder`, which is locked → its result."""
    return _continue(found, folder, time.perf_counter(), quiet, callbacks)


def _continue(found: Plan, folder: Path, started: float, quiet: bool, callbacks: Sequence[Any]) -> Result:
    """Go on in `folder`, which holds the checkpoint: that of the run, or a new one that starts from it."""
    exp, place = found.exp, folder.absolute()  # an environment may change the working directory
    ensure_data(exp, quiet)
    provenance.hide(secrets_of(exp))
    with messages(folder, quiet):
        for path, why in found.broken:
            log.warning("checkpoint %s is broken (%s); using an older one", path, why)
        state, meta = checkpoint.load(found.source)
        seed_globals(exp.experiment.seed)
        fresh = replace(exp, agent=replace(exp.agent, init_from=None))  # the checkpoint knows better
        trainer, notices = assembly.build_trainer(
            fresh, place, {"config": dump(exp), "changes": found.history}, quiet=quiet, callbacks=callbacks
        )
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


def ensure_data(exp: Experiment, quiet: bool = False) -> None:
    """Make the data of a run, where its config says how (`made_from`) and the file is not there."""
    from uniarena.run.making import makings  # which trains, too

    with exp.locating():
        for wanted in makings(exp):
            wanted.make(quiet)


def read(config: Source | Sequence[Source], overrides: Sequence[str] = ()) -> Experiment:
    """Load and check a configuration."""
    several = isinstance(config, Sequence) and not isinstance(config, str)
    sources: Any = list(config) if several else [config]  # type: ignore[arg-type]
    return load(sources, [overrides] if isinstance(overrides, str) else list(overrides))


def new_folder(exp: Experiment, name: str, run_dir: str | Path | None) -> Path:
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
            data=str(exp.data.get("path")) if exp.data is not None and exp.environment.id is None else None,
        )
        write_result(trainer.run_dir or folder, result)
        return result
