"""All stages of a run held against their components, before the first one begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from uniarena.config import ConfigError, Experiment
from uniarena.config.errors import Fault, Faults
from uniarena.config.stages import STAGES, placed


def check_stages(exp: Experiment, check: Callable[[Experiment], None]) -> None:
    """`check` for each stage.

    Raises:
        ConfigError: everything wrong with any of them, with paths such as `stages.1.learner.gamma`.
    """
    found: dict[int, Sequence[Fault]] = {}
    for index, stage in enumerate(exp.stages):
        try:
            check(stage.exp)
        except ConfigError as error:
            found[index] = error.faults
    placed_in(exp, found)


def placed_in(exp: Experiment, found: Mapping[int, Sequence[Fault]]) -> None:
    """Raise the faults of stages, by number, each with the path at which it is written; nothing where there are none.

    Raises:
        ConfigError: all of them.
    """
    faults = Faults()
    faults.found += placed(found, [stage.own for stage in exp.stages], exp.source.without(STAGES))
    faults.check()
