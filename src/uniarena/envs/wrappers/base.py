"""EnvWrapper: the one composition rule. A wrapper holds an environment and is one itself, on every backend.

A subclass overrides what it changes and inherits the rest:

- `_map_obs(obs)`: a stateless change of observations. It is applied to every observation there is (reset,
  step, final observations, dense `next_obs`), so that none of them can be forgotten.
- `_map_reward(reward)`: a change of the reward `[B]`; the environment's own stays available as
  `info["raw_reward"]`.
- `_map_action(action)`: a change of the policy's action before the inner environment sees it.
- `_reset(obs, seed, mask)` and `_step(step, action)`: for wrappers with memory; plus `_state` and
  `_load_state`.

Everything works on NumPy arrays and on torch tensors alike; `env.tensor` says which one is spoken.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import Space

from uniarena.batch import Tree, tree_map
from uniarena.envs.actions import ActionMap
from uniarena.envs.protocol import Env, Step


class EnvWrapper:
    """Forwards everything to `env`; subclasses change some of it (see the module docstring).

    Args:
        env: the environment to wrap, possibly a wrapper itself.
        cfg: the wrapper's own `Config`.

    Attributes:
        where: the config path that error messages point at.
        normalization: what the pipeline declares to be normalised; see `normalize`.
        partial_reset: whether `reset(mask=…)` works.
    """

    Config: ClassVar[type[Any]]
    where: ClassVar[str] = "environment.wrappers"

    def __init__(self, env: Env, cfg: Any) -> None:
        self.env = env
        self.cfg = cfg
        self.observation_space: Space[Any] = env.observation_space
        self.action_space: Space[Any] = env.action_space
        self.num_envs: int = env.num_envs
        self.device: torch.device = env.device
        self.tensor: bool = env.tensor
        self.has_final_obs: bool = env.has_final_obs
        self.env_id: str = env.env_id
        self.normalization: dict[str, dict[str, Any]] = dict(getattr(env, "normalization", {}))
        self.partial_reset: bool = getattr(env, "partial_reset", True)
        cls, base = type(self), EnvWrapper
        self._maps_obs = cls._map_obs is not base._map_obs
        self._maps_reward = cls._map_reward is not base._map_reward
        self._maps_action = cls._map_action is not base._map_action

    @property
    def action_map(self) -> ActionMap:
        """The base environment's map; there is one per pipeline, and it is the adapter that applies it."""
        return self.env.action_map

    @action_map.setter
    def action_map(self, value: ActionMap) -> None:
        self.env.action_map = value

    # What an environment does

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None, mask: Any | None = None
    ) -> Tree:
        obs = self.env.reset(seed=seed, options=options, mask=mask)
        if self._maps_obs:
            obs = self._map_obs(obs)
        return self._reset(obs, seed, mask)

    def step(self, action: Tree) -> Step:
        if self._maps_action:
            action = self._map_action(action)
        step = self.env.step(action)
        if self._maps_obs:
            final, next_obs = step.final, step.next_obs
            step = step._replace(
                obs=self._map_obs(step.obs),
                final=None if final is None else final._replace(obs=self._map_obs(final.obs)),
                next_obs=None if next_obs is None else self._map_obs(next_obs),
            )
        if self._maps_reward:
            info = step.info if "raw_reward" in step.info else {**step.info, "raw_reward": step.reward}
            step = step._replace(reward=self._map_reward(step.reward), info=info)
        return self._step(step, action)

    def close(self) -> None:
        self.env.close()

    def render(self) -> np.ndarray | None:
        return self.env.render()

    def state_dict(self) -> dict[str, Any] | None:
        """`{"env": …, "wrapper": …}`, or None where the base environment has no native state."""
        inner = self.env.state_dict()
        return None if inner is None else {"env": inner, "wrapper": self._state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state["env"])
        self._load_state(state["wrapper"])

    def get_attr(self, name: str) -> list[Any]:
        return self.env.get_attr(name)

    def set_attr(self, name: str, value: Any) -> None:
        self.env.set_attr(name, value)

    def call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return self.env.call(name, *args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env!r})"

    # What a subclass changes

    def _map_obs(self, obs: Tree) -> Tree:
        """Observations `[N, …]` → observations of `self.observation_space`. N is B, or K for final ones."""
        return obs

    def _map_reward(self, reward: Any) -> Any:
        """Reward `[B]` float32 → the same."""
        return reward

    def _map_action(self, action: Tree) -> Tree:
        """The policy's action `[B, …]` → what the inner environment gets."""
        return action

    def _reset(self, obs: Tree, seed: int | None, mask: Any | None) -> Tree:
        """After `reset` (of those in `mask`, or all): update the memory, give the observation to return."""
        return obs

    def _step(self, step: Step, action: Tree) -> Step:
        """After each step: update the memory, give the step to return."""
        return step

    def _state(self) -> dict[str, Any]:
        """The wrapper's own memory as plain data, copied."""
        return {}

    def _load_state(self, state: dict[str, Any]) -> None:
        """Take back what `_state` gave."""


def copy_tree(tree: Tree) -> Tree:
    """A tree that shares no memory with `tree`."""
    return tree_map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf.clone(), tree)
