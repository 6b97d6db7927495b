"""Ensembles of equal multi-layer perceptrons as one module: the members' weights are stacked, and every layer
is one batched matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from uniarena.nets.initialization import HIDDEN_GAIN
from uniarena.nets.mlp import ACTIVATIONS


class EnsembleLinear(nn.Module):
    """E linear layers side by side, each initialised as `nn.Linear` is.

    Attributes:
        weight: `[E, in, out]`.
        bias: `[E, 1, out]`.
    """

    def __init__(self, members: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(in_dim)
        self.weight = nn.Parameter(torch.empty(members, in_dim, out_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, out_dim).uniform_(-bound, bound))

    def forward(self, x: Tensor, subset: Tensor | None = None) -> Tensor:
        """`[E, N, in]` → `[E, N, out]`; with `subset [M]`, of those members alone: `[M, N, …]`."""
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if subset is not None:
            weight, bias = weight[subset], bias[subset]
        if weight.shape[-1] == 1:  # a product with one column costs four times these two operations, and its
            return (x * weight.mT).sum(-1, keepdim=True) + bias  # gradients six times
        return torch.baddbmm(bias, x, weight)


class EnsembleNorm(nn.Module):
    """Layer normalisation with a scale and shift of each member's own. Ba et al. 2016 (arXiv:1607.06450)."""

    def __init__(self, members: int, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, width))
        self.bias = nn.Parameter(torch.zeros(members, 1, width))
        self.eps = eps

    def forward(self, x: Tensor, subset: Tensor | None = None) -> Tensor:
        """`[E, N, width]` → the same shape."""
        normal = F.layer_norm(x, x.shape[-1:], eps=self.eps)
        if subset is None:
            return torch.addcmul(self.bias, normal, self.weight)
        return torch.addcmul(self.bias[subset], normal, self.weight[subset])


class EnsembleMLP(nn.Module):
    """E multi-layer perceptrons evaluated together.

    A hidden layer is linear → dropout → layer normalisation → activation, the last two options in the order
    of DroQ (Hiraoka et al. 2022, arXiv:2110.02034, section 3.1).

    Args:
        members: E.
        in_dim, out_dim: widths of input and output.
        hidden_sizes: widths of the hidden layers; may be empty.
        activation: as in `MLP`.
        layer_norm: normalise each hidden layer.
        dropout: share of hidden units that a call with a generator drops.

    Attributes:
        members: E.
        out_dim: width of the output.
        dropout, activation: as given.

    Raises:
        ValueError: no member, an unknown activation, or a dropout outside of [0, 1).
    """

    def __init__(
        self,
        members: int,
        in_dim: int,
        out_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: str = "relu",
        layer_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if members < 1:
            raise ValueError(f"members={members}: an ensemble has at least one member.")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation={activation!r}: expected one of {', '.join(ACTIVATIONS)}.")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout={dropout}: expected a share from 0 up, below 1.")
        self.members, self.out_dim, self.dropout, self.activation = members, out_dim, dropout, activation
        widths = [in_dim, *hidden_sizes, out_dim]
        self.layers = nn.ModuleList([EnsembleLinear(members, a, b) for a, b in pairwise(widths)])
        norms = [EnsembleNorm(members, width) for width in hidden_sizes] if layer_norm else []
        self.norms = nn.ModuleList(norms)
        # ReLU in place: nothing before it needs its own output to differentiate.
        self._activation = torch.relu_ if activation == "relu" else ACTIVATIONS[activation]().forward

    def forward(
        self, x: Tensor, generator: torch.Generator | None = None, subset: Tensor | None = None
    ) -> Tensor:
        """`[N, in]`, the same for all members, or `[E, N, in]` → `[E, N, out]`.

        Args:
            generator: source of dropout; None: nothing is dropped.
            subset: `[M]` int64, the members to evaluate; the output is `[M, N, out]`.
        """
        if x.dim() == 2:
            x = x.expand(self.members if subset is None else len(subset), -1, -1)
        *hidden, last = self.layers
        norms: list[Any] = list(self.norms) or [None] * len(hidden)
        # The layers' `forward` rather than the layers: a call of a module costs as much as a small operation.
        for layer, norm in zip(hidden, norms, strict=True):
            x = layer.forward(x, subset)
            if self.dropout > 0.0 and generator is not None:
                x = dropout(x, self.dropout, generator)
            if norm is not None:
                x = norm.forward(x, subset)
            x = self._activation(x)
        out: Tensor = last.forward(x, subset)
        return out


def dropout(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """`x` with a share of its entries set to 0 and the others scaled so that the mean stays."""
    uniform = torch.rand(x.shape, generator=generator, device=generator.device).to(x.device)
    return x * (uniform >= share).to(x.dtype).div_(1.0 - share)


def orthogonal_members_(module: nn.Module, gain: float = HIDDEN_GAIN, last_gain: float = 1.0) -> None:
    """Orthogonal weights and zero biases for every member of every `EnsembleLinear`, in place.

    Args:
        gain, last_gain: of all layers but the last, and of the last.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, EnsembleLinear)]
    for layer in layers:
        for weight in layer.weight.detach().unbind(0):
            nn.init.orthogonal_(weight, last_gain if layer is layers[-1] else gain)
        nn.init.zeros_(layer.bias)


@contextmanager
def frozen(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Inside, gradients flow through what is computed with these parameters, but none is computed for them.

    It is the forward pass that decides: a backward pass may come after the block.
    """
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
