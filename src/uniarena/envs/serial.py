"""SerialEnvs: single Gymnasium environments stepped one after the other in this process. The default.

Episodes that end are reset in the same step. Observations are copied once, into memory that is kept; nothing
else is allocated in a step unless an episode ends or an environment reports metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import torch

from uniarena.batch import Tree, tree_map
from uniarena.envs.actions import ActionMap
from uniarena.envs.column import (
    StepError,
    base_call,
    base_get,
    base_set,
    begin,
    close_quietly,
    env_seeds,
    episode_end,
    explain_step,
    frame_of,
    refuse_misfit,
    refuse_none,
    scalar_reward,
)
from uniarena.envs.info import reduce_infos, reports
from uniarena.envs.native import load_native, native_state
from uniarena.envs.protocol import Final, Step
from uniarena.envs.score import Score
from uniarena.envs.storage import ObservationError, ObsRows

_NOTHING: dict[str, Any] = {}


class SerialEnvs:
    """B single environments as one batched environment (see `envs.protocol.Env`).

    Args:
        envs: B distinct environments with equal spaces.
        env_id: name for messages.
        seed: for the first reset, where `reset` is given none.

    Raises:
        ValueError: the same object twice, or spaces that differ.
    """

    tensor = False
    partial_reset = True

    def __init__(self, envs: Sequence[gym.Env], env_id: str = "", seed: int | None = None) -> None:
        self.env_id = env_id or type(envs[0].unwrapped).__name__
        self.device, self.has_final_obs = torch.device("cpu"), True
        refuse_shared(envs, self.env_id)
        for b, env in enumerate(envs):
            refuse_misfit(env, b, self.env_id, (envs[0].observation_space, envs[0].action_space))
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        self._rows = ObsRows(envs[0].observation_space, self.num_envs)
        self.observation_space = self._rows.space
        self.action_space = envs[0].action_space
        self.action_map = ActionMap(self.action_space)
        self._seed = seed
        self._steps = [env.step for env in self.envs]
        self._scores = [Score(env) for env in self.envs]
        self._reward = np.zeros(self.num_envs, np.float32)
        self._terminated, self._truncated, self._is_first = (np.zeros(self.num_envs, bool) for _ in range(3))
        self._checked = self._closed = self._marked = False
        self._only = self._rows.only

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None, mask: Any | None = None
    ) -> Tree:
        """Begin episodes in all columns, or in those of `mask` `[B]`; each gets its own seed from `seed`."""
        seed, self._seed = (self._seed if seed is None else seed), None
        seeds = env_seeds(seed, self.num_envs)
        for b in range(self.num_envs) if mask is None else np.flatnonzero(mask):
            self._rows.write(int(b), self._reset_one(int(b), seeds[b], options))
            self._scores[b].sync()
        self._checked = self._checked or mask is None
        return self._rows.tree

    def step(self, action: Tree) -> Step:
        """One step of every column with the policy's own actions `[B, …]`."""
        action = self.action_map(action)
        actions = action if isinstance(action, np.ndarray) else by_column(action, self.num_envs)
        if len(actions) != self.num_envs:
            raise ValueError(
                f"{len(actions)} actions were given for {self.num_envs} environments of {self.env_id}"
            )
        rewards: list[Any] = []
        told: list[tuple[int, Any]] = []
        ended: list[tuple[int, Tree, bool, bool]] = []
        leaf, shape = self._only
        for b, (step, own) in enumerate(zip(self._steps, actions, strict=True)):
            try:
                obs, reward, terminated, truncated, info = step(own)
                over = terminated or truncated
                if terminated is None or truncated is None:
                    refuse_none(self.envs[b], terminated, truncated)  # type: ignore[unreachable]
                if over:
                    failed, cut, info = episode_end(self.envs[b], terminated, truncated, info)
                    ended.append((b, self._rows.fresh(obs), failed, cut))
            except Exception as error:
                self._blame(error, b)
            rewards.append(reward)
            if over:
                obs = self._reset_one(b, None, None)
                info = {**info, **self._scores[b].at_end()}
            if info and reports(info):
                told.append((b, info))
            if leaf is not None and obs.__class__ is np.ndarray and obs.shape == shape:
                leaf[b] = obs  # the common case, which need not cost a call
            else:
                self._store(b, obs)
        try:
            sum(rewards)  # None and texts, which NumPy would take for numbers, are no summands
            self._reward[:] = rewards
        except (TypeError, ValueError, RuntimeError, OverflowError):  # not all plain scalars: one by one
            self._take_rewards(rewards)
        final = self._finish(ended) if ended or self._marked else None
        told_info = reduce_infos(told, self.num_envs) if told else _NOTHING
        flags = (self._terminated, self._truncated, self._is_first)
        return Step(self._rows.tree, self._reward, *flags, None, final, None, told_info)

    def close(self) -> None:
        """Close every environment; again is harmless."""
        if not self._closed:
            self._closed = True
            for b, env in enumerate(self.envs):
                close_quietly(env, f"environment {b} of {self.env_id}")

    def render(self) -> np.ndarray | None:
        """The first environment's picture, where it was made with a `render_mode` that gives arrays."""
        return frame_of(self.envs[0].render()) if self.envs[0].render_mode else None

    def state_dict(self) -> dict[str, Any] | None:
        """Native state of every environment, or None where one of them cannot give it."""
        states = [native_state(env) for env in self.envs]
        if any(state is None for state in states):
            return None
        return {"envs": states, "obs": tree_map(np.copy, self._rows.tree)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`, in this or in a newly made environment of the same kind."""
        if len(state["envs"]) != self.num_envs:
            raise ValueError(
                f"state of {len(state['envs'])} environments given; {self.env_id} has {self.num_envs}"
            )
        if not self._checked:
            self.reset()  # makes what the environments make at their first reset
        for env, own, score in zip(self.envs, state["envs"], self._scores, strict=True):
            load_native(env, own)
            score.sync()
        tree_map(np.copyto, self._rows.tree, state["obs"])
        self._checked, self._seed = True, None

    def get_attr(self, name: str) -> list[Any]:
        """Attribute `name` of every environment, found through its wrappers."""
        return [base_get(env, name) for env in self.envs]

    def set_attr(self, name: str, value: Any) -> None:
        """Set attribute `name` of every environment where it is defined; a new one goes to the base."""
        for env in self.envs:
            base_set(env, name, value)

    def call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call method `name` of every environment."""
        return [base_call(env, name, *args, **kwargs) for env in self.envs]

    def __repr__(self) -> str:
        return f"SerialEnvs({self.env_id}, num_envs={self.num_envs})"

    def _reset_one(self, b: int, seed: int | None, options: dict[str, Any] | None) -> Tree:
        try:
            obs = begin(self.envs[b], seed, options)
            if not self._checked:
                self._rows.check(obs, f"reset() of {self.env_id}")
        except Exception as error:
            error.add_note(f"in reset() of environment {b} of {self.env_id}")
            raise
        return obs

    def _store(self, b: int, obs: Tree) -> None:
        try:
            self._rows.write(b, obs)
        except ObservationError as error:
            self._blame(error, b)

    def _take_rewards(self, rewards: list[Any]) -> None:
        for b, reward in enumerate(rewards):
            try:
                self._reward[b] = scalar_reward(reward)
            except StepError as error:
                self._blame(error, b)

    def _finish(self, ended: list[tuple[int, Tree, bool, bool]]) -> Final | None:
        """Set the flags of this step; the final observations in one tree."""
        if self._marked:
            for flags in (self._terminated, self._truncated, self._is_first):
                flags.fill(False)
        self._marked = bool(ended)
        if not ended:
            return None
        for b, _, terminated, truncated in ended:
            self._terminated[b], self._truncated[b], self._is_first[b] = terminated, truncated, True
        index = np.array([b for b, *_ in ended], np.int64)
        trees = [obs for _, obs, *_ in ended]
        return Final(
            index, trees[0] if len(trees) == 1 else tree_map(lambda *rows: np.concatenate(rows), *trees)
        )

    def _blame(self, error: Exception, b: int) -> NoReturn:
        error = explain_step(self.envs[b], error)
        error.add_note(f"in step() of environment {b} of {self.env_id}")
        raise error


def refuse_shared(envs: Sequence[Any], env_id: str) -> None:
    """Refuse lists in which two entries are one object, or wrap one.

    Raises:
        ValueError: naming both.
    """
    seen: dict[int, int] = {}
    for b, env in enumerate(envs):
        first = seen.setdefault(id(getattr(env, "unwrapped", env)), b)
        if first != b:
            raise ValueError(
                f"environments {first} and {b} of {env_id} are the same object; each column steps its own: "
                "return a new environment from every call, e.g. `lambda: MyEnv()`"
            )


def by_column(action: Tree, num_envs: int) -> list[Tree]:
    """A tree of `[B, …]` as B trees."""
    return [tree_map(lambda leaf, b=b: leaf[b], action) for b in range(num_envs)]
