"""Noisy layers: exploration by learned noise on the weights.

Fortunato et al. 2018 (arXiv:1706.10295), factorised Gaussian noise: section 3 (b), eq. 10 and 11, initialised as
in section 3.2.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class NoisyLinear(nn.Module):
    """y = (μ_w + σ_w ⊙ f(ε_out) f(ε_in)ᵀ) x + μ_b + σ_b ⊙ f(ε_out), f(x) = sgn(x)·√|x|.

    In evaluation mode, and before the first `redraw`, the noise is left out: y = μ_w x + μ_b. The noise is not
    part of the state: whoever uses it draws it first.

    Args:
        in_features, out_features: p and q.
        sigma: σ₀; the deviations start at σ₀/√p.

    Attributes:
        weight, bias: the means μ, `[q, p]` and `[q]`; names and shapes of `nn.Linear`.
        weight_sigma, bias_sigma: the deviations σ.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, in_features: int, out_features: int, sigma: float = 0.5) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        bound = 1.0 / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((out_features, in_features), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((out_features,), sigma * bound))
        self.register_buffer("noise_in", torch.zeros(in_features), persistent=False)
        self.register_buffer("noise_out", torch.zeros(out_features), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., p]` → `[..., q]`."""
        if not self.training:
            return F.linear(x, self.weight, self.bias)
        return F.linear(x, *self.noised(self.noise_in, self.noise_out))

    def noised(self, noise_in: Tensor, noise_out: Tensor) -> tuple[Tensor, Tensor]:
        """Weight `[q, p]` and bias `[q]` under the noise f(ε_in) `[p]`, f(ε_out) `[q]`."""
        weight = torch.addcmul(self.weight, self.weight_sigma, torch.outer(noise_out, noise_in))
        return weight, torch.addcmul(self.bias, self.bias_sigma, noise_out)


def noisy_layers(*modules: nn.Module) -> list[NoisyLinear]:
    """The noisy layers inside, in order."""
    return [part for module in modules for part in module.modules() if isinstance(part, NoisyLinear)]


def draw(layers: list[NoisyLinear], generator: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Fresh noise of each layer, f(ε_in) `[p]` and f(ε_out) `[q]`, all of it in one draw."""
    widths = [width for layer in layers for width in (layer.in_features, layer.out_features)]
    device = torch.device("cpu") if generator is None else generator.device
    normal = torch.randn(sum(widths), generator=generator, device=device)
    scaled = (normal.sign() * normal.abs().sqrt()).to(layers[0].weight.device).split(widths)
    return zip(scaled[::2], scaled[1::2], strict=True)


@torch.no_grad()
def redraw(layers: list[NoisyLinear], generator: torch.Generator | None) -> None:
    """New noise for each layer, in place."""
    if layers:
        for layer, (noise_in, noise_out) in zip(layers, draw(layers, generator), strict=True):
            layer.noise_in.copy_(noise_in)
            layer.noise_out.copy_(noise_out)


def make_noisy(module: nn.Module, sigma: float) -> nn.Module:
    """The module with a noisy layer, newly initialised, in place of every `nn.Linear`."""
    if type(module) is nn.Linear:
        return NoisyLinear(module.in_features, module.out_features, sigma)
    for name, child in module.named_children():
        setattr(module, name, make_noisy(child, sigma))
    return module


def without_noise(module: nn.Module) -> nn.Module:
    """The same module on the same live parameters, with `nn.Linear` on the means in place of noisy layers.

    For acting: what is made of plain layers can be flattened.
    """
    tensors = [*module.parameters(), *module.buffers()]
    plain = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    return _replace(plain)


def _replace(module: nn.Module) -> nn.Module:
    if isinstance(module, NoisyLinear):
        linear = nn.Linear(module.in_features, module.out_features, device="meta")
        linear.weight, linear.bias = module.weight, module.bias
        return linear.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, _replace(child))
    return module
