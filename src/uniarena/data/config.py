"""DataConfig: which data, how it is read, and which part of it; MadeFromConfig: how a set of our own is made."""

from __future__ import annotations

from dataclasses import field
from math import inf, isfinite
from typing import Annotated, Literal

from uniarena.config import Between, ConfigError, config

Share = Annotated[float, Between(0, 1, above=True)]


@config
class DataConfig:
    """Settings of `data.load`, and of a buffer of type `dataset`."""

    path: str  # a file, a folder of files, or the name of a Minari dataset on this machine
    format: Literal["auto", "d4rl", "minari", "rlds", "npz"] = "auto"  # auto: told from what is there
    keys: dict[str, str] = field(
        default_factory=dict
    )  # field → key of the file, where it is not the usual one
    boundary: Literal["drop", "fixed_length", "jump"] = (
        "drop"  # how ends are found that no flag tells; drop: only those that stand out
    )
    episode_length: Annotated[int, Between(1)] | None = None  # steps of an episode, for fixed_length
    jump: Annotated[float, Between(1, above=True)] = (
        4.0  # times the usual change from which an observation jumps
    )
    episodes: tuple[int, int] | None = None  # only these, counted as found: [first, one behind the last]
    min_return: float | None = None  # only episodes with at least this return
    top_fraction: Share | None = None  # of those left, the share with the highest returns
    fraction: Share | None = None  # of those left, a share drawn by seed
    seed: Annotated[int, Between(0)] = 0  # of that draw
    nonfinite: Literal["refuse", "drop"] = (
        "refuse"  # what becomes of steps with values that are no float32: NaN, infinite, too large
    )
    action_bounds: tuple[float, float] | None = (
        None  # [low, high] of every component of an action, where neither the data nor an environment says them
    )
    memory_gb: Annotated[float, Between(0)] | None = (
        None  # kept in RAM at most; null: a quarter of what is free
    )
    memory_map: str | None = None  # folder for what does not fit; by default the system's for temporary files

    def __post_init__(self) -> None:
        for name in ("jump", "min_return", "memory_gb"):
            if (value := getattr(self, name)) is not None and not isfinite(value):
                hint = "give a number" if name == "jump" else "give a number, or leave it out"
                raise ConfigError(f"expected a finite number, got {value}", name, hint=hint)
        if self.boundary == "fixed_length" and self.episode_length is None:
            raise ConfigError(
                "boundary: fixed_length needs the length of an episode",
                "episode_length",
                hint="give it in steps",
            )
        if self.episode_length is not None and self.boundary != "fixed_length":
            raise ConfigError(
                f"a length is given, and boundary is {self.boundary}",
                "episode_length",
                hint="say boundary: fixed_length",
            )
        if self.action_bounds is not None and not -inf < self.action_bounds[0] < self.action_bounds[1] < inf:
            raise ConfigError(f"expected [low, high], got {list(self.action_bounds)}", "action_bounds")
        if self.episodes is not None and not 0 <= self.episodes[0] < self.episodes[1]:
            raise ConfigError(
                f"expected the first episode and one behind the last, got {list(self.episodes)}", "episodes"
            )


@config
class MadeFromConfig:
    """How a dataset is made where its file is not there: a recipe is trained, and its agents are recorded."""

    recipe: str  # a recipe or a config file that learns from experience, such as sac/pendulum
    kind: Literal["random", "medium", "expert", "mixed", "replay"] = "mixed"  # who acts
    episodes: Annotated[int, Between(1)] = 100  # recorded; replay has as many as the buffer holds
    env_steps: Annotated[int, Between(1)] | None = None  # length of the training; null: the recipe's own
    seed: Annotated[int, Between(0)] = 0  # of the training and of all draws
