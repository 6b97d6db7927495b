"""Evaluation: whole episodes of a frozen agent, in raw units, without moving anything that training depends
on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from uniarena.batch import tree_leaves, tree_map
from uniarena.config import Reference
from uniarena.config.errors import counted
from uniarena.envs.fit import differs_from
from uniarena.envs.notices import notice
from uniarena.envs.protocol import Env, Step
from uniarena.explorers.actor import untouched
from uniarena.policies.decision import told
from uniarena.seeding import preserved_globals, seed_globals

__all__ = ["EvalResult", "evaluate_agent", "interquartile_mean"]

_log = logging.getLogger(__name__)


class HasActor(Protocol):
    """What evaluation needs of an agent."""

    device: torch.device

    @property
    def actor(self) -> Any:
        """With `pick(obs, state, is_first, deterministic, generator)` and `initial_state(count)`."""


@dataclass(frozen=True)
class EvalResult:
    """Returns of evaluated episodes, in the environment's own reward (before clipping, scaling,
    normalisation).

    Attributes:
        episodes: how many were run.
        mode: `deterministic` (the mode of the policy) or `stochastic` (samples).
        returns, lengths: one number per episode; lengths in environment steps.
        success_rate: fraction of episodes that the environment called a success; None where it says nothing.
        seconds: wall time it took.
        reference: the returns that make 0 and 100 of a score; None: there is no score.
    """

    mode: str
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    success_rate: float | None = None
    seconds: float = 0.0
    reference: Reference | None = None

    @property
    def score(self) -> float | None:
        """The mean return between that of random actions (0) and an expert's (100)."""
        return None if self.reference is None else self.reference.score(self.return_mean)

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        """Deviation over the episodes (population)."""
        return float(np.std(self.returns))

    @property
    def return_iqm(self) -> float:
        return interquartile_mean(self.returns)

    @property
    def length_mean(self) -> float:
        return float(np.mean(self.lengths))

    def figures(self) -> dict[str, float]:
        """The figures that are logged, by name."""
        found = {
            "episodes": float(self.episodes),
            "return_mean": self.return_mean,
            "return_std": self.return_std,
            "return_iqm": self.return_iqm,
            "length_mean": self.length_mean,
        }
        more = {"success_rate": self.success_rate, "score": self.score}
        return found | {name: value for name, value in more.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        return {**self.figures(), "episodes": self.episodes, "mode": self.mode}

    def __str__(self) -> str:
        episodes = counted(self.episodes, "episode", "episodes")
        return (
            f"{self.mode}, {episodes}: return {self.return_mean:.2f} ± {self.return_std:.2f}, "
            f"interquartile mean {self.return_iqm:.2f}, length {self.length_mean:.1f}"
            + ("" if self.score is None else f", score {self.score:.1f}")
        )


def interquartile_mean(values: Sequence[float] | np.ndarray, axis: int | None = None) -> Any:
    """Mean of the middle half: ⌊n / 4⌋ values are dropped at either end (Agarwal et al. 2021, "Deep RL at the
    edge of the statistical precipice"). With fewer than four values it is the mean.

    Args:
        axis: which axis to reduce; None: all values, and the result is a float.

    Raises:
        ValueError: there are no values.
    """
    array = np.asarray(values, dtype=np.float64)
    array = array.reshape(-1) if axis is None else np.moveaxis(array, axis, -1)
    count = array.shape[-1]
    if count == 0:
        raise ValueError("the interquartile mean of no values was asked for; give at least one.")
    cut = count // 4
    middle = np.sort(array, axis=-1)[..., cut : count - cut].mean(axis=-1)
    return float(middle) if axis is None else middle


def evaluate_agent(
    agent: HasActor,
    env: Env,
    episodes: int,
    *,
    deterministic: bool = True,
    seed: int = 0,
    max_episode_steps: int = 100_000,
) -> EvalResult:
    """Run `episodes` whole episodes in `env`, which is reset from `seed` and left open.

    Every column runs a fixed share of the episodes, so that short ones are not preferred. Global random
    streams are seeded from `seed` meanwhile and put back afterwards; the agent draws from a generator of its
    own.

    Args:
        max_episode_steps: an episode of that length is cut and counted as it is, with a warning: without a
            time limit a policy may stay alive for ever.

    Raises:
        ValueError: `episodes` is not positive, or the agent was made for other observations or actions.
    """
    if episodes < 1:
        raise ValueError(f"episodes={episodes}: evaluate at least one episode.")
    refuse_misfit(agent, env)
    started = time.perf_counter()
    with preserved_globals(), untouched(agent.actor):
        seed_globals(seed)
        tally = _Tally(len(tree_leaves(obs := env.reset(seed=seed))[0]), episodes, max_episode_steps)
        actor, device = agent.actor, agent.device
        generator = torch.Generator(device=device)
        generator.manual_seed(seed)
        state = actor.initial_state(tally.columns)
        is_first = torch.ones(tally.columns, dtype=torch.bool, device=device)
        while not tally.done:
            tensors = tree_map(partial(_to_input, device=device), obs)
            action, state = actor.pick(tensors, state, is_first, deterministic, generator)
            step = env.step(tree_map((lambda a: a.to(env.device)) if env.tensor else _to_numpy, action))
            obs, is_first = step.obs, torch.as_tensor(step.is_first, device=device)
            state = told(state, step.info.get("raw_reward", step.reward))
            cut = tally.count(step)
            if cut.any():
                mask = torch.as_tensor(cut, device=env.device) if env.tensor else cut
                obs, is_first = env.reset(mask=mask), is_first | torch.as_tensor(cut, device=device)
    return tally.result("deterministic" if deterministic else "stochastic", time.perf_counter() - started)


def refuse_misfit(agent: Any, env: Env) -> None:
    """Refuse an environment that an agent was not made for; other bounds alone are a notice.

    Raises:
        ValueError: what differs, and how to come by the right one.
    """
    faults, bounds = differs_from(agent, env)
    for what, fault in faults.items():
        raise ValueError(
            f"the {what} of {env.env_id} do not fit the agent: {fault}. Make the environment with the wrappers "
            "that the agent was trained behind: uniarena.evaluate(run) does so by itself, and in a callback "
            "trainer.env_factory(num_envs=1)."
        )
    for what, change in bounds.items():
        notice(
            f"the bounds of the {what} of {env.env_id} are not those that the agent was made for: {change}"
        )


class _Tally:
    """Returns and lengths of the episodes in progress, and of those that count."""

    def __init__(self, columns: int, episodes: int, max_episode_steps: int) -> None:
        self.columns, self.limit = columns, max_episode_steps
        self._quota = np.full(columns, episodes // columns) + (np.arange(columns) < episodes % columns)
        self._finished = np.zeros(columns, dtype=np.int64)
        self._return = np.zeros(columns)
        self._length = np.zeros(columns, dtype=np.int64)
        self._rows: list[tuple[int, int, float, int, float]] = []  # nth of its column, column, …
        self._cut = 0

    @property
    def done(self) -> bool:
        return bool((self._finished >= self._quota).all())

    def count(self, step: Step) -> np.ndarray:
        """Account for one step → the columns `[B]` bool that must be reset because they reached the limit."""
        valid = np.ones(self.columns, dtype=bool) if step.valid is None else _to_numpy(step.valid)
        reward = _to_numpy(step.info.get("raw_reward", step.reward)).astype(np.float64)
        self._return += np.where(valid, reward, 0.0)
        self._length += valid
        ended = (_to_numpy(step.terminated) | _to_numpy(step.truncated)) & valid
        if step.lost is not None:  # broke off with its simulator: run another one in its place
            lost = _to_numpy(step.lost)
            ended &= ~lost
            self._return[lost], self._length[lost] = 0.0, 0
        if (goes_on := step.info.get("episode_goes_on")) is not None:  # an end for learning only
            ended &= ~(_to_numpy(goes_on) > 0.0)
        if (counted := step.info.get("episode_return")) is not None:
            known = ended & ~np.isnan(_to_numpy(counted))
            self._return[known] = _to_numpy(counted)[known]
        cut = (self._length >= self.limit) & ~ended
        success = step.info.get("is_success")
        flags = np.full(self.columns, np.nan) if success is None else _to_numpy(success).astype(np.float64)
        for column in np.flatnonzero(ended | cut):
            if self._finished[column] < self._quota[column]:
                self._cut += int(cut[column])
                nth, length = int(self._finished[column]), int(self._length[column])
                self._rows.append(
                    (nth, int(column), float(self._return[column]), length, float(flags[column]))
                )
            self._finished[column] += 1
            self._return[column], self._length[column] = 0.0, 0
        return cut

    def result(self, mode: str, seconds: float) -> EvalResult:
        if self._cut:
            _log.warning(
                "%d evaluation episodes did not end within %d steps and were cut; "
                "set environment.max_episode_steps",
                self._cut,
                self.limit,
            )
        rows = sorted(self._rows)  # in an order that does not depend on which column was faster
        known = [flag for *_, flag in rows if not np.isnan(flag)]
        return EvalResult(
            mode=mode,
            returns=tuple(row[2] for row in rows),
            lengths=tuple(row[3] for row in rows),
            success_rate=sum(known) / len(known) if known else None,
            seconds=seconds,
        )


def _to_input(leaf: Any, device: torch.device) -> Tensor:
    """An observation leaf as the networks take it, where they live."""
    tensor = torch.as_tensor(leaf, device=device)
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _to_numpy(leaf: Any) -> np.ndarray:
    return leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else np.asarray(leaf)
