"""Any number of bonuses, summed with their weights: of chunks on-policy, of sampled rows with replay.

With replay: what was new when it was stored may be familiar when it is sampled, so the bonus is computed at the update,
from the row's true successor; it is 0 where that is unknown. A return of n steps is paid every step's bonus:
Σ γᵏ (r_k + w·b_k), over the steps really summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Batch, Rollout
from uniarena.config import ConfigError
from uniarena.ops.statistics import Metrics


def taken_in(rollout: Rollout, bonuses: Sequence[Any], progress: float, paid: bool) -> Rollout:
    """A chunk as it comes in: shown to the bonuses that `observe`, and with its `bonus` where it is `paid` at once."""
    for bonus in bonuses:
        if hasattr(bonus, "observe"):
            bonus.observe(rollout)
    if not (bonuses and paid):
        return rollout
    total = sum(bonus.weight(progress) * bonus.bonus(rollout) for bonus in bonuses)
    return replace(rollout, rows=rollout.rows.replace(bonus=total))


def learned(names: Sequence[str], bonuses: Sequence[Any], rows: Any) -> Metrics:
    """Let every bonus learn; its metrics, under `<name>/` where there are several (`<name>.1/`: a second of a kind)."""
    found: Metrics = {}
    for index, (name, bonus) in enumerate(zip(names, bonuses, strict=True)):
        metrics = bonus.learn(rows)
        if len(bonuses) > 1:
            before = list(names[:index]).count(name)
            label = name.rpartition(":")[2] + (f".{before}" if before else "")
            metrics = {f"{label}/{key}": value for key, value in metrics.items()}
        found |= metrics
    return found


def rewarded(sample: Any, bonuses: Sequence[Any], progress: float, gamma: float) -> tuple[Any, Any]:
    """The sample with `bonus`, and what the bonuses learn from; rollouts got theirs when they came in.

    Args, where rows were sampled: see `with_bonus`.
    """
    if not bonuses or not isinstance(sample, Batch):
        return sample, sample
    rows = sampled_rows(sample)
    return with_bonus(sample, rows, bonuses, progress, gamma), rows


def sampled_rows(sample: Batch) -> Batch:
    """The single steps of a sample as `[M]` rows: obs, action, next_obs, valid, and the buffer's extra fields.

    M is N; N·n for windows of n steps; T·N for sequences.
    """
    if "window" in sample:
        steps = sample["window"]
        return Batch(tuple(steps["valid"].shape), dict(steps)).flatten()
    valid = sample["known"] & sample["valid"] if "valid" in sample else sample["known"]
    rows = sample.replace(valid=valid)
    return rows if len(rows.shape) == 1 else rows.flatten()


def with_bonus(sample: Batch, rows: Batch, bonuses: Sequence[Any], progress: float, gamma: float) -> Batch:
    """The sample with `bonus`, shaped as its reward: the weighted sum over bonuses and over the steps of a window.

    Args:
        rows: `sampled_rows(sample)`.
        progress: of the run, the clock of the weights.
        gamma: discount of one step.
    """
    total = torch.zeros(rows.shape, device=rows.valid.device)
    for bonus in bonuses:
        total = total + bonus.weight(progress) * bonus.bonus_of_rows(rows)
    total = torch.where(rows.valid, total, 0.0)
    if "window" not in sample:
        return sample.replace(bonus=total.reshape(sample.shape))
    return sample.without("window").replace(bonus=discounted_sum(total.reshape(sample.shape[0], -1), gamma))


def refuse_rollouts_only(bonus: Any, buffer: str) -> None:
    """Raise where a bonus knows rollouts alone and the buffer gives sampled rows.

    Raises:
        ConfigError: the class lacks `bonus_of_rows`.
    """
    if not hasattr(bonus, "bonus_of_rows"):
        name = getattr(bonus, "__name__", str(bonus))
        raise ConfigError(
            f"{name} gives bonuses of rollouts, and the buffer {buffer} gives sampled rows.",
            path="agent.intrinsic",
            hint=f"give {name} a method bonus_of_rows(rows) -> [M], or use an on-policy learner such as ppo.",
        )


def discounted_sum(steps: Tensor, gamma: float) -> Tensor:
    """Σ γᵏ x_k: `[N, n]` → `[N]`."""
    powers = gamma ** torch.arange(steps.shape[1], dtype=steps.dtype, device=steps.device)
    return steps @ powers
