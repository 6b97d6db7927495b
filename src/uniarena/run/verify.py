"""Whether a run reproduces: its first steps once more, from its own folder, figure by figure and tensor by tensor."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from uniarena import assembly, checkpoint, provenance
from uniarena.checkpoint import CheckpointError
from uniarena.config import Experiment, dump, load
from uniarena.config.errors import counted
from uniarena.config.section import plain
from uniarena.run.changes import undone
from uniarena.run.compare import by_file, differences, told
from uniarena.run.folder import CHECKPOINTS, METRICS, run_folder, saved_changes, saved_config
from uniarena.run.origin import rooted
from uniarena.run.saved import only_secrets
from uniarena.run.surroundings import INTERRUPTED, ended_early
from uniarena.seeding import seed_globals
from uniarena.trainer.clock import clock_of, spelled
from uniarena.trainer.loggers.jsonl import read_rows

MOST = 10_000
"""Environment steps that are repeated unless it is told otherwise."""
_CLOCK = frozenset(
    ("wall_s", "fps", "updates_per_s", "wall", "loop_seconds", "evaluation_seconds", "threads")
)
_LATE = "eval"  # figures of evaluations, which the end of a run adds to its last row
_STATE = ("agent", "buffer", "sampler")
_OWN_STATE = ("counters", "episodes", "streams", "globals")


@dataclass(frozen=True)
class Mismatch:
    """The first place where the repetition differs.

    Attributes:
        env_steps: at how many.
        figure: name of the figure, or path of the tensor in the checkpoint.
        recorded, repeated: the two values.
    """

    env_steps: int
    figure: str
    recorded: Any
    repeated: Any


@dataclass(frozen=True)
class Verdict:
    """Whether a run reproduces.

    Attributes:
        run: its folder.
        env_steps: how many were repeated.
        rows: rows of figures that were compared.
        checkpoints: env steps of the checkpoints that were compared.
        mismatch: the first difference; None: it reproduces.
        limit: why no more could be repeated; empty: nothing stood in the way.
        versions: package, or `python` → recorded and present version, where they differ.
        code: `commit` and uncommitted changes, likewise.
        units: what `env_steps`, of checkpoints and of the mismatch too, counts: updates where a run is from data.
    """

    run: Path
    env_steps: int
    rows: int
    checkpoints: list[int]
    mismatch: Mismatch | None
    limit: str
    versions: dict[str, tuple[Any, Any]]
    code: dict[str, tuple[Any, Any]]
    units: str = "env steps"

    @property
    def reproduces(self) -> bool:
        return self.mismatch is None

    def to_json(self) -> dict[str, Any]:
        """The object that `uniarena verify --json` prints."""
        found = self.mismatch
        return {
            "run": str(self.run),
            "reproduces": self.reproduces,
            "env_steps": self.env_steps,
            "rows": self.rows,
            "checkpoints": self.checkpoints,
            "mismatch": None if found is None else vars(found),
            "limit": self.limit,
            "versions": {name: list(pair) for name, pair in self.versions.items()},
            "code": {name: list(pair) for name, pair in self.code.items()},
        }

    def __str__(self) -> str:
        count = len(self.checkpoints)
        rows, checkpoints = counted(self.rows, "row", "rows"), counted(count, "checkpoint", "checkpoints")
        compared, units = f"{rows} of figures, {checkpoints}", self.units
        if self.mismatch is None:
            lines = [f"reproduces: {spelled(self.env_steps, units)}, {compared}, bit for bit"]
        else:
            at = self.mismatch
            lines = [
                f"does not reproduce: at {spelled(at.env_steps, units)} {at.figure} was {told(at.recorded)} and is "
                f"now {told(at.repeated)}"
            ]
        lines += [f"repeated up to there: {self.limit}"] if self.limit else []
        for name, pair in {**self.versions, **self.code}.items():
            lines.append(f"{name} differs: {told(pair[0])} then, {told(pair[1])} now")
        return "\n".join(lines)


def verify(
    run: str | Path, steps: int | None = None, *, secrets: Sequence[str] = (), trust: bool = False
) -> Verdict:
    """Repeat the first env steps of a run in a scratch folder and compare.

    Args:
        run: the run's folder; it is only read.
        steps: how many; None: those that are recorded, up to 10,000. A run that was resumed with changes, or not
            exactly, is repeated up to there.
        secrets: `key.path=value` for what was left out of the saved config as a secret.
        trust: allow the configuration to import the `module:Class` that it names.

    Raises:
        CheckpointError: it is no run, recorded nothing, or needs `trust`.
    """
    folder = run_folder(Path(run))
    recorded = read_rows(folder / METRICS)
    if not recorded:
        raise CheckpointError(folder / METRICS, "holds no figures to compare with.")
    exp = _original(folder, secrets, trust)
    record = provenance.read_record(folder)
    most, limit = _most(folder, record, recorded, steps, exp.units)
    with tempfile.TemporaryDirectory(prefix="uniarena-verify-") as place, ended_early():
        scratch = Path(place) / "run"
        scratch.mkdir()
        watch = _Watch(folder, most)
        reached = _repeat(exp, folder, scratch, watch)
        repeated = read_rows(scratch / METRICS)
        now = provenance.write_provenance(scratch, seed=exp.experiment.seed)
        patches = [_patch(folder, record), _patch(scratch, now)]
    rows = [row for row in recorded if clock_of(row) <= reached]
    found = [_first_row(rows, repeated, reached), watch.mismatch]
    first = min((m for m in found if m is not None), key=lambda m: m.env_steps, default=None)
    return Verdict(
        folder,
        reached,
        len(rows),
        watch.compared,
        first,
        limit,
        _versions(record, now),
        _code(record, now, patches),
        exp.units,
    )


def _original(folder: Path, secrets: Sequence[str], trust: bool) -> Experiment:
    """The configuration that the run began with."""
    tree = saved_config(folder)
    checkpoint.check_trust(plain(tree.without("experiment")), folder, trust)
    exp = load([undone(tree, saved_changes(folder))], only_secrets(tree, secrets))
    assembly.check(exp)
    exp = rooted(exp, folder)
    return replace(exp, experiment=replace(exp.experiment, run_dir=None))


def _most(
    folder: Path,
    record: Mapping[str, Any],
    recorded: Sequence[Mapping[str, Any]],
    steps: int | None,
    units: str,
) -> tuple[int, str]:
    """How many env steps, or updates, to repeat, and what forbids more."""
    last = clock_of(recorded[-1])
    most, limit = last, f"{spelled(last, units)} is all that the run recorded" if (steps or 0) > last else ""
    for change in saved_changes(folder)[:1]:
        if change["env_steps"] < most:
            most, limit = (
                change["env_steps"],
                f"{change['key']} was changed at {spelled(change['env_steps'], units)}",
            )
    for start in record.get("resumed", []):
        if not start.get("exact", True) and start["env_steps"] < most:
            most = start["env_steps"]
            limit = f"it was resumed at {spelled(most, units)} from a checkpoint that was not exact"
    wanted = MOST if steps is None else steps
    return (wanted, "") if wanted < most else (most, limit)


class _Watch:
    """Ends the repetition, and compares each checkpoint that both have."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most
        self.compared: list[int] = []
        self.mismatch: Mismatch | None = None

    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        if trainer.counters.clock >= self.most and not trainer.done:
            trainer.request_stop(INTERRUPTED)  # for which no last evaluation is made

    def on_checkpoint(self, trainer: Any, event: Any) -> None:
        theirs = self.folder / CHECKPOINTS / event.path.name
        if (
            not event.path.name.isdigit()
            or not (theirs / "manifest.json").is_file()
            or self.mismatch is not None
        ):
            return
        env_steps = trainer.counters.clock
        if env_steps > self.most:
            return
        try:
            saved = checkpoint.load(theirs)[0]
        except CheckpointError:  # damaged: there is nothing to compare with
            return
        self.compared.append(env_steps)
        places = _differ(_kept(saved), _kept(trainer.state_dict()), "")
        for where, recorded, repeated in places:
            self.mismatch = Mismatch(env_steps, where, recorded, repeated)
            return


