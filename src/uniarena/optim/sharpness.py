"""Sharpness-aware minimisation: the gradient that a step takes is that of a worse point near by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class SharpnessAware:
    """Goes up before a step goes down: w + ρ·g/‖g‖ is where the step's gradient is computed.

    Foret et al. 2021 (arXiv:2010.01412), eq. 2 and 3, algorithm 1. It wraps any optimiser: `Minimize` takes the second
    pass, and the wrapped optimiser steps from w.

    Args:
        rho: ρ, how far to go.
    """

    def __init__(self, rho: float) -> None:
        self.rho = rho

    @contextmanager
    def climbed(self, parameters: list[nn.Parameter], norm: Tensor) -> Iterator[None]:
        """Inside, the parameters are at the worse point; afterwards they are, bit for bit, where they were.

        Args:
            parameters: with gradients; those without stay.
            norm: 0-d, the length of all gradients together; not 0.
        """
        pairs = [(one, one.grad) for one in parameters if one.grad is not None]
        moved: list[Tensor] = [one for one, _ in pairs]
        with torch.no_grad():
            before = [one.clone() for one in moved]
            steps = torch._foreach_mul([gradient for _, gradient in pairs], self.rho / norm)
            torch._foreach_add_(moved, list(steps))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(moved, before)
