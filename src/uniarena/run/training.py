"""Train, resume, and train with several seeds."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from uniarena import assembly, checkpoint, provenance
from uniarena.analysis.statistics import summarize
from uniarena.checkpoint import CheckpointError
from uniarena.config import ConfigError, Experiment, dump, from_text, load, to_mapping
from uniarena.envs.fit import compare_saved
from uniarena.run.result import Result, SeedsReport
from uniarena.run.saved import imported, only_secrets, owner
from uniarena.run.surroundings import INTERRUPTED, OUT_OF_TIME, deadline, interrupts, messages, note_failure
from uniarena.seeding import seed_globals
from uniarena.trainer.trainer import Trainer

log = logging.getLogger("uniarena")

Source = str | Path | Mapping[str, Any]
RUNS = Path("runs")
"""Where new runs go."""


class NothingToDo(Exception):
    """The run has reached its end already."""


def train(
    config: Source | Sequence[Source] | Experiment,
    overrides: Sequence[str] = (),
    *,
    run_dir: str | Path | None = None,
    quiet: bool = False,
    callbacks: Sequence[Any] = (),
) -> Result:
    """Train from one or more configs (merged left to right) and block until the run ends.

    Args:
        config: YAML or JSON file, recipe name (`ppo/cartpole`), mapping, several of them, or a loaded Experiment.
        overrides: `key.path=value` strings.
        run_dir: the run's folder itself; None: a new one under `runs/`.
        quiet: only warnings and errors reach the terminal.
        callbacks: objects beside those that the config names.

    Raises:
        ConfigError: the configuration is wrong; nothing was written.
    """
    started = time.perf_counter()
    exp = config if isinstance(config, Experiment) else read(config, overrides)
    assembly.check(exp)
    seed_globals(exp.experiment.seed)
    folder = _new_folder(exp, _name(exp), run_dir)
    with checkpoint.locked(folder), messages(folder, quiet):
        try:
            trainer, notices = assembly.build_trainer(
                exp, folder, {"config": dump(exp)}, quiet=quiet, callbacks=callbacks
            )
        except BaseException:
            provenance.discard_if_empty(folder)
            raise
        (folder / "config.yaml").write_text(dump(exp), encoding="utf-8")
        record = provenance.write_provenance(folder, seed=exp.experiment.seed)
        trainer.meta["provenance"] = provenance.brief(folder, record)
        for text in (*exp.notices, *notices):
            log.warning(text)
        log.info("run folder: %s\n%s", folder, assembly.summary(trainer))
        return _fit(trainer, exp, folder, started)


def resume(
    run: str | Path, secrets: Sequence[str] = (), *, quiet: bool = False, callbacks: Sequence[Any] = ()
) -> Result:
    """Continue a run from its newest whole checkpoint, bit for bit as if it had never stopped.

    Args:
        run: the run's folder.
        secrets: `key.path=value` for what was left out of the saved config as a secret.
        callbacks: those that were given to `train` beside the config's.

    Raises:
        NothingToDo: the run is finished.
        CheckpointError: no whole checkpoint is there, or it does not fit the run's configuration.
        ConfigError: a secret is missing, or another key is given.
    """
    folder = _run_folder(Path(run))
    with checkpoint.locked(folder):
        return _resume(folder, secrets, quiet, callbacks)


def _resume(folder: Path, secrets: Sequence[str], quiet: bool, callbacks: Sequence[Any]) -> Result:
    started = time.perf_counter()
    saved = folder / "config.yaml"
    tree = from_text(saved.read_text(encoding="utf-8"), str(saved))
    exp = load([tree], only_secrets(tree, secrets))
    source, broken = checkpoint.newest(folder / "checkpoints")
    total, done = exp.training.total_timesteps, checkpoint.read_meta(source)["counters"]["env_steps"]
    if done >= total:
        raise NothingToDo(
            f"{folder} has reached its {total:,} env steps already. To train it for longer, raise "
            f"training.total_timesteps in {saved} and resume it again."
        )
    with messages(folder, quiet):
        for path, why in broken:
            log.warning("checkpoint %s is broken (%s); using an older one", path, why)
        state, meta = checkpoint.load(source)
        seed_globals(exp.experiment.seed)
        fresh = replace(exp, agent=replace(exp.agent, init_from=None))  # the checkpoint knows better
        trainer, notices = assembly.build_trainer(
            fresh, folder, {"config": dump(exp)}, quiet=quiet, callbacks=callbacks
        )
        _restore(trainer, state, meta, source)
        record = provenance.write_provenance(folder, seed=exp.experiment.seed)
        trainer.meta["provenance"] = provenance.brief(folder, record)
        if not meta["exact"]:
            notices.append("this checkpoint came between those due by env steps, and the environment cannot save its "
                           "state, so the run goes on, but not exactly as it would have")  # fmt: skip
        for text in notices:
            log.warning(text)
        log.info("resumed %s at %s env steps\n%s", folder, f"{done:,}", assembly.summary(trainer))
        return _fit(trainer, exp, folder, started)


def _restore(trainer: Trainer, state: dict[str, Any], meta: Mapping[str, Any], source: Path) -> None:
    """Put the trainer where the checkpoint was taken.

    Raises:
        CheckpointError: what was saved does not fit the run's configuration, or the environment that it makes now.
    """
    try:
        with checkpoint.rebuilding(source, "does not fit the run's config.yaml"):
            faults, bounds = compare_saved(meta["agent"], trainer.agent.spec)
            if faults:
                reason = "does not fit the environment that the run's config.yaml makes now: " + "; ".join(
                    faults
                )
                raise CheckpointError(source, f"{reason}. Bring back the environment as it was.")
            torch.set_num_threads(state["trainer"]["threads"])
            trainer.load_state_dict(state)
    except BaseException:
        trainer.close()
        raise
    for text in bounds:
        log.warning(
            "the environment's bounds are not those of the checkpoint, which goes on all the same: %s", text
        )


def train_seeds(
    config: Source | Sequence[Source] | Experiment,
    overrides: Sequence[str] = (),
    *,
    seeds: int,
    run_dir: str | Path | None = None,
    quiet: bool = False,
) -> SeedsReport:
    """Train with the seeds experiment.seed, +1, …: a folder per seed and `summary.json` over them.

    A run that fails is reported and the others go on.
    """
    exp = config if isinstance(config, Experiment) else read(config, overrides)
    assembly.check(exp)
    folder = _new_folder(exp, f"{_name(exp)}-{seeds}-seeds", run_dir)
    results: dict[int, Result] = {}
    failures: dict[int, str] = {}
    for seed in range(exp.experiment.seed, exp.experiment.seed + seeds):
        one = replace(exp, experiment=replace(exp.experiment, seed=seed, run_dir=None))
        try:
            results[seed] = train(one, run_dir=folder / f"seed-{seed}", quiet=quiet)
        except Exception as error:
            if isinstance(error, ConfigError) and not results:  # wrong for one seed is wrong for all
                provenance.discard_if_empty(folder)
                raise
            failures[seed] = f"{type(error).__name__}: {error}"
            log.error("seed %d failed: %s", seed, failures[seed])
            continue
        if results[seed].stop_reason == INTERRUPTED:
            break
    interrupted = any(result.stop_reason == INTERRUPTED for result in results.values())
    summary = summarize([r.eval.return_mean for r in results.values() if r.eval is not None])
    report = SeedsReport(folder, results, failures, summary, interrupted)
    (folder / "summary.json").write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    return report


def read(config: Source | Sequence[Source], overrides: Sequence[str] = ()) -> Experiment:
    """Load and check a configuration."""
    sources = [config] if isinstance(config, (str, Path, Mapping)) else list(config)
    return load(sources, list(overrides))


def _new_folder(exp: Experiment, name: str, run_dir: str | Path | None) -> Path:
    project = re.sub(r"[^\w.-]+", "-", exp.experiment.project or "").strip(".-")
    wanted = exp.experiment.run_dir if run_dir is None else run_dir
    return provenance.create_run_folder(RUNS / project, name, exp.experiment.seed, wanted)


def _name(exp: Experiment) -> str:
    """The run's name: as the config says, or after its algorithm and environment."""
    parts = [getattr(part, "__name__", str(part)) for part in (exp.learner["type"], exp.environment.id)]
    return exp.experiment.name or "-".join(re.split(r"[/:.]", part)[-1] for part in parts)


