"""Action masks: found in info or in the observation, made the reserved leaf `action_mask` of the observation.

An all-zero mask reads as all ones where no action is taken (final observations, rows that are only a reset)
and is an error elsewhere. A mask that was there at the reset must be there at every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import Space, spaces

from uniarena.batch import Tree
from uniarena.config import ConfigError
from uniarena.envs.spaces import MASK, describe, keep_order, mask_size, with_mask_leaf


class ActionMaskError(ValueError):
    """A mask that allows no action, has the wrong size or is missing."""


class MaskSource(NamedTuple):
    """Where the mask comes from: `info[key]`, `obs[key]`, or nowhere though there is one (`drop`)."""

    place: Literal["info", "obs", "drop"]
    key: str
    size: int


def find_source(
    mode: str, observation_space: Space[Any], action_space: Space[Any], info: Mapping[str, Any]
) -> MaskSource | None:
    """Decide by the option `environment.action_mask` and the info of the first reset.

    Args:
        mode: `auto`, `info`, `none`, or a key of info or of the observation.

    Raises:
        ConfigError: a mask was asked for and none is there, or the action space cannot have one.
    """
    size = mask_size(action_space)
    keys = list(observation_space.spaces) if isinstance(observation_space, spaces.Dict) else []
    if mode == "none":
        return MaskSource("drop", MASK, 0) if MASK in keys else None
    if mode == "auto":
        if size is None:
            return None
        if MASK in keys:
            return MaskSource("obs", MASK, size)
        return MaskSource("info", MASK, size) if MASK in info else None
    key = MASK if mode == "info" else mode
    if size is None:
        raise ConfigError(
            f"action_mask={mode!r} with the action space {describe(action_space)}: masks need Discrete or "
            "MultiDiscrete",
            path="environment.action_mask",
            hint="set it to none",
        )
    if mode != "info" and key in keys:
        return MaskSource("obs", key, size)
    if key in info:
        return MaskSource("info", key, size)
    raise ConfigError(
        f"action_mask={mode!r}, but the first reset gave info with {sorted(map(str, info))} and an "
        "observation with "
        f"{keys or 'no keys'}",
        path="environment.action_mask",
        hint="return the mask in info at reset and at every step, or name the key it has",
    )


def masked_space(space: Space[Any], source: MaskSource) -> Space[Any]:
    """The observation space with the leaf `action_mask`, or without it where masks are dropped."""
    if source.place == "info":
        return with_mask_leaf(space, source.size)
    assert isinstance(space, spaces.Dict)
    rest = keep_order({key: child for key, child in space.spaces.items() if key != source.key})
    return rest if source.place == "drop" else with_mask_leaf(rest, source.size)


def with_mask(obs: Tree, mask: Any) -> dict[str, Tree]:
    """The observation with its mask leaf, which comes last, as in `masked_space`."""
    return {**obs, MASK: mask} if isinstance(obs, dict) else {"obs": obs, MASK: mask}


def as_mask(value: Any, size: int, where: str) -> np.ndarray:
    """int8 `[size]` of 0 and 1 from whatever the environment gave.

    Raises:
        ActionMaskError: the wrong number of entries.
    """
    mask = np.asarray(value)
    if mask.size != size:
        raise ActionMaskError(
            f"{where}: the action mask has shape {mask.shape}; expected {size} entries (Discrete: n, "
            "MultiDiscrete: sum of nvec)"
        )
    return (mask.reshape(size) != 0).astype(np.int8)


class MaskObs(gym.Wrapper):
    """Puts the mask of one environment into its observation.

    Args:
        env: the environment.
        source: from `find_source`.
        column: its index, for messages.
    """

    def __init__(self, env: gym.Env, source: MaskSource, column: int = 0) -> None:
        super().__init__(env)
        self.source, self.column, self.steps = source, column, 0
        self.observation_space = masked_space(env.observation_space, source)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset → (observation with mask, info)."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.steps = 0
        return self._masked(obs, info, final=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step → the same with the mask in the observation."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        return self._masked(obs, info, bool(terminated or truncated)), reward, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        """Steps of the running episode."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.steps = state["steps"]

    def _masked(self, obs: Any, info: Mapping[str, Any], final: bool) -> Any:
        place, key, size = self.source
        if place != "info":
            obs = dict(obs)
            mask = obs.pop(key)
            if place == "drop":
                return obs
        else:
            mask = info.get(key)
        where = f"environment {self.column}, step {self.steps} of its episode"
        return with_mask(obs, checked(mask, size, final, where, key))


def checked(mask: Any, size: int, idle: bool, where: str, key: str) -> np.ndarray:
    """One mask `[size]` int8; all ones where no action follows (`idle`) and none or an empty one was given.

    Raises:
        ActionMaskError: it is missing or allows nothing, and an action is due.
    """
    if mask is None:
        if idle:
            return np.ones(size, np.int8)
        raise ActionMaskError(
            f"{where}: info has no {key!r}, though the first reset gave one; give the mask at every step, "
            "or set "
            "environment.action_mask: none"
        )
    parsed = as_mask(mask, size, where)
    if not parsed.any():
        if not idle:
            raise ActionMaskError(
                f"{where}: the action mask allows no action; allow at least one, or end the episode"
            )
        parsed[:] = 1
    return parsed


class VectorMasks:
    """Masks of a gymnasium vector environment, whose info holds arrays `[B, …]` with presence masks `_<key>`.

    Args:
        source: from `find_source`.
        num_envs: B.
    """

    def __init__(self, source: MaskSource, num_envs: int) -> None:
        self.source, self.num_envs, self.steps = source, num_envs, 0
        self.mask = np.ones((num_envs, max(source.size, 1)), np.int8)

    def current(
        self, obs: Tree, info: Mapping[str, Any], idle: np.ndarray, rows: np.ndarray | None = None
    ) -> Tree:
        """Observations `[B, …]` with their masks.

        Args:
            idle: `[B]` bool: columns whose next action is ignored.
            rows: `[B]` bool: only these are new, the others keep their mask (partial reset); None: all.
        """
        place, key, size = self.source
        if place != "info":
            obs = dict(obs)
            given = obs.pop(key)
            if place == "drop":
                return obs
            info = {key: given}
        values, present = info.get(key), info.get(f"_{key}")
        for b in range(self.num_envs) if rows is None else np.flatnonzero(rows):
            mask = values[b] if values is not None and (present is None or present[b]) else None
            self.mask[b] = checked(mask, size, bool(idle[b]), f"environment {b}, step {self.steps}", key)
        return with_mask(obs, self.mask)

    def final(self, obs: Tree, index: np.ndarray, info: Mapping[str, Any] | None) -> Tree:
        """Final observations `[K, …]` of columns `index` with their masks, all ones where none came."""
        place, key, size = self.source
        if place != "info":
            obs = dict(obs)
            given = obs.pop(key)
            if place == "drop":
                return obs
            masks = [checked(given[k], size, True, "final observation", key) for k in range(len(index))]
            return with_mask(obs, np.stack(masks))
        info = info or {}
        values, present = info.get(key), info.get(f"_{key}")
        found = [values[b] if values is not None and (present is None or present[b]) else None for b in index]
        return with_mask(
            obs, np.stack([checked(mask, size, True, "final observation", key) for mask in found])
        )
