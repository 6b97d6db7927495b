"""A lost life as the end of an episode, for learning alone: the game goes on, and so do its return and length."""

from __future__ import annotations

from typing import Any

import numpy as np

from uniarena.batch import Tree, tree_map
from uniarena.config import ConfigError, config
from uniarena.envs.info import GOES_ON, LIVES
from uniarena.envs.protocol import Env, Final, Step
from uniarena.envs.wrappers.base import EnvWrapper, copy_tree


@config
class EpisodicLifeConfig:
    """Nothing to set."""


class EpisodicLife(EnvWrapper):
    """A step after which `info["lives"]` is smaller than before terminates, where the game itself goes on.

    Mnih et al. 2015 (Nature 518:529), methods: "we also used the lives counter to mark the end of an episode in
    training". Nothing is stepped or reset for it: the observation after the loss ends one episode and begins the next.
    Returns and lengths, of training and of evaluation, are those of whole games.

    Raises:
        ConfigError: tensor simulators, whose info tells no lives; or, in the first step, none are told.
    """

    Config = EpisodicLifeConfig
    where = "environment.wrappers.episodic_life"

    def __init__(self, env: Env, cfg: EpisodicLifeConfig) -> None:
        super().__init__(env, cfg)
        if env.tensor:
            raise ConfigError(
                f"{env.env_id!r} is a tensor simulator, whose lives are not told",
                path=self.where,
                hint="end its episodes in the simulator",
            )
        self._lives = np.full(env.num_envs, np.nan, np.float32)

    def _reset(self, obs: Tree, seed: int | None, mask: Any | None) -> Tree:
        self._lives[... if mask is None else mask] = np.nan
        return obs

    def _step(self, step: Step, action: Tree) -> Step:
        if LIVES not in step.info:
            if step.valid is not None and not step.valid.any():
                return step
            raise ConfigError(
                f"{self.env_id!r} tells no lives: its step() gives no number as info['lives']",
                path=self.where,
                hint="leave the wrapper out, or give the environment's info the entry 'lives'",
            )
        lives, over = step.info[LIVES], step.terminated | step.truncated | step.is_first
        lost = (lives < self._lives) & ~over
        if step.valid is not None:
            lost &= step.valid
        self._lives = np.where(over, np.nan, np.where(np.isnan(lives), self._lives, lives))
        return self._ended(step, lost) if lost.any() else step

    def _ended(self, step: Step, lost: np.ndarray) -> Step:
        index = np.flatnonzero(lost)
        final = Final(index, copy_tree(tree_map(lambda leaf: leaf[index], step.obs)))
        if step.final is not None:
            order = np.concatenate((step.final.index, index))
            final = Final(order, tree_map(lambda a, b: np.concatenate((a, b)), step.final.obs, final.obs))
        return step._replace(
            terminated=step.terminated | lost,
            is_first=step.is_first | lost,
            final=final,
            info={**step.info, GOES_ON: lost.astype(np.float32)},
        )

    def _state(self) -> dict[str, Any]:
        return {"lives": self._lives.copy()}

    def _load_state(self, state: dict[str, Any]) -> None:
        self._lives = np.array(state["lives"])
