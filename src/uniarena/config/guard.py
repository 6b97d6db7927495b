"""The section `training.guard`: what becomes of numbers that are NaN, infinite or huge."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from uniarena.config.fields import Between, config

Rule = Literal["stop", "skip", "clip", "rollback", "reinit"]
RULES: tuple[str, ...] = get_args(Rule)


@config
class GuardConfig:
    """Finds NaN, infinite and huge numbers before they reach a step of an optimiser, and what happens then."""

    short: ClassVar[str] = "rule"

    rule: Rule = "stop"  # stop, skip, clip, rollback or reinit
    max_abs: Annotated[float, Between(0, 3e38, above=True)] = (
        1e15  # larger magnitudes count as faults; the squares of 1e8 such numbers sum up within float32
    )
    max_tries: Annotated[int, Between(1)] = 10  # times in a row (reinit: in all) before the run stops anyway
    learning_rate_factor: Annotated[float, Between(0, 1, above=True)] = (
        1.0  # rollback: what the learning rate is multiplied by each time
    )
    part: str = "auto"  # reinit: policy, value or another part of the model; auto: the one at fault