def _repeat(exp: Experiment, folder: Path, scratch: Path, watch: _Watch) -> int:
    """Train in the scratch folder → env steps."""
    with _silence():
        seed_globals(exp.experiment.seed)
        trainer, _ = assembly.build_trainer(
            exp, scratch, {"config": dump(exp)}, quiet=True, callbacks=[watch]
        )
        try:
            _set_threads(folder)
            trainer.fit(exp.total)
        finally:
            trainer.close()
    return trainer.counters.clock


def _set_threads(folder: Path) -> None:
    """As many threads as the run had: sums in another order differ in their last digits."""
    with contextlib.suppress(CheckpointError):
        source = checkpoint.newest(folder / CHECKPOINTS)[0]
        torch.set_num_threads(checkpoint.load(source, only=("trainer",))[0]["trainer"]["threads"])


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """What the run said has been said."""
    logger, handler = logging.getLogger("uniarena"), logging.NullHandler()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


# -- comparing ---------------------------------------------------------------------------------------------------
def _first_row(
    recorded: Sequence[Mapping[str, Any]], repeated: Sequence[Mapping[str, Any]], reached: int
) -> Mismatch | None:
    """The first figure that differs."""
    ours = {clock_of(row): row for row in repeated}
    steps = {clock_of(row) for row in recorded}
    for row in recorded:
        at = clock_of(row)
        if at not in ours:
            return Mismatch(at, "the row of this iteration", "there", "not there")
        for name in sorted({*row, *ours[at]} - {"env_steps"}):
            a, b = row.get(name), ours[at].get(name)
            late = name.startswith(_LATE) and (name not in row or name not in ours[at])
            if a != b and not (late or name in _CLOCK or name.startswith("system/")):
                return Mismatch(at, name, a, b)
    extra = [at for at in ours if at not in steps and at <= reached]
    return Mismatch(extra[0], "the row of this iteration", "not there", "there") if extra else None