def _run_folder(path: Path) -> Path:
    if (path / "config.yaml").is_file():
        return path
    if not path.is_dir():
        raise CheckpointError(path, "does not exist; give a run's folder.")
    if (path / "manifest.json").is_file():
        raise CheckpointError(path, f"is one checkpoint; a run is resumed as a whole: {owner(path)}")
    raise CheckpointError(path, "is no run's folder: it holds no config.yaml.")


def _needs_trust(trainer: Trainer, exp: Experiment, folder: Path) -> bool:
    """Whether loading the run imports what its configuration names."""
    try:
        checkpoint.check_trust(trainer.agent.spec, folder, trust=False)
    except CheckpointError:
        return True
    return bool(imported(to_mapping(exp)))


def _fit(trainer: Trainer, exp: Experiment, folder: Path, started: float) -> Result:
    setup = time.perf_counter() - started
    try:
        with interrupts(trainer), deadline(trainer, exp.training.max_wall_time):
            trainer.fit(exp.training.total_timesteps)
    except BaseException as error:
        note_failure(error, trainer, folder)
        raise
    finally:
        trainer.close()
    interrupted = trainer.stop_reason == INTERRUPTED  # then the last evaluation is of an earlier agent
    return Result(
        folder,
        trainer.counters.env_steps,
        setup,
        trainer.loop_seconds,
        None if interrupted else trainer.last_evaluation,
        trainer.stop_reason,
        trainer.stop_reason in (INTERRUPTED, OUT_OF_TIME),
        _needs_trust(trainer, exp, folder),
    )
