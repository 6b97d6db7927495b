"""A run from data without an environment: spaces and first observations are the data's, and nothing can be stepped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from uniarena.batch import tree_map
from uniarena.config import ConfigError, Experiment, brought_parts, component
from uniarena.config.assembly import of_data
from uniarena.config.errors import counted
from uniarena.config.fields import field_types
from uniarena.data import Dataset, load
from uniarena.envs.spaces import describe
from uniarena.ops.offline import held_out
from uniarena.registry import lookup

FQE_LOW = "offline/fqe_low"


class OnlySpaces(gym.Env[Any, Any]):
    """What data says of its environment.

    Args:
        data: whose spaces it has, and whose first observation it shows.
    """

    def __init__(self, data: Dataset) -> None:
        self.observation_space, self.action_space = data.observation_space, data.action_space
        self._first = tree_map(lambda leaf: leaf[0], data.obs(np.zeros(1, np.int64)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._first, {}

    def step(self, action: Any) -> Any:
        raise RuntimeError("there is no environment to step: this run has data alone.")


def data_of(exp: Experiment) -> Dataset:
    """The run's data, not kept in memory.

    Raises:
        ConfigError: it is not a dataset.
        DataError: it cannot be read.
    """
    assert exp.data is not None
    cfg = component("buffer", of_data(exp.data, exp.learner["type"]), "data")[1]
    if not hasattr(cfg, "path"):
        raise ConfigError(
            "no environment is named, and this data has no file that would say what there is to see and to do",
            "environment.id",
            hint="add `environment: {id: CartPole-v1}`",
        )
    return load(cfg, lazy=True)


def stand_in(exp: Experiment) -> Callable[[], OnlySpaces]:
    """What makes an environment of the data's spaces."""
    data = data_of(exp)

    def no_environment() -> OnlySpaces:
        return OnlySpaces(data)

    return no_environment


def concluded(exp: Experiment) -> list[str]:
    """What was concluded of the spaces, where neither the config nor the data says what they are."""
    data = data_of(exp)
    if data.spaces_known:
        return []
    spaces = f"observation {describe(data.observation_space)}, action {describe(data.action_space)}"
    return [
        f"no environment is named, and the data does not say what its spaces are; concluded from its values: {spaces}"
    ]


def best_figure(exp: Experiment) -> tuple[str | None, str]:
    """By which figure the best checkpoint of such a run is known, and whether that is its largest or smallest value.

    Cloning has held-out actions; others are judged by the lower end of a short fitted-Q evaluation; a policy with
    memory by nothing, and then the newest checkpoint counts.
    """
    learner = lookup("learner", exp.learner["type"])
    if "validation_share" in field_types(learner.Config):
        return "validation_loss", "min"
    if exp.agent.memory or brought_parts(learner, None).get("buffer", {}).get("type") == "sequence":
        return None, "max"
    return FQE_LOW, "max"


def unheld(cfg: Any, buffer: Any) -> list[str]:
    """A word where a validation share is so small, or episodes are so few, that none is held out."""
    share, data = getattr(cfg, "validation_share", 0.0), getattr(buffer, "dataset", None)
    if not share or data is None or bool(held_out(torch.arange(data.episodes), share).any()):
        return []
    return [
        f"none of the {counted(data.episodes, 'episode', 'episodes')} is held out at "
        f"learner.validation_share={share:g}, so there will be no validation_loss"
    ]


def refuse(wanted: str) -> ConfigError:
    """The error for what needs an environment in a run that has none."""
    return ConfigError(
        f"this run has no environment, and {wanted} needs one",
        "environment.id",
        hint="to evaluate: uniarena eval RUN --env ID, or on data: uniarena eval RUN --data FILE",
    )
