"""Backward passes written down by hand: the gradients of a plain MLP without an autograd graph.

On small networks, recording a graph and walking through it takes longer than the arithmetic. The numbers are those of
autograd, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from uniarena.nets.ensemble import EnsembleLinear, EnsembleMLP
from uniarena.nets.inference import plain_layers
from uniarena.nets.precision import autocasting

_threshold_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_DERIVATIVES: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda gradient, out: _threshold_backward(gradient, out, 0, grad_input=gradient),
    nn.Tanh: lambda gradient, out: _tanh_backward(gradient, out, grad_input=gradient),
}
"""(gradient of the output, output) → gradient of the input, in the memory of the first."""
_trained, _watched, _awaited = map(
    attrgetter, ("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")
)
_IN_PLACE = {nn.ReLU: torch.relu_, nn.Tanh: torch.tanh_}


class Backprop:
    """Forward and backward pass of linear layers with ReLU or tanh between them, on their live parameters.

    Args:
        layers: linear, activation, …, linear.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        self._layers = layers
        linear: list[Any] = [layer for layer in layers if isinstance(layer, (nn.Linear, EnsembleLinear))]
        # The parameters themselves: a module's way to its attributes costs as much as a small operation.
        self._parameters: list[tuple[Any, Any]] = [(one.weight, one.bias) for one in linear]
        self._every = [one for pair in self._parameters for one in pair]
        self._hooks = [
            hooks
            for layer in layers
            for hooks in (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)
        ]
        kinds = [type(layer) for layer in layers[1::2]]
        self._activations = [(_IN_PLACE[kind], _DERIVATIVES[kind]) for kind in kinds]
        self._seen: list[Tensor] = []

    @property
    def watched(self) -> bool:
        """Whether somebody needs the graph: a hook on a layer or a parameter, autocast; or a parameter is frozen."""
        parameters = self._every
        return (
            autocasting()
            or any(self._hooks)
            or not all(map(_trained, parameters))
            or any(map(_watched, parameters))
            or any(map(_awaited, parameters))
        )

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """`[N, in]` → `[N, out]`; what `backward` needs is kept for it."""
        seen = self._seen = [x]
        last = len(self._activations)
        for index, (weight, bias) in enumerate(self._parameters):
            x = torch.addmm(bias, x, weight.t())
            if index < last:
                x = self._activations[index][0](x)
                seen.append(x)
        return x

    @torch.no_grad()
    def backward(self, gradient: Tensor) -> None:
        """Add the parameters' gradients to what they hold.

        Args:
            gradient: `[N, out]`, of the last output.
        """
        for index in range(len(self._parameters) - 1, -1, -1):
            (weight, bias), x = self._parameters[index], self._seen[index]
            _add(weight, torch.mm(gradient.t(), x))
            _add(bias, gradient.sum(0))
            if index:
                gradient = self._activations[index - 1][1](torch.mm(gradient, weight), x)
        self._seen = []


class EnsembleBackprop(Backprop):
    """The same for the members of an `EnsembleMLP` side by side."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """`[N, in]`, the same for all members → `[E, N, out]`; what `backward` needs is kept for it."""
        x = x.expand(self._parameters[0][0].shape[0], -1, -1)
        seen = self._seen = [x]
        for (weight, bias), (activation, _) in zip(self._parameters, self._activations, strict=False):
            x = activation(torch.baddbmm(bias, x, weight))
            seen.append(x)
        weight, bias = self._parameters[-1]
        if weight.shape[-1] == 1:  # a product with a row takes a quarter of the time of one with a column
            return torch.bmm(weight.mT, x.mT).mT + bias
        return torch.baddbmm(bias, x, weight)

    @torch.no_grad()
    def backward(self, gradient: Tensor) -> None:
        """Add the parameters' gradients to what they hold.

        Args:
            gradient: `[E, N, out]`, of the last output.
        """
        for index in range(len(self._parameters) - 1, -1, -1):
            (weight, bias), x = self._parameters[index], self._seen[index]
            single = weight.shape[-1] == 1
            _add(weight, torch.bmm(gradient.mT, x).mT if single else torch.bmm(x.mT, gradient))
            _add(bias, gradient.sum(1, keepdim=True))
            if index:
                gradient = gradient * weight.mT if single else torch.bmm(gradient, weight.mT)
                gradient = self._activations[index - 1][1](gradient, x)
        self._seen = []

    @torch.no_grad()
    def input_gradient(self, gradient: Tensor, start: int) -> Tensor:
        """What reaches the input of all members together, `[N, in − start]`: from its column `start` on. The parameters
        get nothing.

        Args:
            gradient: `[E, N, out]`, of the last output; its memory is not used again.
        """
        for index in range(len(self._parameters) - 1, 0, -1):
            weight = self._parameters[index][0]
            single = weight.shape[-1] == 1
            gradient = gradient * weight.mT if single else torch.bmm(gradient, weight.mT)
            gradient = self._activations[index - 1][1](gradient, self._seen[index])
        self._seen = []
        return torch.bmm(gradient, self._parameters[0][0][:, start:].mT).sum(0)


def ensemble_backprop_of(module: nn.Module) -> EnsembleBackprop | None:
    """The hand-written passes of an `EnsembleMLP`; None where it has dropout, norms, or other activations."""
    if not isinstance(module, EnsembleMLP) or module.norms or module.dropout > 0.0:
        return None
    kind = {"relu": nn.ReLU, "tanh": nn.Tanh}.get(module.activation)
    if kind is None:
        return None
    first, *rest = module.layers
    return EnsembleBackprop([first, *(layer for linear in rest for layer in (kind(), linear))])


def backprop_of(module: nn.Module) -> Backprop | None:
    """The hand-written passes of an `MLP` or `nn.Sequential`; None where it holds anything else than linear layers with
    ReLU or tanh between them.
    """
    layers = plain_layers(module)
    if not layers or len(layers) % 2 == 0:
        return None
    linear = all(isinstance(layer, nn.Linear) for layer in layers[::2])
    return Backprop(layers) if linear and all(type(layer) in _DERIVATIVES for layer in layers[1::2]) else None


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
