"""A user's wrapper in one file: it appends the share of the time limit that is left to flat observations."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from uniarena.config import config
from uniarena.envs.protocol import Env, Step
from uniarena.envs.wrappers.base import EnvWrapper


@config
class TimeLeftConfig:
    limit: int = 500  # steps


class TimeLeft(EnvWrapper):
    """Observation `[D]` → `[D + 1]`; 1 at the first step of an episode, 0 at the limit."""

    Config = TimeLeftConfig

    def __init__(self, env: Env, cfg: TimeLeftConfig) -> None:
        super().__init__(env, cfg)
        inner: Any = env.observation_space
        low, high = np.append(inner.low, np.float32(0)), np.append(inner.high, np.float32(1))
        self.observation_space = spaces.Box(low, high, dtype=np.float32)
        self.steps = np.zeros(env.num_envs, np.int64)

    def _reset(self, obs: Any, seed: int | None, mask: Any | None) -> Any:
        self.steps[slice(None) if mask is None else mask] = 0
        return self._append(obs, self.steps)

    def _step(self, step: Step, action: Any) -> Step:
        self.steps += 1
        final = step.final
        if final is not None:
            final = final._replace(obs=self._append(final.obs, self.steps[final.index]))
        self.steps[step.is_first] = 0
        return step._replace(obs=self._append(step.obs, self.steps), final=final)

    def _state(self) -> dict[str, Any]:
        return {"steps": self.steps.copy()}

    def _load_state(self, state: dict[str, Any]) -> None:
        self.steps[:] = state["steps"]

    def _append(self, obs: Any, steps: Any) -> Any:
        left = 1.0 - steps / self.cfg.limit
        return np.concatenate([obs, left[:, None].astype(np.float32)], axis=1)
