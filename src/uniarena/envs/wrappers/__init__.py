"""Environment wrappers: one composition rule on every backend. `base.EnvWrapper` says how to write one."""

from __future__ import annotations

from uniarena.envs.wrappers.base import EnvWrapper

__all__ = ["EnvWrapper"]
