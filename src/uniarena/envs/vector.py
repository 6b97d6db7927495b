"""VectorEnvs: any gymnasium.vector.VectorEnv, as it is, in all three autoreset modes.

- SAME_STEP: at an end the observation is that of the next episode; info holds the final one.
- NEXT_STEP: at an end the observation is the final one; the next step only resets, which `valid=False` says.
- DISABLED: nothing resets itself; the adapter resets ended columns in the same step, by
  `options["reset_mask"]`.

The set of real transitions is the same in all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from uniarena.batch import Tree, tree_map
from uniarena.envs.actions import ActionMap
from uniarena.envs.column import StepError, env_seeds
from uniarena.envs.faults import WorkerError, describe_loss
from uniarena.envs.info import reduce_infos, reduce_vector_info
from uniarena.envs.masks import VectorMasks, find_source, masked_space
from uniarena.envs.notices import notice
from uniarena.envs.protocol import Final, Step
from uniarena.envs.score import Score
from uniarena.envs.spaces import mask_size, refuse_unsupported, storage_differs, storage_space
from uniarena.envs.storage import ObsRows
from uniarena.envs.sync import Column
from uniarena.envs.vector_access import VectorAccess

_FINAL = ("final_obs", "final_observation")


class VectorEnvs:
    """B columns of a vector environment (see `envs.protocol.Env`).

    Args:
        vector: the environment.
        env_id: name for messages.
        seed: for the first reset, where `reset` is given none.
        action_mask: `auto`, `info`, `none` or a key (see `envs.masks`); None: masks, if any, are in the
            observation already.

    Raises:
        ConfigError: unsupported spaces, or no mask where one was asked for.
    """

    tensor = False

    def __init__(
        self, vector: VectorEnv, env_id: str = "", seed: int | None = None, action_mask: str | None = "auto"
    ) -> None:
        self.vector = vector
        self.env_id = env_id or type(vector.unwrapped).__name__
        self.num_envs, self.device, self.has_final_obs = vector.num_envs, torch.device("cpu"), True
        self.mode = _mode(vector, self.env_id)
        self._access = VectorAccess(vector)
        columns = self._access.base.envs if self._access.sync else ()
        ours = all(isinstance(env, Column) for env in columns)  # they keep their scores themselves
        self._scores = [] if ours else [Score(env) for env in columns]
        self.partial_reset = self.mode == AutoresetMode.DISABLED or self._access.partial_reset
        space = vector.single_observation_space
        refuse_unsupported(space, f"observation space of {self.env_id!r}")
        self.action_space = vector.single_action_space
        self.action_map = ActionMap(self.action_space)
        self._given = ObsRows(space, self.num_envs)  # of a single observation, before masks: casts and copies
        self._casts = storage_differs(space)
        self._seed = seed
        source = None
        if action_mask is not None:
            # info masks show in a reset only; the next one, with a seed, begins anew
            looks = action_mask != "none" and mask_size(self.action_space) is not None
            source = find_source(action_mask, space, self.action_space, vector.reset()[1] if looks else {})
        self._masks = None if source is None else VectorMasks(source, self.num_envs)
        self.observation_space = storage_space(space if source is None else masked_space(space, source))
        self._none = np.zeros(self.num_envs, bool)
        self._ended = self._none  # NEXT_STEP: columns that the next step resets
        self._obs: Tree = None
        self._closed = self._broken = False

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None, mask: Any | None = None
    ) -> Tree:
        """Begin episodes in all columns, or in those of `mask` `[B]`.

        Raises:
            ValueError: a partial reset of a vector environment that has none.
        """
        seed, self._seed = (self._seed if seed is None else seed), None
        if seed is not None:  # what their sample() draws; unseeded, they begin differently in every process
            for space in (self.action_space, self.vector.single_observation_space):
                space.seed(seed)
            self.vector.action_space.seed(seed)
            self.vector.observation_space.seed(seed)
        rows = None if mask is None or np.all(mask) else np.array(mask, bool)
        if rows is None:
            obs, info = self._guard("reset", seed=self._seeds(seed), options=options)
            self._given.check_rows(obs, f"reset() of {self.env_id}")
            self._ended = self._none
            self._obs = self._seen(obs, info, self._none)
            return self._obs
        if not self.partial_reset:
            raise ValueError(
                f"{self.env_id} cannot reset single environments (a {type(self.vector.unwrapped).__name__} "
                "in "
                f"{self.mode.value} mode); reset all of them, or use vectorization: serial, sync or async"
            )
        return self._reset_rows(rows, seed, options) if rows.any() else self._obs

    def step(self, action: Tree) -> Step:
        """One step of every column with the policy's own actions `[B, …]`."""
        result = self._guard("step", self.action_map(action))
        if not isinstance(result, (tuple, list)) or len(result) != 5 or not isinstance(result[4], Mapping):
            raise StepError(
                f"step() of {self.env_id} did not return the five values (observations, rewards, terminated, "
                f"truncated, info dict)"
            )
        obs, reward, terminated, truncated, info = result
        reward, terminated = np.array(reward, np.float32), np.array(terminated, bool)
        truncated = np.array(truncated, bool)
        for name, row in (("rewards", reward), ("terminated", terminated), ("truncated", truncated)):
            if row.shape != self._none.shape:
                raise StepError(
                    f"step() of {self.env_id} returned {name} of shape {row.shape}; expected {self._none.shape}, "
                    "one for each environment"
                )
        self._given.check_rows(obs, f"step() of {self.env_id}")
        return self._normalise(obs, (reward, terminated, truncated), info)

    def close(self) -> None:
        """Close; ends worker processes, also stuck or broken ones. Again is harmless."""
        if not self._closed:
            self._closed = True
            self._access.close(self._broken)

    def render(self) -> np.ndarray | None:
        """The first environment's picture, where it was made to draw."""
        return self._access.picture()

    def state_dict(self) -> dict[str, Any] | None:
        """Native state, or None where some environment cannot give it."""
        state = self._access.state()
        if state is None or self._obs is None:
            return None
        masks = None if self._masks is None else self._masks.mask.copy()
        return {
            "vector": state,
            "obs": tree_map(np.copy, self._obs),
            "ended": self._ended.copy(),
            "masks": masks,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`, in this or in a newly made environment of the same kind."""
        if self._obs is None:
            self.reset()  # fills what the environment makes at its first reset, buffers and generators
        self._access.load(state["vector"])
        for score in self._scores:
            score.sync()
        self._obs = tree_map(np.copy, state["obs"])
        self._ended, self._seed = np.array(state["ended"], bool), None
        if self._masks is not None:
            self._masks.mask[:] = state["masks"]

    def get_attr(self, name: str) -> list[Any]:
        """Attribute `name` of each base environment; a native vector environment is one object."""
        return self._access.get(name)

    def set_attr(self, name: str, value: Any) -> None:
        """Set attribute `name` of each base environment."""
        self._access.set(name, value)

    def call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call method `name` of each base environment."""
        return self._access.call(name, args, kwargs)

    def __repr__(self) -> str:
        return f"VectorEnvs({self.env_id}, num_envs={self.num_envs}, {self.mode.value})"

    def _normalise(
        self, obs: Tree, results: tuple[np.ndarray, np.ndarray, np.ndarray], info: dict[str, Any]
    ) -> Step:
        """The three modes become one meaning."""
        reward, terminated, truncated = results
        mode, valid, final = self.mode, None, None
        is_first = np.zeros(self.num_envs, bool)
        if mode == AutoresetMode.NEXT_STEP and self._ended.any():
            is_first = self._ended
            valid = ~is_first
            reward[is_first] = 0.0
            terminated &= valid
            truncated &= valid
        ended = terminated | truncated
        speaks_last = ended if mode == AutoresetMode.SAME_STEP else None
        told = reduce_vector_info(info, self.num_envs, speaks_last) if info else {}
        if self._masks is not None:
            self._masks.steps += 1
        if ended.any():
            index = np.flatnonzero(ended)
            if mode == AutoresetMode.SAME_STEP:
                final = self._told_final(index, info)
            elif any(name in info for name in _FINAL):
                raise ValueError(
                    f"{self.env_id} gives info['final_obs'], as one does that resets in the same step, but says "
                    f"{mode.value}; correct its metadata['autoreset_mode']"
                )
            else:
                final = Final(index, self._rows_of(obs, index, info))
            if mode != AutoresetMode.NEXT_STEP:
                is_first = ended
        self._obs = self._seen(obs, info, self._none if mode == AutoresetMode.SAME_STEP else ended)
        if mode == AutoresetMode.NEXT_STEP:
            self._ended = ended
        elif mode == AutoresetMode.DISABLED and final is not None:
            self._reset_rows(ended, None, None)
        if self._scores and ended.any():
            scores = [(int(b), self._scores[b].at_end()) for b in np.flatnonzero(ended)]
            told = {**told, **reduce_infos(scores, self.num_envs)}
        return Step(self._obs, reward, terminated, truncated, is_first, valid, final, None, told)

    def _reset_rows(self, rows: np.ndarray, seed: int | None, options: dict[str, Any] | None) -> Tree:
        """Reset some columns; the others keep their observation, whatever is answered for them."""
        kept = tree_map(np.copy, self._obs)
        options = {**(options or {}), "reset_mask": rows.copy()}
        obs, info = self._guard("reset", seed=self._seeds(seed), options=options)
        self._ended = self._ended & ~rows
        new = self._seen(obs, info, self._none, rows)

        def put(old: np.ndarray, leaf: np.ndarray) -> np.ndarray:
            old[rows] = leaf[rows]
            return old

        self._obs = tree_map(put, kept, new)
        return self._obs

    def _seen(
        self, obs: Tree, info: dict[str, Any], idle: np.ndarray, rows: np.ndarray | None = None
    ) -> Tree:
        """Observations of all columns in storage dtypes, with masks."""
        if self._casts:
            obs = self._cast(obs)
        return obs if self._masks is None else self._masks.current(obs, info, idle, rows)

    def _cast(self, obs: Tree) -> Tree:
        return tree_map(lambda like, leaf: np.asarray(leaf, like.dtype), self._given.tree, obs)

    def _rows_of(self, obs: Tree, index: np.ndarray, info: dict[str, Any] | None) -> Tree:
        """Copies of the rows `index`."""
        rows = tree_map(lambda like, leaf: np.asarray(leaf)[index].astype(like.dtype), self._given.tree, obs)
        return rows if self._masks is None else self._masks.final(rows, index, info)

    def _told_final(self, index: np.ndarray, info: dict[str, Any]) -> Final:
        """The final observations of a SAME_STEP environment, from its info.

        Raises:
            ValueError: it gave none.
        """
        given = next((info[name] for name in _FINAL if name in info), None)
        if given is None:
            raise ValueError(
                f"{self.env_id} resets in the same step and gave no info['final_obs'], though environment "
                f"{index[0]} ended; give the true last observations there: without them a time limit cannot "
                "be told from a failure"
            )
        final_info = info.get("final_info")
        final_info = final_info if isinstance(final_info, dict) else None
        if isinstance(given, np.ndarray) and given.dtype == object:
            trees = [self._given.fresh(given[b]) for b in index]
            rows = tree_map(lambda *leaves: np.concatenate(leaves), *trees)
            rows = rows if self._masks is None else self._masks.final(rows, index, final_info)
        else:
            rows = self._rows_of(given, index, final_info)
        return Final(index, rows)

    def _seeds(self, seed: int | None) -> Any:
        """One seed per column where columns are environments of their own, else one for all."""
        seeds = env_seeds(seed, self.num_envs)
        return seeds if self._access.per_column else seeds[0]

    def _guard(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.vector, method)(*args, **kwargs)
        except (EOFError, ConnectionError) as error:
            self._broken = True
            raise WorkerError(f"{method} of {self.env_id}: {describe_loss(self.vector)}") from error
        except BaseException as error:  # Ctrl-C too: workers may not have been heard to the end
            self._broken = True
            if isinstance(error, Exception):
                error.add_note(f"in {method} of {self.env_id}")
            raise


def _mode(vector: VectorEnv, env_id: str) -> AutoresetMode:
    stated = (vector.metadata or {}).get("autoreset_mode")
    if stated is None:
        notice(
            f"{env_id} does not say how it resets (metadata['autoreset_mode']); Gymnasium's default is "
            "taken: a finished "
            "environment resets in the next step"
        )
        return AutoresetMode.NEXT_STEP
    return AutoresetMode(stated)
