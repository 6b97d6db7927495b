"""What the newest rows say of observations, actions and rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from uniarena.batch import Batch, Tree, tree_paths
from uniarena.envs.spaces import MASK
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.ops.health import share_of_one

AT_BOUND = 0.99
"""Of half an action's range, from its middle: from here on it counts as at the bound."""


def of_observations(obs: Tree, valid: Tensor, normalizer: ObservationNormalizer | None) -> dict[str, float]:
    """Range of the entries, the share that stands still, and the share that a normaliser clips.

    Args:
        obs: raw, `[T, B, …]`; leaves of three dimensions a row, as images have, are left out.
        valid: `[T, B]`.
    """
    count = int(valid.sum())
    leaves = [
        leaf[valid].reshape(count, -1).float()
        for path, leaf in tree_paths(obs, "obs")
        if count and leaf.dim() < 5 and leaf.numel() and not path.endswith(MASK)
    ]
    found: dict[str, float] = {}
    if leaves:
        entries = torch.cat(leaves, 1)
        low, high = entries.amin(0), entries.amax(0)
        found["health/obs_min"], found["health/obs_max"] = float(low.min()), float(high.max())
        if len(entries) > 1:
            found["health/obs_still"] = float((low == high).float().mean())
    if normalizer is not None and count:
        scaled = [
            (leaf[valid].abs() >= normalizer.clip).float().mean()
            for _, leaf in tree_paths(normalizer(obs), "obs")
            if leaf.is_floating_point() and leaf.numel()
        ]
        if scaled:
            found["health/obs_clipped"] = float(torch.stack(scaled).mean())
    return found


def of_actions(action: Tree, valid: Tensor, space: Any) -> dict[str, float]:
    """How many components are at a bound (Box), or how often the most frequent action comes (Discrete)."""
    if not isinstance(action, Tensor):
        return {}
    chosen = action[valid]
    if not len(chosen):
        return {}
    if isinstance(space, spaces.Discrete):
        counts = torch.bincount(chosen.flatten().long(), minlength=int(space.n)).cpu().numpy()
        return {"health/action_top_share": share_of_one(counts)}
    if not isinstance(space, spaces.Box) or not space.is_bounded():
        return {}
    low, high = (
        torch.as_tensor(x, dtype=torch.float32, device=chosen.device) for x in (space.low, space.high)
    )
    half = (high - low) / 2
    away = (chosen.float() - (high + low) / 2).abs()
    return {"health/action_saturation": float((away >= AT_BOUND * half).float().mean())}


def of_rewards(rows: Batch, metrics: Mapping[str, float], weight: float) -> dict[str, float]:
    """Mean, deviation, largest magnitude and zeros of the rewards, and what share bonuses have beside them.

    Args:
        metrics: of the iteration; `intrinsic_mean` stands for bonuses of replayed rows.
        weight: of those.
    """
    reward = rows.reward[rows.valid].double()
    found = {
        "health/reward_mean": float(reward.mean()),
        "health/reward_std": float(reward.std(correction=0)),
        "health/reward_max": float(reward.abs().max()),
        "health/reward_zero": float((reward == 0).double().mean()),
    }
    if "bonus" in rows:
        bonus = float(rows.bonus[rows.valid].abs().double().mean())
    elif weight and math.isfinite(metrics.get("intrinsic_mean", math.nan)):
        bonus = abs(weight * metrics["intrinsic_mean"])
    else:
        return found
    total = bonus + float(reward.abs().mean())
    return {**found, "health/intrinsic_share": bonus / total} if total > 0 else found
