"""What runs give back, as objects, as the JSON that commands print, and as text."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from uniarena.config import as_mapping
from uniarena.sampling.evaluation import EvalResult


def figures(result: EvalResult) -> dict[str, Any]:
    """An evaluation as `--json` prints it."""
    names = ("episodes", "return_mean", "return_std", "return_iqm")
    found = {name: getattr(result, name) for name in names}
    if result.reference is None:
        return found
    return {**found, "score": result.score, "reference": as_mapping(result.reference)}


@dataclass(frozen=True)
class Result:
    """What a finished run gives back.

    Attributes:
        run: the run's folder.
        env_steps: environment steps over its whole life.
        setup_s: seconds from the call to the first environment step.
        wall_s: seconds in the training loop, evaluation apart.
        eval: the final evaluation; None where the run was interrupted.
        stop_reason: `finished`, `interrupted`, or what a callback said.
        resumable: it was stopped before its end.
        trusting: loading it needs `trust`, since its configuration names classes by import path.
        updates: of the learner, over the run's whole life.
        stages: of a run in stages the result of each that has begun; lengths and seconds here are then their sums, and
            the evaluation is the last one's.
        stages_left: names of those that have not begun.
        data: what it learned from, where it has no environment; None: it has one.
        drawable: its environment gives pictures.
        halted: a signal came when all was done but to evaluate and save: whatever would follow the run does not begin.
    """

    run: Path
    env_steps: int
    setup_s: float
    wall_s: float
    eval: EvalResult | None
    stop_reason: str = "finished"
    resumable: bool = False
    trusting: bool = False
    updates: int = 0
    stages: tuple[Result, ...] = ()
    stages_left: tuple[str, ...] = ()
    data: str | None = None
    halted: bool = False
    drawable: bool = False

    @property
    def length(self) -> str:
        """How long it was, in the unit that it was counted in."""
        return f"{self.env_steps:,} env steps" if self.env_steps else f"{self.updates:,} updates"

    def to_json(self) -> dict[str, Any]:
        """The object that `uniarena train --json` prints."""
        return {
            "run": str(self.run),
            "env_steps": self.env_steps,
            **({} if self.env_steps else {"updates": self.updates}),
            "setup_s": round(self.setup_s, 3),
            "wall_s": round(self.wall_s, 3),
            "eval": None if self.eval is None else figures(self.eval),
            **({"stages": [stage.to_json() for stage in self.stages]} if self.stages else {}),
            **({"stages_left": list(self.stages_left)} if self.stages_left else {}),
        }

    def next_commands(self) -> list[str]:
        """What one may want to do with the run now."""
        trust = " --trust" if self.trusting else ""
        run = shlex.quote(str(self.run))
        resume = [f"uniarena resume {run}"] if self.resumable else []
        play = [f"uniarena eval {run}{trust}"]
        play += [f"uniarena eval {run} --video{trust}"] if self.drawable else []
        if self.data is not None:
            play = [f"uniarena eval {run} --data {shlex.quote(self.data)}{trust}"]
        return [
            *resume,
            *play,
            f"tensorboard --logdir {run}",
            f"uniarena export {run} --onnx{trust}{_needs('onnxruntime', 'onnx')}",
        ]


def _needs(package: str, extra: str) -> str:
    """A remark where the extra that a command needs is not installed."""
    return "" if find_spec(package) else f'  # after: pip install "uniarena[{extra}]"'


@dataclass(frozen=True)
class SeedsReport:
    """The same configuration trained with several seeds.

    Attributes:
        folder: holds a run's folder `seed-<k>` per seed, and `summary.json`.
        results: seed → result.
        failures: seed → the error that ended its run.
        summary: count, mean, std, iqm, interval_95 and values of the final evaluations' mean returns.
        interrupted: the remaining seeds were left out.
    """

    folder: Path
    results: dict[int, Result]
    failures: dict[int, str]
    summary: dict[str, Any]
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """The object that `uniarena train --seeds N --json` prints."""
        return {
            "folder": str(self.folder),
            "runs": [{"seed": seed, **result.to_json()} for seed, result in self.results.items()],
            "failures": [{"seed": seed, "error": error} for seed, error in self.failures.items()],
            "summary": self.summary,
        }

    def __str__(self) -> str:
        lines = []
        for seed, result in self.results.items():
            none = "interrupted" if result.stop_reason == "interrupted" else "not evaluated"
            told = none if result.eval is None else f"return {result.eval.return_mean:.2f}"
            lines.append(f"seed {seed}: {told} after {result.length}  {result.run}")
        lines += [f"seed {seed}: failed: {error}" for seed, error in self.failures.items()]
        if self.summary["count"]:
            low, high = self.summary["interval_95"]
            lines.append(
                f"over {self.summary['count']} seeds: mean {self.summary['mean']:.2f}, interquartile mean "
                f"{self.summary['iqm']:.2f} (95 % interval {low:.2f} to {high:.2f})"
            )
        return "\n".join([*lines, f"summary: {self.folder / 'summary.json'}"])
