"""Time limit: cuts episodes after a number of steps, on backends that can reset single columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from uniarena.batch import Tree, tree_map
from uniarena.config import ConfigError, config
from uniarena.envs.protocol import Env, Final, Step
from uniarena.envs.wrappers.base import EnvWrapper, copy_tree


@config
class TimeLimitConfig:
    """Settings of `TimeLimit`."""

    max_episode_steps: int  # an episode that has not ended by then is truncated

    def __post_init__(self) -> None:
        if self.max_episode_steps < 1:
            raise ConfigError(
                f"max_episode_steps is {self.max_episode_steps}; expected 1 or more", path="max_episode_steps"
            )


class TimeLimit(EnvWrapper):
    """Truncates episodes after `max_episode_steps` steps; the true last observation is kept as the final one.

    Raises:
        ConfigError: the backend cannot reset single columns (use `environment.max_episode_steps`, its own
            option).
    """

    Config = TimeLimitConfig
    where = "environment.wrappers.time_limit"

    def __init__(self, env: Env, cfg: TimeLimitConfig) -> None:
        super().__init__(env, cfg)
        if not self.partial_reset:
            raise ConfigError(
                f"{env.env_id!r} has a backend that cannot reset single environments, as a time limit must",
                path=self.where,
                hint=f"use the backend's own: `environment.max_episode_steps: {cfg.max_episode_steps}`",
            )
        zeros = np.zeros(env.num_envs, np.int64)
        self._count: Any = torch.from_numpy(zeros).to(env.device) if env.tensor else zeros
        # So many steps no column can reach the limit: no look at the counters, no wait for a device.
        self._sure = 0

    def _reset(self, obs: Tree, seed: int | None, mask: Any | None) -> Tree:
        self._count[... if mask is None else mask] = 0
        self._sure = 0
        return obs

    def _step(self, step: Step, action: Tree) -> Step:
        count = self._count
        count += 1 if step.valid is None else step.valid
        if self._sure > 0:
            self._sure -= 1
            count *= ~step.is_first
            return step
        over = (count >= self.cfg.max_episode_steps) & ~(step.terminated | step.truncated)
        if step.valid is not None:
            over &= step.valid
        count *= ~step.is_first
        if bool(over.any()):
            step = self._cut(step, over)
        self._sure = max(0, self.cfg.max_episode_steps - int(count.max()) - 1)
        return step

    def _cut(self, step: Step, over: Any) -> Step:
        """Truncate the columns `over` `[B]`: keep their last observation, reset them."""
        index = over.nonzero()[0] if isinstance(over, np.ndarray) else over.nonzero().squeeze(1)
        final = step.final
        if step.next_obs is None:
            final = _join(final, Final(index, tree_map(lambda leaf: leaf[index], step.obs)))
        kept = step._replace(  # copies: the reset may write to the environment's own memory
            reward=copy_tree(step.reward),
            terminated=copy_tree(step.terminated),
            truncated=step.truncated | over,
            is_first=step.is_first | over,
            valid=None if step.valid is None else copy_tree(step.valid),
            final=final,
            next_obs=None if step.next_obs is None else copy_tree(step.next_obs),
            info=copy_tree(step.info),
        )
        obs = self.env.reset(mask=over)
        self._count[index] = 0
        return kept._replace(obs=obs)

    def _state(self) -> dict[str, Any]:
        return {"count": copy_tree(self._count)}

    def _load_state(self, state: dict[str, Any]) -> None:
        self._count[...] = state["count"]
        self._sure = 0


def _join(first: Final | None, second: Final) -> Final:
    if first is None:
        return second
    cat: Any = np.concatenate if isinstance(second.index, np.ndarray) else torch.cat
    return Final(cat((first.index, second.index)), tree_map(lambda a, b: cat((a, b)), first.obs, second.obs))
