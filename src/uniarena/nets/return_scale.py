"""Values in units that a network can learn: its last layer works on normalised returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from uniarena.config import ConfigError
from uniarena.nets.precision import widened

LEAST_STD = 1e-8
LEAST_SHARE = 1e-3
"""Least deviation as a share of the mean: returns that hardly differ are not blown up."""


class ScaledLinear(nn.Module):
    """A linear layer whose output, times a deviation plus a mean, is a value in units of return.

    The moments are moving averages of the returns that values are fitted to, corrected for their start at 0. With
    `preserve`, weight and bias are changed along with them so that no output changes: van Hasselt et al. 2016
    (arXiv:1602.07714), eq. 3 and proposition 1, algorithm 1. Deviations: moments of whole rollouts; the first ones
    scale what the network says by chance rather than keep it, which may be a thousand times too large.

    Args:
        linear: the layer; its parameters are taken over as they are.
        preserve: keep outputs as they are when the moments move.
        decay: share of the moments that each `update` keeps.

    Attributes:
        mean, std: 0-d float64; what outputs are scaled by.
    """

    mean: Tensor
    std: Tensor
    gathered: Tensor

    def __init__(self, linear: nn.Linear, preserve: bool, decay: float = 0.9) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.preserve, self.decay = preserve, decay
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("std", torch.ones((), dtype=torch.float64))
        self.register_buffer("gathered", torch.zeros(3, dtype=torch.float64))  # weight, Σ return, Σ return²

    def forward(self, x: Tensor) -> Tensor:
        """`[..., in]` → `[..., 1]`, in units of return."""
        out = widened(F.linear(x, self.weight, self.bias))
        return out * self.std.to(out.dtype) + self.mean.to(out.dtype)

    @torch.no_grad()
    def update(self, returns: Tensor, valid: Tensor | None = None) -> None:
        """Let these returns `[...]`, where `valid [...]`, move the moments."""
        kept = returns if valid is None else returns[valid]
        if not kept.numel():
            return
        wide, first_time = kept.double(), float(self.gathered[0]) == 0.0
        seen = torch.stack([wide.new_ones(()), wide.mean(), wide.square().mean()])
        self.gathered.lerp_(seen.to(self.gathered.device), 1.0 - self.decay)
        weight, first, second = self.gathered.unbind()
        mean = first / weight
        variance = (second / weight - mean.square()).clamp(min=0.0)
        std = torch.maximum(variance.sqrt(), LEAST_SHARE * mean.abs()).clamp(min=LEAST_STD)
        if self.preserve and not first_time:
            before, offset = self.std / std, (self.mean - mean) / std
            self.weight.copy_(self.weight.double() * before)
            self.bias.copy_(self.bias.double() * before + offset)
        self.mean.copy_(mean)
        self.std.copy_(std)


def scale_values(model: nn.Module, preserve: bool, decay: float = 0.9) -> ScaledLinear:
    """Put the scale on the last layer of a model's value.

    Raises:
        ConfigError: it cannot be told which layer that is.
    """
    found = [
        name
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and part.out_features == 1 and part.bias is not None
    ]
    values = [name for name in found if name.startswith("value_net") or "critic" in name.split(".")]
    if not values and len(found) != 1:
        raise ConfigError(
            f"the value's last layer cannot be told apart among {', '.join(found) or 'no linear layer of width 1'}.",
            path="learner.normalize_return",
            hint="give the value a network of its own (agent.value), or use the wrapper normalize_reward.",
        )
    name = (values or found)[-1]
    parent, _, own = name.rpartition(".")
    owner: Any = model.get_submodule(parent)
    scaled = ScaledLinear(owner.get_submodule(own), preserve, decay)
    setattr(owner, own, scaled)
    return scaled
