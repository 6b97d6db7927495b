"""The same configuration with several seeds: a folder each, and one summary; also where some are there already."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from uniarena import assembly, checkpoint, provenance
from uniarena.analysis.statistics import summarize
from uniarena.checkpoint import CheckpointError
from uniarena.checkpoint.find import stages_in
from uniarena.config import ConfigError, Experiment, dump, from_text, load
from uniarena.run.folder import CHECKPOINTS, CONFIG, SEEDS, clear_crashed, read_result
from uniarena.run.result import Result, SeedsReport
from uniarena.run.resuming import NothingToDo, is_left_out, refuse_other, with_secrets
from uniarena.run.single import name_of, new_folder, own_folder
from uniarena.run.surroundings import INTERRUPTED
from uniarena.run.training import Source, read, resume, train

log = logging.getLogger("uniarena")


def train_seeds(
    config: Source | Sequence[Source] | Experiment,
    overrides: Sequence[str] = (),
    *,
    seeds: int,
    run_dir: str | Path | None = None,
    resume_if_exists: bool = False,
    quiet: bool = False,
) -> SeedsReport:
    """Train with the seeds experiment.seed, +1, …: a folder per seed and `summary.json` over them.

    A run that fails is reported and the others go on.

    Args:
        resume_if_exists: go on with what is in `run_dir` already, as `resume_seeds` does.

    Raises:
        ConfigError: the configuration is wrong, or it is not the one of what is in `run_dir`.
        NothingToDo: every seed in `run_dir` is complete.
    """
    exp = config if isinstance(config, Experiment) else read(config, overrides)
    assembly.check(exp)
    wanted = list(range(exp.experiment.seed, exp.experiment.seed + seeds))
    if resume_if_exists and (own_folder(exp, run_dir) / SEEDS).is_file():
        return _go_on_with(own_folder(exp, run_dir), exp, wanted, quiet)
    folder = new_folder(exp, f"{name_of(exp)}-{seeds}-seeds", run_dir)
    plan = {"seeds": wanted, "config": dump(exp)}
    provenance.replace_text(folder / SEEDS, json.dumps(plan, indent=1, ensure_ascii=False) + "\n")

    def begin(seed: int) -> Result:
        return train(_with_seed(exp, seed), run_dir=folder / f"seed-{seed}", quiet=quiet)

    try:
        return _over(folder, wanted, begin)
    except ConfigError:
        (folder / SEEDS).unlink()
        provenance.discard_if_empty(folder)
        raise


def _go_on_with(folder: Path, exp: Experiment, wanted: list[int], quiet: bool) -> SeedsReport:
    seeds, text = _read_plan(folder)
    if seeds != wanted:
        raise ConfigError(
            f"{folder} is for the seeds {seeds[0]} to {seeds[-1]}, this command for {wanted[0]} to {wanted[-1]}",
            path="experiment.seed",
            hint="give the same experiment.seed and --seeds, or name another folder",
        )
    refuse_other(folder, load([with_secrets(from_text(text, str(folder / SEEDS)), exp.source)]), exp)

    def go_on(seed: int) -> Result:
        return train(
            _with_seed(exp, seed), run_dir=folder / f"seed-{seed}", resume_if_exists=True, quiet=quiet
        )

    return _over(folder, seeds, go_on)


def resume_seeds(path: str | Path, overrides: Sequence[str] = (), *, quiet: bool = False) -> SeedsReport:
    """Go on with a folder that `train_seeds` made: runs that have not reached their end, and those not begun.

    Args:
        overrides: as of `resume`, for every seed.

    Raises:
        NothingToDo: every seed is complete.
        ConfigError: as of `resume`.
    """
    folder = Path(path)
    seeds, text = _read_plan(folder)
    tree = from_text(text, str(folder / SEEDS))
    exp = load([tree], overrides)
    assembly.check(exp)
    changes = [text for text in overrides if not is_left_out(tree, text)]

    def go_on(seed: int) -> Result:
        run = folder / f"seed-{seed}"
        ended = read_result(run)
        if ended is not None and not ended.resumable and not changes:
            raise NothingToDo(f"{run} is complete")
        if _has_checkpoint(run) or stages_in(run):
            return resume(run, overrides, quiet=quiet)
        if run.is_dir():
            clear_crashed(run)
        return train(_with_seed(exp, seed), run_dir=run, resume_if_exists=True, quiet=quiet)

    return _over(folder, seeds, go_on)


def is_of_seeds(path: str | Path) -> bool:
    """Whether a folder is one that `train_seeds` made."""
    return (Path(path) / SEEDS).is_file()


def _read_plan(folder: Path) -> tuple[list[int], str]:
    try:
        found = json.loads((folder / SEEDS).read_text(encoding="utf-8"))
        return [int(seed) for seed in found["seeds"]], str(found["config"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(folder / SEEDS, f"cannot be read: {error}") from error


def _with_seed(exp: Experiment, seed: int) -> Experiment:
    return exp.with_experiment(seed=seed, run_dir=None)


def _has_checkpoint(run: Path) -> bool:
    try:
        return (run / CONFIG).is_file() and bool(checkpoint.newest(run / CHECKPOINTS))
    except CheckpointError:
        return False


def _over(folder: Path, seeds: Sequence[int], run: Callable[[int], Result]) -> SeedsReport:
    """Every seed in turn, until one is interrupted; then the summary."""
    results: dict[int, Result] = {}
    failures: dict[int, str] = {}
    idle = 0
    for seed in seeds:
        try:
            results[seed] = run(seed)
        except NothingToDo:
            idle += 1
            if (ended := read_result(folder / f"seed-{seed}")) is not None:
                results[seed] = ended
            continue
        except Exception as error:
            if isinstance(error, ConfigError) and not results:  # wrong for one seed is wrong for all
                raise
            failures[seed] = provenance.redact(f"{type(error).__name__}: {error}", code=True)
            log.error("seed %d failed: %s", seed, failures[seed])
            continue
        if results[seed].stop_reason == INTERRUPTED or results[seed].halted:
            break
    left = len(results) + len(failures) < len(seeds)
    interrupted = any(
        result.stop_reason == INTERRUPTED or (left and result.halted) for result in results.values()
    )
    summary = summarize([r.eval.return_mean for r in results.values() if r.eval is not None])
    report = SeedsReport(folder, results, failures, summary, interrupted)
    provenance.replace_text(folder / "summary.json", json.dumps(report.to_json(), indent=1) + "\n")
    if idle == len(seeds):
        raise NothingToDo(f"every seed of {folder} is complete; see {folder / 'summary.json'}")
    return report
