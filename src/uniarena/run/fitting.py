"""Stages held against each other and against their data, before the first one begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from uniarena.assembly.stages import placed_in
from uniarena.config import ConfigError, Experiment
from uniarena.config.errors import Fault, Faults
from uniarena.config.section import find
from uniarena.data import DataError
from uniarena.data import load as load_data
from uniarena.run.making import data_of, makings
from uniarena.run.recipes import Spaces, alone, spaces_of

_SPACES = ("environment.id", "environment.kwargs", "environment.wrappers", "environment", "data.path")
"""Where it may be written what there is to see and to do."""


def check_fit(exp: Experiment, first: int = 0) -> None:
    """Make each stage's environment where it is not that of the stage before, and open each stage's data, to hold
    them against each other. What data is to be made from a recipe and is not there is left out.

    Args:
        first: number of the first stage, from 0, that is to be checked: earlier ones have begun.

    Raises:
        ConfigError: everything that does not fit, cannot be made or cannot be read, with paths such as
            `stages.1.environment.id`.
    """
    found: dict[int, Sequence[Fault]] = {}
    look = _Look()
    for index, stage in list(enumerate(exp.stages))[first:]:
        faults = Faults()
        before = exp.stages[index - 1] if index else None
        with faults.gather(), stage.exp.locating():
            _check_environment(look, stage, before)
        with faults.gather(), stage.exp.locating():
            _check_data(look, stage.exp)
        found[index] = faults.found
    placed_in(exp, found)


@dataclass
class _Look:
    """Environments that were looked at."""

    seen: list[tuple[Any, Spaces | None]] = field(default_factory=list)

    def at(self, exp: Experiment) -> Spaces | None:
        """The spaces of a run; None where they are known only once its data was made."""
        absent = exp.environment.id is None
        if absent and any(not making.path.exists() for making in makings(exp)):
            return None
        key = (alone(exp).environment, exp.data if absent else None)
        for known, spaces in self.seen:
            if known == key:
                return spaces
        self.seen.append((key, None))  # what cannot be made is told once
        self.seen[-1] = (key, spaces_of(exp))
        return self.seen[-1][1]


def _check_environment(look: _Look, stage: Any, before: Any) -> None:
    if before is None or (before.exp.environment == stage.exp.environment and stage.exp.environment.id):
        return
    earlier, own = _quietly(look, before.exp), _told(look, stage.exp)
    faults = [] if earlier is None or own is None else earlier.misfits(own)
    if faults:
        path = next((path for path in _SPACES if find(stage.own, path)[0] is not None), _SPACES[0])
        raise ConfigError(
            f"stage {stage.name} starts as the agent of stage {before.name}, which has other spaces: "
            + "; ".join(faults),
            path,
            hint="give both the same spaces, wrappers included",
        )


def _check_data(look: _Look, exp: Experiment) -> None:
    faults = Faults()
    for where, cfg in data_of(exp):
        if missing := [each for each in makings(exp) if each.where == where and not each.path.exists()]:
            with faults.gather():
                missing[0].check(exp)
            continue
        spaces = None if exp.environment.id is None else _quietly(look, exp)
        given = () if spaces is None else (spaces.observation, spaces.action)
        try:
            load_data(cfg, *given, lazy=True)
        except DataError as error:
            said = f"{error.where}: {error.message}" if error.where else error.message
            faults.add(said, f"{where}.path", exp.locate(f"{where}.path"), error.hint)
    faults.check()


def _told(look: _Look, exp: Experiment) -> Spaces | None:
    """The spaces of a run. Data that stands for its environment and cannot be read is told where data is read."""
    try:
        return look.at(exp)
    except DataError:
        return None


def _quietly(look: _Look, exp: Experiment) -> Spaces | None:
    """The same where the error of an environment that cannot be made is told elsewhere."""
    try:
        return _told(look, exp)
    except ConfigError:
        return None
