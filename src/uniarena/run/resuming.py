"""From where, and with which configuration, a run goes on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uniarena import assembly, checkpoint, provenance
from uniarena.checkpoint import CheckpointError
from uniarena.config import ConfigError, Experiment, Section, dump, from_text, load
from uniarena.config.errors import Faults
from uniarena.config.section import REDACTED, find
from uniarena.run.changes import Change, find_changes, schedules_moved
from uniarena.run.compare import change_line, differences, told
from uniarena.run.folder import (
    CHANGES,
    CHECKPOINTS,
    CONFIG,
    owner,
    read_result,
    run_folder,
    saved_config,
    write_lines,
)
from uniarena.run.whole import filled
from uniarena.trainer.clock import clock_of


class NothingToDo(Exception):
    """The run has reached its end already."""


@dataclass(frozen=True)
class Plan:
    """How a run goes on.

    Attributes:
        run: the run's folder.
        source: the checkpoint.
        meta: what was saved with it.
        before: the configuration that it was written with.
        exp: the configuration to go on with.
        changes: what is different.
        broken: newer checkpoints that are damaged, and why.
    """

    run: Path
    source: Path
    meta: dict[str, Any]
    before: Experiment
    exp: Experiment
    changes: list[Change]
    broken: list[tuple[Path, str]]

    @property
    def env_steps(self) -> int:
        """Where it goes on; of a run that learns from data, in updates."""
        return clock_of(self.meta["counters"])

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every change so far, these last."""
        return [*(self.meta.get("changes") or []), *(change.entry(self.env_steps) for change in self.changes)]

    @property
    def over(self) -> bool:
        """Whether nothing is left to do: all env steps, or updates, are there. Where the run was killed at its very
        end, before its last checkpoint and its result were written down, these are left.
        """
        own_end = self.exp.total == self.before.total  # a length that was lowered brings no run to its end
        unwritten = own_end and read_result(self.run) is None
        return self.env_steps >= self.exp.total and not unwritten

    def refuse_finished(self) -> None:
        """Raise NothingToDo where the run has all its env steps, or updates, and was brought to its end."""
        total, key = self.exp.total, "total_timesteps" if self.exp.data is None else "total_updates"
        if self.over:
            more = 2 * self.env_steps
            raise NothingToDo(
                f"{self.run} has reached its {total:,} {self.exp.units} already. To train it for longer: "
                f"uniarena resume {shlex.quote(str(self.run))} training.{key}={more}"
            )

    def record(self, folder: Path) -> None:
        """Keep the present configuration, and every change that led to it."""
        if self.history or (folder / CHANGES).exists():
            write_lines(folder / CHANGES, self.history)
        provenance.replace_text(folder / CONFIG, dump(self.exp))

    def account(self) -> list[str]:
        """What to tell of the changes."""
        entries = [change.entry(self.env_steps) for change in self.changes]
        moved = schedules_moved(self.before, self.exp, self.env_steps)
        return [*(f"changed{change_line(entry)[1:]}" for entry in entries), *moved]


def plan(
    run: Path, overrides: Sequence[str] = (), *, source: Path | None = None, given: Experiment | None = None
) -> Plan:
    """How to go on with a run's newest whole checkpoint, or with `source`, one of its checkpoints.

    Args:
        overrides: `key.path=value`: secrets that the saved configuration leaves out, and changes.
        given: the run's configuration, where it is known with its secrets.

    Raises:
        CheckpointError: no whole checkpoint is there.
        ConfigError: a secret is missing, or a change is impossible.
    """
    if source is None:
        tree = saved_config(run)
        source, broken = checkpoint.newest(run / CHECKPOINTS)
        meta = checkpoint.read_meta(source)
    else:
        meta, broken = checkpoint.read_meta(source), []
        tree = (
            from_text(meta["config"], f"{source / 'manifest.json'} (config)")
            if "config" in meta
            else saved_config(run)
        )
    if given is not None:
        tree = with_secrets(tree, given.source)
    secrets = [text for text in overrides if is_left_out(tree, text)]
    exp = load([tree], overrides)
    if len(secrets) < len(overrides):
        assembly.check(exp)
    before = _before(meta, tree, secrets, exp)
    return Plan(run, source, meta, before, exp, find_changes(before, exp, run), broken)


def is_left_out(tree: Mapping[str, Any], override: str) -> bool:
    """Whether an override gives again what a saved configuration left out as a secret."""
    return bool(find(tree, override.partition("=")[0].strip())[0] == REDACTED)


def _before(meta: Mapping[str, Any], tree: Section, secrets: Sequence[str], exp: Experiment) -> Experiment:
    """The configuration of a checkpoint; the present one where it cannot be read by this version."""
    text = meta.get("config")
    if text is None:
        return exp
    earlier = from_text(text, "the checkpoint's config")
    try:
        return load([with_secrets(earlier, tree)], secrets)
    except ConfigError:
        return exp


def with_secrets(saved: Any, known: Any) -> Any:
    """A saved configuration with the secrets that are known elsewhere."""
    if isinstance(saved, Section):
        copy = Section(saved)
        for key, entry in saved.items():
            copy[key] = with_secrets(entry, known.get(key) if isinstance(known, Mapping) else None)
        return copy
    if isinstance(saved, list):
        others = (
            known if isinstance(known, list | tuple) and len(known) == len(saved) else [None] * len(saved)
        )
        return type(saved)([with_secrets(entry, other) for entry, other in zip(saved, others, strict=True)])
    return known if saved == REDACTED and known is not None else saved


def checkpoint_of(path: Path) -> tuple[Path, Path | None]:
    """The run's folder that a path means, and the checkpoint, where it means one.

    Raises:
        CheckpointError: it is neither.
    """
    if (path / "manifest.json").is_file() and (owner(path) / CONFIG).is_file():
        return owner(path), path
    return run_folder(path), None


def requeued(folder: Path, exp: Experiment) -> Plan | None:
    """What a job that is started again has to do in its folder; None: begin.

    Raises:
        ConfigError: the folder holds a run with another configuration.
        NothingToDo: the run is complete.
    """
    if not (folder / CONFIG).is_file():
        return None
    try:
        checkpoint.newest(folder / CHECKPOINTS)
    except CheckpointError:
        return None
    stored = load([with_secrets(saved_config(folder), exp.source)])
    refuse_other(folder, stored, exp)
    found = plan(folder, given=exp)
    result = read_result(folder)
    if result is not None and not result.resumable:
        raise NothingToDo(f"{folder} is complete: {result.stop_reason} after {result.length}")
    found.refuse_finished()
    return found


def refuse_other(folder: Path, stored: Experiment, exp: Experiment) -> None:
    """Refuse to go on with a run of another configuration, key by key."""
    faults = Faults()
    for key, (old, new) in differences(filled(stored), filled(exp)).items():
        if key != "experiment.run_dir":
            change = (
                f"to change it in the run: uniarena resume {folder} {key}={told(new)}; or name another folder"
            )
            named = re.fullmatch(r"stages\.\d+\.name", key)  # by which its folder is found
            hint = "give the stage its name again, or name another folder" if named else change
            message = f"the run in {folder} has {told(old)}, this config {told(new)}"
            faults.add(message, key, exp.locate(key), hint)
    faults.check()
