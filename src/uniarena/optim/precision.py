"""Losses in 16 bits: autocast, and the scale that keeps small gradients of float16 above zero.

Micikevicius et al. 2018 (arXiv:1710.03740). Parameters, optimisers, normalisers and targets stay in float32.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from uniarena.config import ConfigError

PrecisionName = Literal["fp32", "bf16", "fp16"]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FIRST_SCALE, LEAST_SCALE, LARGEST_SCALE = 2.0**16, 1.0, 2.0**24
GROWTH, BACKOFF, GROWTH_INTERVAL = 2.0, 0.5, 2_000
"""As in torch's own gradient scaler."""


class LossScale:
    """What losses are multiplied by before backward. It halves when a gradient overflows, and doubles after 2,000 steps
    without that.

    Attributes:
        value: the present scale.
        skipped: steps that were left out because of an overflow, over the life of the run.
    """

    def __init__(self) -> None:
        self.value, self.skipped, self._good = FIRST_SCALE, 0, 0

    def overflowed(self) -> bool:
        """A gradient is not finite: whether a smaller scale may help; at the least one it is not the scale's fault."""
        if self.value <= LEAST_SCALE:
            return False
        self.value, self._good = max(LEAST_SCALE, self.value * BACKOFF), 0
        self.skipped += 1
        return True

    def stepped(self) -> None:
        """A step was taken."""
        self._good += 1
        if self._good >= GROWTH_INTERVAL:
            self.value, self._good = min(LARGEST_SCALE, self.value * GROWTH), 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "skipped": self.skipped, "good": self._good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        self.value, self.skipped = float(state["value"]), int(state["skipped"])
        self._good = int(state["good"])


class Precision:
    """How the losses of one learner are computed in fewer bits.

    Args:
        kind: `bf16` or `fp16`.
        device: type of the device that the networks are on.

    Attributes:
        scale: of float16; bfloat16 has the range of float32 and needs none.

    Raises:
        ConfigError: this device cannot do it.
    """

    def __init__(self, kind: Literal["bf16", "fp16"], device: str = "cpu") -> None:
        self.dtype, self.device = DTYPES[kind], device
        self.scale = LossScale() if kind == "fp16" else None
        self._scaled = False
        self._try(kind)

    def autocast(self) -> torch.autocast:
        """The context that a loss is computed in."""
        return torch.autocast(self.device, self.dtype)

    def backward(self, loss: Any, optimizer: Any) -> None:
        """The gradients of a loss, unscaled, in the optimiser's parameters. One written by hand is exact as it is."""
        self._scaled = self.scale is not None and isinstance(loss, Tensor)
        if self.scale is None or not self._scaled:
            optimizer.backward(loss)
            return
        optimizer.backward(loss * self.scale.value)
        torch._foreach_mul_(list(optimizer.gradients().values()), 1.0 / self.scale.value)

    def overflowed(self, loss: float) -> bool:
        """Whether a gradient that is not finite is the scale's doing. Then the step is to be left out: the next one has
        a smaller scale.

        Args:
            loss: unscaled; one that is not finite is no overflow of gradients.
        """
        return self.scale is not None and self._scaled and math.isfinite(loss) and self.scale.overflowed()

    def stepped(self) -> None:
        """A step was taken."""
        if self.scale is not None and self._scaled:
            self.scale.stepped()

    def metrics(self, overflow: bool) -> dict[str, Tensor]:
        """`loss_scale`, and `overflow_share`: 1 where a step was left out."""
        if self.scale is None or not self._scaled:
            return {}
        return {"loss_scale": torch.tensor(self.scale.value), "overflow_share": torch.tensor(float(overflow))}

    def _try(self, kind: str) -> None:
        """One small layer forward and backward, as losses will run them."""
        layer = torch.nn.Linear(2, 2, device=self.device)
        try:
            with self.autocast():
                out = layer(torch.zeros(2, 2, device=self.device))
            out.float().sum().backward()
        except (RuntimeError, NotImplementedError) as error:
            raise ConfigError(
                f"{kind} cannot be used on the device {self.device!r} here: {str(error).splitlines()[0]}",
                path="learner.precision",
                hint="use fp32, or bf16 where the device has it.",
            ) from None


def build_precision(kind: PrecisionName, device: str) -> Precision | None:
    """What `learner.precision` asks for; None: float32 throughout."""
    return None if kind == "fp32" else Precision(kind, device)
