"""Rollouts built by hand: counter episodes, and random ones with every kind of end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout


def counter(
    steps: int, length: int, end: str, reward: Tensor | None = None, has_final_obs: bool = True
) -> Rollout:
    """One column of the counter env: the observation is the step's index, episodes last `length` steps."""
    index = torch.arange(steps)
    ends = (index + 1) % length == 0
    column = torch.ones(steps, 1)
    rows = Batch(
        (steps, 1),
        obs=(index % length).float()[:, None, None],
        action=torch.zeros(steps, 1, dtype=torch.int64),
        reward=column.clone() if reward is None else reward[:, None],
        terminated=(ends & (end == "termination"))[:, None],
        truncated=(ends & (end == "truncation"))[:, None],
        is_first=(index % length == 0)[:, None],
        valid=torch.ones(steps, 1, dtype=torch.bool),
    )
    t = ends.nonzero().squeeze(1)
    listed = Batch((len(t),), t=t, b=torch.zeros_like(t), obs=torch.full((len(t), 1), float(length)))
    last = Batch(
        (1,), obs=torch.tensor([[float(steps % length)]]), is_first=torch.tensor([steps % length == 0])
    )
    start = Batch((1,), is_first=torch.tensor([True]))
    return Rollout(rows, start, last, listed if has_final_obs and len(t) else None, has_final_obs)


@dataclass
class Episode:
    """What truly happened in one episode, or in its part inside the rollout: L rows, L + 1 observations."""

    column: int
    rows: list[int]
    obs: list[float]
    reward: list[float]
    terminated: bool


def random_rollout(
    seed: int, steps: int, columns: int, next_step: bool = False
) -> tuple[Rollout, list[Episode]]:
    """Random episodes: terminations, truncations and a running last one; `next_step` adds reset-only rows."""
    rng = np.random.default_rng(seed)
    shape = (steps, columns)
    obs = np.zeros((steps + 1, columns), np.float32)
    reward = np.zeros(shape, np.float32)
    flags = {name: np.zeros(shape, bool) for name in ("terminated", "truncated")}
    valid, first = np.ones(shape, bool), np.zeros((steps + 1, columns), bool)
    ended: list[tuple[int, int, float]] = []
    episodes: list[Episode] = []
    for b in range(columns):
        obs[0, b], first[0, b] = rng.normal(), True
        running = Episode(b, [], [float(obs[0, b])], [], False)
        reset_only = False
        for t in range(steps):
            if reset_only:  # obs[t] is the final observation; the step only resets
                valid[t, b], reset_only = False, False
                obs[t + 1, b], first[t + 1, b] = rng.normal(), True
                running = Episode(b, [], [float(obs[t + 1, b])], [], False)
                continue
            reward[t, b], successor = rng.normal(), np.float32(rng.normal())
            running.rows.append(t)
            running.reward.append(float(reward[t, b]))
            running.obs.append(float(successor))
            kind = rng.choice(["terminated", "truncated", "go on"], p=[0.15, 0.15, 0.7])
            if kind == "go on":
                obs[t + 1, b] = successor
                continue
            flags[kind][t, b] = True
            running.terminated = kind == "terminated"
            episodes.append(running)
            ended.append((t, b, float(successor)))
            if next_step:
                obs[t + 1, b], reset_only = successor, True
            else:
                obs[t + 1, b], first[t + 1, b] = rng.normal(), True
            running = Episode(b, [], [float(obs[t + 1, b])], [], False)
        if running.rows:
            episodes.append(running)
    return _pack(obs, reward, flags, valid, first, ended), episodes


def _pack(
    obs: np.ndarray,
    reward: np.ndarray,
    flags: dict[str, np.ndarray],
    valid: np.ndarray,
    first: np.ndarray,
    ended: list[tuple[int, int, float]],
) -> Rollout:
    tensors = {name: torch.from_numpy(flag) for name, flag in flags.items()}
    rows = Batch(
        reward.shape,
        obs=torch.from_numpy(obs[:-1]).unsqueeze(-1),
        reward=torch.from_numpy(reward),
        is_first=torch.from_numpy(first[:-1]),
        valid=torch.from_numpy(valid),
        **tensors,
    )
    columns = reward.shape[1]
    last = Batch(
        (columns,), obs=torch.from_numpy(obs[-1]).unsqueeze(-1), is_first=torch.from_numpy(first[-1])
    )
    start = Batch((columns,), is_first=torch.from_numpy(first[0]))
    if not ended:
        return Rollout(rows, start, last, None)
    t, b, final = zip(*ended, strict=True)
    listed = Batch((len(t),), t=torch.tensor(t), b=torch.tensor(b), obs=torch.tensor(final).unsqueeze(-1))
    return Rollout(rows, start, last, listed)


def dense(rollout: Rollout) -> Rollout:
    """The same experience as a tensor environment gives it: every successor in `next_obs`, nothing listed."""
    following = torch.cat([rollout.rows.obs[1:], rollout.last.obs[None]])
    if rollout.ended is not None:
        following[rollout.ended.t, rollout.ended.b] = rollout.ended.obs
    return Rollout(rollout.rows.replace(next_obs=following), rollout.start, rollout.last, None)
