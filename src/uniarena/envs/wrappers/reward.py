"""Reward clip and scale. What the environment itself gave stays readable as `info["raw_reward"]` `[B]`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from uniarena.config import ConfigError, config
from uniarena.envs.protocol import Env
from uniarena.envs.wrappers.base import EnvWrapper


@config
class ClipRewardConfig:
    """Settings of `ClipReward`."""

    low: float = -1.0  # rewards below become this
    high: float = 1.0  # rewards above become this

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"low is {self.low} and high is {self.high}; expected low < high", path="low")


class ClipReward(EnvWrapper):
    """reward → min(max(reward, low), high). Mnih et al. 2015 clip Atari rewards to [-1, 1]."""

    Config = ClipRewardConfig
    where = "environment.wrappers.clip_reward"

    def __init__(self, env: Env, cfg: ClipRewardConfig) -> None:
        super().__init__(env, cfg)
        self._buffer = _reward_buffer(env)

    def _map_reward(self, reward: Any) -> Any:
        if self.tensor:
            return torch.clamp(reward, self.cfg.low, self.cfg.high, out=self._buffer)
        return np.clip(reward, self.cfg.low, self.cfg.high, out=self._buffer)


@config
class ScaleRewardConfig:
    """Settings of `ScaleReward`."""

    scale: float = 1.0  # every reward is multiplied by this

    def __post_init__(self) -> None:
        if self.scale == 0 or not math.isfinite(self.scale):
            raise ConfigError(f"scale is {self.scale}; expected a finite number other than 0", path="scale")


class ScaleReward(EnvWrapper):
    """reward → scale · reward."""

    Config = ScaleRewardConfig
    where = "environment.wrappers.scale_reward"

    def __init__(self, env: Env, cfg: ScaleRewardConfig) -> None:
        super().__init__(env, cfg)
        self._buffer = _reward_buffer(env)

    def _map_reward(self, reward: Any) -> Any:
        if self.tensor:
            return torch.mul(reward, self.cfg.scale, out=self._buffer)
        return np.multiply(reward, self.cfg.scale, out=self._buffer)


def _reward_buffer(env: Env) -> Any:
    """Own memory: the environment's reward array may be part of its state."""
    if env.tensor:
        return torch.zeros(env.num_envs, device=env.device)
    return np.zeros(env.num_envs, np.float32)
