"""Q on the data that a run learns from, beside the returns that are in it, and those that can be at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from uniarena.nets.inference import eval_mode
from uniarena.trainer.health.prediction import of_pairs
from uniarena.values.actor_q_model import ActorQModel
from uniarena.values.q_model import QModel

ROWS = 1_024
"""Of the data, at equal distances: always the same."""


@torch.no_grad()
def of_dataset(agent: Any, metrics: Mapping[str, float]) -> dict[str, float]:
    """Figures of Q on the agent's data; nothing where the agent has no Q, or its buffer is not of data.

    Args:
        metrics: of the iteration: the temperature and the entropy, which soft values hold, and by which the returns
            that can be are wider.
    """
    model, buffer = agent.model, agent.buffer
    known = isinstance(model, QModel | ActorQModel) and hasattr(buffer, "worth")
    if not known or model.initial_state(1) is not None:
        return {}
    rows = buffer.at(np.linspace(0, buffer.size - 1, min(ROWS, buffer.size)).astype(np.int64))
    with eval_mode(model):
        of_data = of_pairs(model, rows.obs, rows.action)[1]
        of_policy = of_pairs(model, rows.obs, model(rows.obs).dist.mode())[1]
    if of_data is None or of_policy is None:
        return {}
    worth, gamma = buffer.worth, buffer.spec.gamma
    soft = metrics.get("alpha", 0.0) * metrics.get("entropy", 0.0)
    soft = gamma * soft / (1.0 - gamma) if math.isfinite(soft) and gamma < 1.0 else 0.0
    found = {
        "health/data_q": float(of_data.mean()),
        "health/data_q_policy": float(of_policy.mean()),
        "health/data_return": worth.mean,
        "health/data_return_best": worth.best + max(0.0, soft),
        "health/data_return_low": worth.low + min(0.0, soft),
        "health/data_return_high": worth.high + max(0.0, soft),
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}
