"""Parts of an observation: what is left out is hidden from the agent."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from uniarena.batch import Tree
from uniarena.config import ConfigError, config
from uniarena.envs.protocol import Env
from uniarena.envs.wrappers.base import EnvWrapper
from uniarena.envs.wrappers.leaves import choose_leaves, get_leaf, replace_leaves, set_leaves


@config
class SelectEntriesConfig:
    """Settings of `SelectEntries`."""

    entries: tuple[int, ...]  # places in the vector that are kept, in this order
    key: str = ""  # of nested observations: the leaf, such as sensors.joints


class SelectEntries(EnvWrapper):
    """Keeps some entries of a vector. Without its velocities CartPole needs memory: `entries: [0, 2]`.

    Raises:
        ConfigError: the leaf is no vector, or has no such entries.
    """

    Config = SelectEntriesConfig
    where = "environment.wrappers.select_entries"

    def __init__(self, env: Env, cfg: SelectEntriesConfig) -> None:
        super().__init__(env, cfg)
        vector = choose_leaves(
            env.observation_space, [cfg.key], _is_vector, self.where, "a Box of one dimension"
        )
        box: Any = vector[cfg.key]
        width = box.shape[0]
        if not cfg.entries or not all(0 <= entry < width for entry in cfg.entries):
            raise ConfigError(
                f"got {list(cfg.entries)}; the observation has the entries 0 to {width - 1}.",
                path=f"{self.where}.entries",
            )
        self._index = np.array(cfg.entries)
        kept = spaces.Box(box.low[self._index], box.high[self._index], dtype=box.dtype.type)
        self.observation_space = replace_leaves(env.observation_space, {cfg.key: kept})

    def _map_obs(self, obs: Tree) -> Tree:
        return set_leaves(obs, {self.cfg.key: get_leaf(obs, self.cfg.key)[:, self._index]})


def _is_vector(space: Any) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 1
