"""Hindsight experience replay: transitions seen again as if another goal, one that was reached, had been wanted.

Andrychowicz et al. 2017 (arXiv:1707.01495). The observation is a dict with the keys `achieved_goal` and
`desired_goal`; rewards for other goals come from a pure function of the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import torch

from uniarena.buffers.gather import successors
from uniarena.buffers.layout import view
from uniarena.buffers.spec import BufferSpec, GoalReward
from uniarena.buffers.window import Window
from uniarena.config import Between, ConfigError, config
from uniarena.envs.column import base_get
from uniarena.envs.inside import changes_reward, single_envs
from uniarena.envs.protocol import Env
from uniarena.envs.spaces import leaf_spaces
from uniarena.envs.wrappers.base import EnvWrapper

if TYPE_CHECKING:
    from uniarena.buffers.ring import Ring

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"


@config
class HindsightConfig:
    """Settings of `Hindsight`."""

    strategy: Literal["future", "final", "episode"] = (
        "future"  # where in its episode the other goal was reached
    )
    ratio: Annotated[float, Between(0, 1)] = 0.8  # part of the sampled transitions that is relabelled


class Goals(NamedTuple):
    """Rows of a sample, and the goals `[M, …]` that they get."""

    rows: np.ndarray
    desired: np.ndarray


class Hindsight:
    """Relabels windows of a goal environment.

    - future: a goal that was reached in the same episode, at the transition or later;
    - final: the one reached by the episode's last step;
    - episode: any of the episode's.

    Of an episode that is still running, the steps so far count. A step terminates under its new goal where
    `goal_reward` says so, and where the environment had ended it for another reason than the goal. A window
    of several steps ends with the first that terminates.

    Args:
        cfg: an instance of `Config`.
        spec: with `goal_reward` and the observation space.

    Raises:
        ConfigError: no goals in the observation, stacked goals, or no `goal_reward`.
    """

    Config = HindsightConfig

    def __init__(self, cfg: HindsightConfig, spec: BufferSpec) -> None:
        self.cfg = cfg
        paths = [path for path, _ in leaf_spaces(spec.observation_space)]
        missing = {ACHIEVED, DESIRED} - set(paths)
        if missing:
            raise ConfigError(
                f"hindsight needs a dict observation with the keys {ACHIEVED} and {DESIRED}; this one has "
                f"{', '.join(paths) if paths != [''] else 'no keys'}",
                path="agent.buffer.her",
                hint="use a goal environment, or leave her out",
            )
        if {ACHIEVED, DESIRED} & {leaf.path for leaf in spec.stacks}:
            raise ConfigError(
                "the goals are stacked, so that no single one was reached or wanted",
                path="agent.buffer.her",
                hint="list what to stack in the frame_stack wrapper's keys, without the goals",
            )
        if spec.goal_reward is None:
            raise ConfigError(
                "hindsight needs the reward for other goals, and this environment has no compute_reward",
                path="agent.buffer.her",
                hint="give the environment compute_reward(achieved_goal, desired_goal, info) for arrays [N, …]",
            )
        self.goal_reward: GoalReward = spec.goal_reward
        self._achieved, self._desired = paths.index(ACHIEVED), paths.index(DESIRED)

    def relabel(
        self, ring: Ring, window: Window, generator: torch.Generator | None
    ) -> tuple[Window, Goals | None]:
        """Choose windows and goals, and recompute the rewards and the length of these windows.

        Returns:
            the windows, and the goals for `write` (None: nothing was relabelled).
        """
        count, n = window.places.shape
        draws = torch.rand(2, count, dtype=torch.float64, generator=generator).numpy()
        rows = np.flatnonzero(draws[0] < self.cfg.ratio)
        if not len(rows):
            return window, None
        reached = self._choose(ring, window.places[rows, 0], draws[1, rows])
        desired = successors(ring, self._achieved, reached)
        taken = np.arange(n) < window.steps[rows, None]
        places = window.places[rows][taken] % ring.places
        reward, ended = self._outcome(
            ring, places, np.repeat(desired, window.steps[rows], axis=0), window.terminated[rows][taken]
        )
        stop = np.arange(1, n + 1) >= window.steps[rows, None]
        stop[taken] |= ended
        for target, value in ((window.reward, reward), (window.terminated, ended)):
            part = target[rows]
            part[taken] = value
            target[rows] = part
        window.steps[rows] = stop.argmax(axis=1) + 1
        return window, Goals(rows, desired)

    def _outcome(
        self, ring: Ring, places: np.ndarray, desired: np.ndarray, terminated: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reward and termination of steps `[M]` under other goals `[M, …]`."""
        achieved = successors(ring, self._achieved, places)
        extra = {
            leaf.path: view(leaf, ring.table, ring.places)[places]
            for name in ring.layout.fields[1:]
            for leaf in ring.layout.leaves[name]
        }
        reward, ended = self._reward(achieved, desired, extra)
        if terminated.any():  # ended for another reason than its goal: ended for every goal
            wanted = view(ring.layout.leaves["obs"][self._desired], ring.table, ring.places)[places]
            ended |= terminated & ~self._reward(achieved, wanted, extra)[1]
        return reward, ended

    def write(self, goals: Goals, *sides: list[np.ndarray]) -> None:
        """Put the goals into gathered observations (leaves `[N, …]`)."""
        for leaves in sides:
            leaves[self._desired][goals.rows] = goals.desired

    def _choose(self, ring: Ring, places: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """Rows `[M]` (wrapped places) after which the new goals were reached."""
        position = ring.oldest + (places - ring.first_place) // ring.columns
        column = places % ring.columns
        end = ring.until.take(places, mode="wrap")
        end = np.where(end < 0, ring.cursor - 1, end)
        if self.cfg.strategy == "final":
            chosen = end
        else:
            begin = position
            if self.cfg.strategy == "episode":
                begin = np.maximum(position - ring.age.take(places, mode="wrap"), ring.oldest)
            chosen = begin + (draw * (end - begin + 1)).astype(np.int64)
        return (chosen % ring.rows) * ring.columns + column

    def _reward(
        self, achieved: np.ndarray, desired: np.ndarray, extra: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """`goal_reward` on `[M, …]`, checked.

        Raises:
            ValueError: it does not answer for every row.
        """
        reward, terminated = self.goal_reward(achieved, desired, extra)
        reward, terminated = np.asarray(reward, np.float32), np.array(terminated, bool)
        if reward.shape != (len(achieved),):
            raise ValueError(
                f"goal_reward gave rewards of shape {reward.shape} for {len(achieved)} goals; compute_reward must take "
                f"arrays of goals {achieved.shape} and give one reward each."
            )
        return reward, np.broadcast_to(terminated, reward.shape).copy()


def goal_reward_of(env: Env) -> GoalReward | None:
    """The reward of a goal environment (`compute_reward`, and `compute_terminated` where it has one) for any goals.

    Functions that judge one goal at a time are called once for each. Of environments in worker processes, one is made
    here to ask.

    Returns:
        None where the environment has no `compute_reward`.

    Raises:
        ConfigError: a wrapper changes rewards, which those for other goals would not follow.
    """
    layer: Any = env
    while isinstance(layer, EnvWrapper):
        if type(layer)._map_reward is not EnvWrapper._map_reward:
            raise _changed(type(layer).__name__)
        layer = layer.env
    singles, made = single_envs(env)
    single = singles[0] if singles else None

    def find(name: str) -> Any:
        try:
            return layer.get_attr(name)[0] if single is None else base_get(single, name)
        except (AttributeError, IndexError):
            return None

    compute, ends = find("compute_reward"), find("compute_terminated")
    if compute is None:
        if made and single is not None:
            single.close()
        return None
    if (name := changes_reward(env, single)) is not None:
        raise _changed(name)

    def goal_reward(achieved: Any, desired: Any, info: Any) -> tuple[Any, Any]:
        reward = _of_rows(compute, achieved, desired, info)
        return reward, False if ends is None else _of_rows(ends, achieved, desired, info)

    return goal_reward


def _changed(wrapper: str) -> ConfigError:
    return ConfigError(
        f"the wrapper {wrapper} changes the reward, and the rewards that hindsight computes would not follow it",
        path="agent.buffer.her",
        hint="change the reward in the environment's compute_reward instead",
    )


def _of_rows(function: Any, achieved: Any, desired: Any, info: Any) -> Any:
    """`function` on goals `[N, …]`; row by row where it gives one answer for all, or cannot take so many."""
    count = len(achieved)
    try:
        found = np.asarray(function(achieved, desired, info))
        if found.size == count:
            return found.reshape(count)
    except (ValueError, TypeError):  # written for one goal: the truth of an array is ambiguous
        if count == 1:
            raise
    rows = ({name: field[i] for name, field in info.items()} for i in range(count))
    answers = np.array([function(a, d, own) for a, d, own in zip(achieved, desired, rows, strict=True)])
    return answers.reshape(count) if answers.size == count else answers
