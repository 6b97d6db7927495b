"""Runs in stages: a folder for each, an ordinary run whose agent starts as that of the one before.

The folder of the whole holds `stages.yaml`, the configuration, and `<number>-<name>` for each stage that has begun. A
stage begins with the last numbered checkpoint of the one before, read from disk also where nothing interrupts, so that
a run that was killed between two stages, or at any moment, goes on as one that was not.
"""

from __future__ import annotations

import logging
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from uniarena import assembly, checkpoint, provenance
from uniarena.checkpoint import CheckpointError
from uniarena.checkpoint.find import STAGES, has_saved, stages_in
from uniarena.config import ConfigError, Experiment, dump, load
from uniarena.config.read import read as read_config
from uniarena.config.schema import InitFromConfig, Stage
from uniarena.run.changes import Change, find_changes
from uniarena.run.compare import told
from uniarena.run.fitting import check_fit
from uniarena.run.folder import CHECKPOINTS, CONFIG, RESULT, clear_crashed, made, read_result
from uniarena.run.making import ensure_data, makings
from uniarena.run.result import Result
from uniarena.run.resuming import NothingToDo, Plan, is_left_out, plan, refuse_other, with_secrets
from uniarena.run.single import go_on, name_of, new_folder, own_folder, train_one
from uniarena.run.surroundings import INTERRUPTED, ended_early, messages

log = logging.getLogger("uniarena")


def train_stages(
    exp: Experiment,
    run_dir: str | Path | None,
    *,
    resume_if_exists: bool = False,
    quiet: bool = False,
    callbacks: Sequence[Any] = (),
) -> Result:
    """Train all stages of a configuration that was checked, or go on with them. Arguments and errors as of `train`."""
    check_fit(exp)  # what does not fit, is not there or damaged is told now, and not after hours
    missing = [making for part in exp.parts for making in makings(part) if not making.path.exists()]
    for making in missing:
        making.make(quiet)
    if missing:
        check_fit(exp)
    folder = made(own_folder(exp, run_dir)) if resume_if_exists else new_folder(exp, name_of(exp), run_dir)
    with ended_early(), checkpoint.locked(folder):
        if resume_if_exists and (folder / STAGES).is_file():
            refuse_other(folder, load([with_secrets(read_config(folder / STAGES), exp.source)]), exp)
        else:
            clear_crashed(folder)
            provenance.replace_text(folder / STAGES, dump(exp))
        try:
            return _Whole(exp, folder, quiet, callbacks).go_on()
        except BaseException:
            if not any((place / CONFIG).is_file() for place in stages_in(folder)):  # nothing has begun
                _discard(folder)
            raise


def resume_stages(
    folder: Path, overrides: Sequence[str] = (), *, quiet: bool = False, callbacks: Sequence[Any] = ()
) -> Result:
    """Go on with a run in stages, where it was. Arguments and errors as of `resume`; a change of what stages share
    holds for those that are not complete.
    """
    with ended_early(), checkpoint.locked(folder):
        tree = read_config(folder / STAGES)
        exp = load([tree], overrides)
        assembly.check(exp)
        addressed = {text.split(".")[1] for text in overrides if text.startswith("stages.")}
        whole = _Whole(exp, folder, quiet, callbacks, addressed)
        whole.check_names()
        if changes := [text for text in overrides if not is_left_out(tree, text)]:
            kept = whole.check_changes()
            whole.refuse_finished(changes)
            check_fit(exp, first=len([place for place in stages_in(folder) if has_saved(place)]))
            provenance.replace_text(folder / STAGES, dump(exp))
            for name, change in kept:
                log.warning("stage %s is complete and keeps %s=%s", name, change.key, told(change.old))
        return whole.go_on()


