"""Train a run, and go on with one, of one stage or several; data that is to be made is made first."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from uniarena import assembly, checkpoint, provenance
from uniarena.checkpoint.find import STAGES
from uniarena.config import Experiment, load, secrets_of
from uniarena.run.folder import fork, run_folder
from uniarena.run.making import ensure_data
from uniarena.run.result import Result
from uniarena.run.resuming import NothingToDo, checkpoint_of, plan
from uniarena.run.single import go_on, train_one
from uniarena.run.stages import resume_stages, train_stages
from uniarena.run.surroundings import ended_early

__all__ = ["NothingToDo", "read", "resume", "train"]

Source = str | Path | Mapping[str, Any]


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
        options: Any = {"resume_if_exists": resume_if_exists, "quiet": quiet, "callbacks": callbacks}
        return train_stages(exp, run_dir, **options)
    ensure_data(exp, quiet)
    return train_one(
        exp, run_dir, resume_if_exists=resume_if_exists, quiet=quiet, callbacks=callbacks, started=started
    )


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
        return resume_stages(Path(run), overrides, quiet=quiet, callbacks=callbacks)
    folder = run_folder(Path(run))
    with ended_early(), checkpoint.locked(folder):
        found = plan(folder, overrides)
        found.refuse_finished()
        ensure_data(found.exp, quiet)
        return go_on(found, folder, quiet, callbacks, started)


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
                ensure_data(copied.exp, quiet)
                return go_on(copied, new, quiet, callbacks, started)
        except BaseException:
            if not (new / provenance.RECORD).exists():  # it did not begin
                shutil.rmtree(new, ignore_errors=True)
            raise


def read(config: Source | Sequence[Source], overrides: Sequence[str] = ()) -> Experiment:
    """Load and check a configuration."""
    several = isinstance(config, Sequence) and not isinstance(config, str)
    sources: Any = list(config) if several else [config]  # type: ignore[arg-type]
    return load(sources, [overrides] if isinstance(overrides, str) else list(overrides))
