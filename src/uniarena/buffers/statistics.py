"""What a run that learns from data knows of it before the first update: the moments of its observations."""

from __future__ import annotations

from typing import Any

import torch

from uniarena.batch import tree_leaves
from uniarena.config import ConfigError


def fit_to_data(buffer: Any, normalizer: Any, reward_scaler: Any) -> None:
    """Take in all observations of fixed data, once; of a buffer that takes experience, nothing.

    Args:
        buffer: where `fixed`, its `observations()` are all observations of its rows, in trees of `[N, …]` tensors.
        normalizer, reward_scaler: the agent's; None: it has none.

    Raises:
        ConfigError: rewards are to be normalised by returns of experience, and there is none.
    """
    if not getattr(buffer, "fixed", False):
        return
    if reward_scaler is not None:
        raise ConfigError(
            "normalize_reward goes by the returns of experience, and a run that learns from data has none.",
            path="environment.wrappers",
            hint="leave it out",
        )
    if normalizer is None:
        return
    for obs in buffer.observations():
        count = len(tree_leaves(obs)[0])
        normalizer.accumulate(obs, torch.ones(count, dtype=torch.bool, device=tree_leaves(obs)[0].device))
        normalizer.merge()
