"""The one way in which every learner turns a loss into a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from uniarena.ops.statistics import Metrics
from uniarena.optim.optimizer import Optimizer

LossFn = Callable[[Any], tuple[Tensor, Metrics]]
"""Batch → (scalar loss, detached 0-d metrics)."""


class NonFiniteError(ArithmeticError):
    """A loss or a gradient is NaN or infinite. Raised before the step: the parameters are still good.

    Attributes:
        where: `loss` or `gradient`.
        names: the metrics, or the parameters' gradients, that are not finite.
    """

    def __init__(self, where: str, names: list[str], message: str) -> None:
        super().__init__(message)
        self.where, self.names = where, names


@dataclass(frozen=True)
class LearnStep:
    """Between backward and the optimiser's step.

    Attributes:
        gradients: parameter name → gradient; write in place (`clamp_`, `mul_`, `zero_`) to change the step.
        optimizer: `scale(factor)` changes its learning rate for good; `groups` are the torch optimiser's.
    """

    method: ClassVar[str] = "on_learn_step"
    gradients: dict[str, Tensor]
    optimizer: Optimizer


class Minimize:
    """Takes gradient steps: loss, backward, finite or raise, hook, clip, step.

    Args:
        max_grad_norm: largest global L2 norm of the gradient; longer ones are scaled down to it. None: no
            clipping.

    Attributes:
        hook: called with a `LearnStep` between backward and clipping; None costs nothing.
    """

    def __init__(self, max_grad_norm: float | None = None) -> None:
        self.max_grad_norm = max_grad_norm
        self.hook: Callable[[LearnStep], None] | None = None

    def __call__(self, loss_fn: LossFn, batch: Any, optimizer: Optimizer) -> Metrics:
        """One step of `optimizer` on `loss_fn(batch)`.

        Returns:
            the loss function's metrics, with `loss` and `grad_norm` (before hook and clipping) added; nothing
            is copied to the host but what the finite check reads.

        Raises:
            NonFiniteError: the loss or a gradient is not finite; no parameter was changed.
        """
        loss, metrics = loss_fn(batch)
        optimizer.zero_grad()
        loss.backward()
        gradients = optimizer.gradients()
        norm = global_norm(gradients)
        size = float(norm)
        if not (math.isfinite(size) and math.isfinite(float(loss.detach()))):
            raise _non_finite(loss, metrics, gradients)
        metrics = {**metrics, "loss": loss.detach(), "grad_norm": norm}
        if self.hook is not None:
            self.hook(LearnStep(gradients, optimizer))
            size = float(global_norm(gradients))
        if self.max_grad_norm is not None and size > self.max_grad_norm:
            torch._foreach_mul_(list(gradients.values()), self.max_grad_norm / (size + 1e-6))
        optimizer.step()
        return metrics


def global_norm(gradients: dict[str, Tensor]) -> Tensor:
    """L2 norm of all gradients together, a 0-d tensor."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients.values()))))


def _non_finite(loss: Tensor, metrics: Metrics, gradients: dict[str, Tensor]) -> NonFiniteError:
    if not bool(loss.detach().isfinite()):
        names = [name for name, value in metrics.items() if not bool(value.isfinite().all())]
        return NonFiniteError(
            "loss",
            names,
            f"the loss is {float(loss.detach())} (not finite: {', '.join(names) or 'only the total'}); "
            "no step was taken. "
            "Look for NaN or huge values in observations and rewards, or lower learner.learning_rate.",
        )
    names = [name for name, gradient in gradients.items() if not bool(gradient.isfinite().all())]
    what = (
        f"the gradient is not finite in {', '.join(names)}"
        if names
        else "the gradient's norm overflows float32"
    )
    return NonFiniteError(
        "gradient",
        names,
        f"{what}; the loss was {float(loss.detach()):.6g}; no step was taken. Lower learner.learning_rate.",
    )
