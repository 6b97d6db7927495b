"""Returns by which a score is normalised: two numbers, the name of a D4RL dataset, or what the data's own card says.

D4RL's are facts of Fu et al. 2020 (arXiv:2004.07219), in `d4rl.json` with their source. They belong to the benchmark's
environments, and say nothing of data that others made.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

from uniarena.config.errors import ConfigError, closest
from uniarena.config.fields import config

OF_DATA = "data"
D4RL = "d4rl/"


@config
class Reference:
    """Mean returns of random actions and of an expert: 0 and 100 of the score."""

    random: float  # mean return of an episode of uniformly random actions
    expert: float  # mean return of an expert

    def __post_init__(self) -> None:
        for name in ("random", "expert"):
            if not math.isfinite(value := getattr(self, name)):
                raise ConfigError(f"expected a finite number, got {value:g}", name)
        if self.expert <= self.random:
            raise ConfigError(
                f"expert is {self.expert:g} and random {self.random:g}; an expert earns more than random actions",
                "expert",
                hint="are they exchanged?" if self.expert < self.random else "",
            )

    def score(self, value: float) -> float:
        """100 · (return − random) / (expert − random), unbounded. Fu et al. 2020, section 4."""
        return 100.0 * (value - self.random) / (self.expert - self.random)


def named(name: str, path: str = "") -> Reference:
    """The reference of a D4RL dataset or family: `d4rl/hopper-medium-v2`, `d4rl/hopper`.

    Args:
        path: config path of the name, for the error.

    Raises:
        ConfigError: there is none of that name.
    """
    known = published()
    if found := known.get(name.lower()):
        return found
    near = closest(name.lower(), list(known))
    raise ConfigError(
        f"no reference is known as {name!r}",
        path,
        hint=f"did you mean {near}?"
        if near
        else "write the name of a D4RL dataset such as d4rl/hopper-medium-v2, "
        "data (what the data's card says), or {random: …, expert: …}",
    )


@cache
def published() -> dict[str, Reference]:
    """`d4rl/` and the name of a dataset → its reference."""
    table = json.loads(Path(__file__).with_name("d4rl.json").read_text(encoding="utf-8"))
    return {
        f"{D4RL}{name}": Reference(random=row["random"], expert=row["expert"])
        for row in table["returns"]
        for name in row["datasets"]
    }
