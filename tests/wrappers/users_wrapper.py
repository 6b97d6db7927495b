"""A wrapper as a user would write it: one file, named by import path."""

from __future__ import annotations

from typing import Any

from uniarena.config import config
from uniarena.envs.wrappers import EnvWrapper


@config
class ShiftConfig:
    by: float = 1.0  # added to every observation


class Shift(EnvWrapper):
    """obs → obs + by."""

    Config = ShiftConfig

    def _map_obs(self, obs: Any) -> Any:
        return obs + self.cfg.by
