"""Simulators that ship: environments of Gymnasium as tensors, under the ids that they have there."""

from __future__ import annotations

from importlib import import_module
from typing import Any

TENSOR_FORMS = {
    "CartPole-v1": "cartpole:TensorCartPole",
    "Pendulum-v1": "pendulum:TensorPendulum",
}
"""Gymnasium id → module and class of its tensor form."""


def tensor_form(env_id: str) -> Any | None:
    """The class that is `env_id` as tensors; None where there is none."""
    module, _, name = TENSOR_FORMS.get(env_id, "").partition(":")
    return getattr(import_module(f"{__name__}.{module}"), name) if name else None