def _kept(state: Mapping[str, Any]) -> dict[str, Any]:
    """What training depends on, without clocks and without what watches."""
    own = {name: state["trainer"][name] for name in _OWN_STATE}
    streams = own["streams"]  # in the order of their first use, which a resume may change
    own["streams"] = {**streams, "torch": {f"{name}@{at}": value for name, at, value in streams["torch"]}}
    return {**{name: state[name] for name in _STATE}, "trainer": own}


def _differ(a: Any, b: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Paths at which two states differ, with a value of each side."""
    if isinstance(a, torch.Tensor | np.ndarray) and isinstance(b, torch.Tensor | np.ndarray):
        x, y = (np.asarray(v.detach().cpu() if isinstance(v, torch.Tensor) else v) for v in (a, b))
        if x.dtype != y.dtype or x.shape != y.shape:
            yield where, f"{x.dtype} {list(x.shape)}", f"{y.dtype} {list(y.shape)}"
        elif np.ascontiguousarray(x).tobytes() != np.ascontiguousarray(y).tobytes():
            at = int(np.flatnonzero(x.reshape(-1) != y.reshape(-1))[0]) if (x != y).any() else 0
            yield f"{where}[{at}]", x.reshape(-1)[at].item(), y.reshape(-1)[at].item()
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            if key not in _CLOCK:
                yield from _differ(a.get(key), b.get(key), f"{where}.{key}" if where else str(key))
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _differ(x, y, f"{where}.{index}")
    elif type(a) is not type(b) or (a != b and not (a != a and b != b)):
        yield where, _short(a), _short(b)


def _short(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float) else str(value)[:80]


def _versions(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    if not then or not now:
        return {}
    records = [{"python": record.get("python"), **record.get("packages", {})} for record in (then, now)]
    return differences(records[0], records[1])


def _code(
    then: Mapping[str, Any], now: Mapping[str, Any], patches: list[dict[str, str]]
) -> dict[str, tuple[Any, Any]]:
    if not then or not now:
        return {}
    found = [
        {"commit": record.get("git", {}).get("commit"), "uncommitted changes": patch}
        for record, patch in zip((then, now), patches, strict=True)
    ]
    return differences(found[0], found[1])


def _patch(folder: Path, record: Mapping[str, Any]) -> dict[str, str]:
    path = folder / record.get("git", {}).get("diff", "-")
    return by_file(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else {}