@dataclass(frozen=True)
class _Whole:
    """A run in stages.

    Attributes:
        addressed: numbers and names of stages that are to change, each by itself.
    """

    exp: Experiment
    folder: Path
    quiet: bool
    callbacks: Sequence[Any]
    addressed: frozenset[str] | set[str] = frozenset()

    def go_on(self) -> Result:
        """Every stage that is not complete, in turn, until one is interrupted → the result of all.

        Raises:
            NothingToDo: all are complete.
        """
        results: list[Result] = []
        idle = True
        for index, stage in enumerate(self.exp.stages):
            ended = None if self._wanted(index) else read_result(self._place(index))
            if ended is not None and not ended.resumable:
                results.append(ended)
                continue
            try:
                results.append(self._run(index, stage))
                idle = False
            except NothingToDo:
                results.append(self._over(index))
            if results[-1].resumable or results[-1].halted:
                break
        if idle:
            raise NothingToDo(f"all stages of {self.folder} are complete. {self._longer}")
        return _together(self.folder, self.exp.stages, results)

    @property
    def _longer(self) -> str:
        key = "total_timesteps" if self.exp.data is None else "total_updates"
        last = f"stages.{self.exp.stages[-1].name}.training.{key}"
        return f"To train the last one for longer: uniarena resume {shlex.quote(str(self.folder))} {last}=…"

    def refuse_finished(self, changes: Sequence[str]) -> None:
        """Raise NothingToDo where all stages are complete, so that no stage would ever have what is to change."""
        if all(self._finished(index) for index in range(len(self.exp.stages))):
            keys = " or ".join(dict.fromkeys(text.partition("=")[0] for text in changes))
            raise NothingToDo(
                f"all stages of {self.folder} are complete, so none can take another {keys}, and {STAGES} stays as it "
                f"is. {self._longer}"
            )

    def _finished(self, index: int) -> bool:
        """Whether nothing of a stage is left to train, also with changes."""
        if not self._begun(index):
            return False
        ended = None if self._wanted(index) else read_result(self._place(index))
        return (ended is not None and not ended.resumable) or self._plan(index).over

    def _place(self, index: int) -> Path:
        return self.folder / f"{index + 1}-{self.exp.stages[index].name}"

    def _begun(self, index: int) -> bool:
        return has_saved(self._place(index))

    def _wanted(self, index: int) -> bool:
        """Whether a stage that may be complete is to go on with changes: the last one, or one that is named."""
        named = {str(index), self.exp.stages[index].name} & self.addressed
        last = index == len(self.exp.stages) - 1
        return self._begun(index) and bool(named or last) and bool(self._plan(index).changes)

    def check_names(self) -> None:
        """Refuse other names for stages that have begun: by them their folders are found.

        Raises:
            ConfigError: a stage has begun under another name.
        """
        named = {self._place(index).name for index in range(len(self.exp.stages))}
        for place in stages_in(self.folder):
            if place.name in named or not has_saved(place):
                continue
            number, _, name = place.name.partition("-")
            raise ConfigError(
                f"stage {number} has begun as {name}, in {place}, and keeps its name and place",
                f"stages.{int(number) - 1}.name",
                hint=f"leave out the change, or call it {name} again",
            )

    def check_changes(self) -> list[tuple[str, Change]]:
        """Refuse what cannot change → which stages keep what they were trained with, by name.

        Raises:
            ConfigError: a stage is named that another has begun from, or a key that the state of one is shaped by.
        """
        kept = []
        for index, stage in enumerate(self.exp.stages):
            if not self._begun(index):
                continue
            found = self._plan(index)
            later = any(self._begun(k) for k in range(index + 1, len(self.exp.stages)))
            if later and found.changes and {str(index), stage.name} & self.addressed:
                raise ConfigError(
                    f"stage {stage.name} is complete, and the next one began from it",
                    f"stages.{index}.{found.changes[0].key}",
                    hint="train a new run with this value",
                )
            kept += [(stage.name, change) for change in found.changes if later]
        return kept

    def _plan(self, index: int) -> Plan:
        """How a stage that has begun goes on, with the present configuration."""
        place, exp = self._place(index), self.exp.stages[index].exp
        found = plan(place, given=exp)
        start = found.exp.agent.init_from
        now = replace(exp, experiment=replace(exp.experiment, run_dir=None))
        now = replace(now, agent=replace(now.agent, init_from=start))
        later = any(self._begun(k) for k in range(index + 1, len(self.exp.stages)))
        try:
            return replace(found, exp=now, changes=find_changes(found.before, now, place))
        except ConfigError:
            if not later:
                raise
            return found

    def _run(self, index: int, stage: Stage) -> Result:
        place = self._place(index)
        if self._begun(index):
            found = self._plan(index)
            found.refuse_finished()
            with checkpoint.locked(place):
                ensure_data(found.exp, self.quiet)
                return go_on(found, place, self.quiet, self.callbacks)
        if place.is_dir():
            clear_crashed(place)
        exp = replace(stage.exp, experiment=replace(stage.exp.experiment, run_dir=None))
        if index:
            last = last_checkpoint(self._place(index - 1))
            start = InitFromConfig(path=str(last), take="all", sha256=checkpoint.fingerprint(last))
            exp = replace(exp, agent=replace(exp.agent, init_from=start))
        with messages(made(place), self.quiet):
            log.info("stage %d of %d: %s", index + 1, len(self.exp.stages), stage.name)
        assembly.check(exp)
        ensure_data(exp, self.quiet)
        return train_one(exp, place, resume_if_exists=True, quiet=self.quiet, callbacks=self.callbacks)

    def _over(self, index: int) -> Result:
        """The result of a stage that ended, or was killed, with nothing left to do."""
        place = self._place(index)
        found = read_result(place)
        if (
            found is not None
        ):  # where it was interrupted in its last iteration there is nothing left to go on with
            return replace(found, resumable=False)
        counters = checkpoint.read_meta(last_checkpoint(place))["counters"]
        return Result(place, counters["env_steps"], 0.0, 0.0, None, updates=counters["updates"])


def last_checkpoint(run: Path) -> Path:
    """The checkpoint at the end of a stage: the numbered one where its result says that it ended. Of a stage that was
    not brought to its end, the newest.

    Raises:
        CheckpointError: it is not there.
    """
    ended = read_result(run)
    if ended is None:
        return checkpoint.newest(run / CHECKPOINTS)[0]
    found = run / CHECKPOINTS / str(ended.env_steps or ended.updates)
    if not found.is_dir():
        raise CheckpointError(
            found,
            f"is the end of stage {run.name}, from which the next one begins, and is not there. Put it back; or, to "
            f"bring the stage to its end once more, delete {run / RESULT} and resume.",
        )
    return found


def _together(folder: Path, stages: Sequence[Stage], results: Sequence[Result]) -> Result:
    """One result of several: lengths and times summed, the rest of the last."""
    last = results[-1]
    left = len(results) < len(stages)
    return replace(
        last,
        run=folder,
        env_steps=sum(result.env_steps for result in results),
        updates=sum(result.updates for result in results),
        setup_s=results[0].setup_s,
        wall_s=sum(result.wall_s for result in results),
        trusting=any(result.trusting for result in results),
        stop_reason=INTERRUPTED if left and last.halted else last.stop_reason,
        resumable=last.resumable or left,
        stages=tuple(results),
        stages_left=tuple(stage.name for stage in stages[len(results) :]),
    )


def _discard(folder: Path) -> None:
    for place in stages_in(folder):
        shutil.rmtree(place)
    (folder / STAGES).unlink()
    provenance.discard_if_empty(folder)
