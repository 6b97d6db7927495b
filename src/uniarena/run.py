"""Runs: train, evaluate and resume, from configuration to `Result`."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from uniarena import assembly, checkpoint, provenance
from uniarena.agent import Agent
from uniarena.config import ConfigError, Experiment, dump, load
from uniarena.sampling.evaluation import EvalResult, evaluate_agent
from uniarena.seeding import seed_globals
from uniarena.trainer.trainer import Trainer

log = logging.getLogger("uniarena")

Source = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """What a finished run gives back.

    Attributes:
        run: the run's folder.
        env_steps: environment steps over its whole life.
        setup_s: seconds from the call to the first environment step.
        wall_s: seconds in the training loop, evaluation apart.
        eval: the final evaluation.
        stop_reason: `finished`, `interrupted`, or what a callback said.
    """

    run: Path
    env_steps: int
    setup_s: float
    wall_s: float
    eval: EvalResult | None
    stop_reason: str = "finished"

    def to_json(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "env_steps": self.env_steps,
            "setup_s": round(self.setup_s, 3),
            "wall_s": round(self.wall_s, 3),
            "eval": None if self.eval is None else self.eval.to_json(),
        }


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
        callbacks: objects beside those that the config names.

    Raises:
        ConfigError: the configuration is wrong; nothing was written.
    """
    started = time.perf_counter()
    exp = config if isinstance(config, Experiment) else read(config, overrides)
    seed_globals(exp.experiment.seed)
    folder = provenance.create_run_folder(
        Path("runs"),
        exp.experiment.name or _name(exp),
        exp.experiment.seed,
        run_dir or exp.experiment.run_dir,
    )
    try:
        with _logging(folder, quiet):
            trainer, notices = assembly.build_trainer(
                exp, folder, {"config": dump(exp)}, quiet=quiet, callbacks=callbacks
            )
            (folder / "config.yaml").write_text(dump(exp), encoding="utf-8")
            provenance.write_provenance(folder, seed=exp.experiment.seed)
            for notice in (*exp.notices, *notices):
                log.warning(notice)
            log.info("run folder: %s\n%s", folder, assembly.summary(trainer))
            return _fit(trainer, exp, folder, started)
    except ConfigError:
        provenance.discard_if_empty(folder)
        raise


def resume(run: str | Path, *, quiet: bool = False, callbacks: Sequence[Any] = ()) -> Result:
    """Continue a run from its newest whole checkpoint, bit for bit as if it had never stopped.

    Args:
        callbacks: those that were given to `train` beside the config's.

    Raises:
        NothingToDo: the run is finished.
        CheckpointError: no whole checkpoint is there.
    """
    started = time.perf_counter()
    folder = Path(run)
    source, broken = checkpoint.newest(folder / "checkpoints")
    exp = read(folder / "config.yaml")
    with _logging(folder, quiet):
        for path, why in broken:
            log.warning("checkpoint %s is broken (%s); using an older one", path, why)
        state, meta = checkpoint.load(source)
        if meta["counters"]["env_steps"] >= exp.training.total_timesteps:
            raise NothingToDo(
                f"{folder} has reached its {exp.training.total_timesteps:,} env steps already. "
                "Train longer with training.total_timesteps in its config.yaml, or start a new run."
            )
        seed_globals(exp.experiment.seed)
        trainer, notices = assembly.build_trainer(
            exp, folder, {"config": dump(exp)}, quiet=quiet, callbacks=callbacks
        )
        torch.set_num_threads(state["trainer"]["threads"])
        trainer.load_state_dict(state)
        if not meta["exact"]:
            notices.append(
                "this checkpoint was not due by env steps and the environment cannot save its state: not exact."
            )
        for notice in notices:
            log.warning(notice)
        log.info("resumed %s at %s env steps", folder, f"{trainer.counters.env_steps:,}")
        return _fit(trainer, exp, folder, started)


def evaluate(
    run: str | Path,
    episodes: int = 100,
    *,
    deterministic: bool = True,
    seed: int | None = None,
    video: bool = False,
    trust: bool = False,
) -> EvalResult:
    """Evaluate the agent of a run (its best checkpoint) or of a checkpoint folder in its own environment.

    Args:
        video: also record the first episodes into `<run>/videos`.
        trust: allow the checkpoint to import the `module:Class` that it names.
    """
    source = checkpoint.locate(Path(run))
    agent = Agent.load(source, trust=trust)
    config = _parse_yaml(checkpoint.read_meta(source)["config"])
    if video:
        config["environment"].setdefault("wrappers", []).append(
            {"type": "record_video", "folder": str(Path(run) / "videos")}
        )
    exp = load([config], [])
    env = assembly.build_env(exp, 1 if video else min(episodes, 16))
    try:
        start = exp.experiment.seed + 1_000_000 if seed is None else seed
        return evaluate_agent(agent, env, episodes, deterministic=deterministic, seed=start)
    finally:
        env.close()


def read(config: Source | Sequence[Source], overrides: Sequence[str] = ()) -> Experiment:
    """Load and check a configuration."""
    sources = [config] if isinstance(config, (str, Path, Mapping)) else list(config)
    return load(sources, list(overrides))


def train_seeds(
    config: Source | Sequence[Source], overrides: Sequence[str], seeds: int, *, quiet: bool = False
) -> dict[str, Any]:
    """One run per seed 0 … seeds − 1 and a summary over them, written beside the runs."""
    from uniarena.analysis.statistics import summarize

    results = []
    for seed in range(seeds):
        results.append(train(config, [*overrides, f"experiment.seed={seed}"], quiet=quiet))
    finals = [r.eval.return_mean for r in results if r.eval is not None]
    report = {"runs": [r.to_json() for r in results], "summary": summarize(finals)}
    target = results[0].run.with_name(results[0].run.name + "-seeds.json")
    target.write_text(json.dumps(report, indent=2), encoding="utf-8")
    return {**report, "file": str(target)}


def _fit(trainer: Trainer, exp: Experiment, folder: Path, started: float) -> Result:
    setup = time.perf_counter() - started
    try:
        with _interrupts(trainer), _deadline(trainer, exp.training.max_wall_time):
            trainer.fit(exp.training.total_timesteps)
    finally:
        trainer.close()
    return Result(
        folder,
        trainer.counters.env_steps,
        setup,
        trainer.loop_seconds,
        trainer.last_evaluation,
        trainer.stop_reason,
    )


@contextlib.contextmanager
def _interrupts(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C finishes the iteration and saves; a second one leaves at once with the last checkpoint."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        if trainer.stop_reason == "interrupted":
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        print(
            "\ninterrupted: finishing the iteration, then saving (Ctrl-C again leaves at once)",
            file=sys.stderr,
        )
        trainer.request_stop("interrupted")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _deadline(trainer: Trainer, seconds: float | None) -> Iterator[None]:
    """Ask for a clean stop when the wall time is over."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, trainer.request_stop, args=("max_wall_time",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _logging(folder: Path, quiet: bool) -> Iterator[None]:
    close = provenance.setup_logging(folder, quiet=quiet)
    try:
        yield
    finally:
        close()


def _name(exp: Experiment) -> str:
    return f"{exp.learner['type']}-{str(exp.environment.id).rsplit('/', 1)[-1].rsplit(':', 1)[-1]}"


def _parse_yaml(text: str) -> dict[str, Any]:
    import yaml

    return yaml.safe_load(text)  # type: ignore[no-any-return]
