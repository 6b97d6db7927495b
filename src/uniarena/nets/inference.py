"""Forward passes for acting: a plain MLP as a short list of in-place operations on views of its live
parameters.

On a few rows a forward pass through modules is dispatch, not arithmetic. The flat form computes the same
numbers with the module calls, hooks, checks and allocations left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from uniarena.nets.mlp import MLP
from uniarena.nets.normalizer import ObservationNormalizer

_IN_PLACE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.Tanh: torch.tanh_,
    nn.ReLU: torch.relu_,
    nn.SiLU: lambda x: F.silu(x, inplace=True),
}
_MAX_BATCH_SIZES = 4
"""Batch sizes whose buffers are kept; acting knows one or two."""


class FlatMLP:
    """`[B, in]` float32 → `[B, out]`, a fresh tensor; no gradients. Made by `flatten`.

    Parameters are not copied: an optimiser's in-place step is seen by the next call. When their storage is
    exchanged (`module.to(device)`, a copy of the whole object), the views are taken anew.
    """

    def __init__(self, layers: list[nn.Module], normalizer: ObservationNormalizer | None) -> None:
        self._layers = layers
        self._normalizer = normalizer
        self._first: Tensor = next(layer for layer in layers if isinstance(layer, nn.Linear)).weight
        self._take_views()

    def __call__(self, x: Tensor) -> Tensor:
        if self._first.data_ptr() != self._pointer:
            self._take_views()
        rows = x.shape[0]
        buffers = self._buffers.get(rows)
        if buffers is None:
            buffers = self._allocate(rows)
        if self._normalizer is not None:
            x = (
                torch.sub(x, self._centre, out=buffers[-1])
                .mul_(self._inv_std)
                .clamp_(-self._clip, self._clip)
            )
        for (weight, bias, activations), out in zip(self._hidden, buffers, strict=False):
            x = torch.addmm(bias, x, weight, out=out)
            for activation in activations:
                x = activation(x)
        weight, bias, activations = self._last
        x = torch.addmm(bias, x, weight)
        for activation in activations:
            x = activation(x)
        return x

    def __getstate__(self) -> dict[str, Any]:
        return {"layers": self._layers, "normalizer": self._normalizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["layers"], state["normalizer"])  # type: ignore[misc]

    def _take_views(self) -> None:
        self._pointer = self._first.data_ptr()
        plan: list[tuple[Tensor, Tensor, list[Callable[[Tensor], Tensor]]]] = []
        for layer in self._layers:
            if isinstance(layer, nn.Linear):
                plan.append((layer.weight.detach().t(), layer.bias.detach(), []))
            else:
                plan[-1][2].append(_IN_PLACE.get(type(layer), layer))
        self._hidden, self._last = plan[:-1], plan[-1]
        self._buffers: dict[int, list[Tensor]] = {}
        if self._normalizer is not None:
            self._centre, self._inv_std = self._normalizer.centre, self._normalizer.inv_std
            self._clip = self._normalizer.clip

    def _allocate(self, rows: int) -> list[Tensor]:
        if len(self._buffers) >= _MAX_BATCH_SIZES:
            self._buffers.clear()
        with torch.inference_mode(False):  # so that the buffers serve inside and outside of inference mode
            buffers = [self._first.new_empty(rows, weight.shape[1]).detach() for weight, _, _ in self._hidden]
            buffers.append(self._first.new_empty(rows, self._first.shape[1]).detach())
        self._buffers[rows] = buffers
        return buffers


def flatten(module: nn.Module, normalizer: ObservationNormalizer | None = None) -> FlatMLP | None:
    """The flat form of a module, or None where it is not a plain MLP.

    Args:
        module: an `MLP`, or an `nn.Sequential` of linear layers and activations, nested at will.
        normalizer: applied first; the module's input must be its only leaf.

    Returns:
        A callable numerically equal to `module(normalizer(x))` in eval mode, for two-dimensional float32
        inputs.
    """
    layers = plain_layers(module)
    if not layers or not isinstance(layers[0], nn.Linear):
        return None
    return FlatMLP(layers, normalizer)


def plain_layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers in order, or None if there is one whose forward pass is not simply that of its kind."""
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    if type(module) in (MLP, nn.Sequential):
        found: list[nn.Module] = []
        for child in module.layers if isinstance(module, MLP) else module.children():
            layers = plain_layers(child)
            if layers is None:
                return None
            found += layers
        return found
    if type(module) is nn.Linear:
        return [module] if module.bias is not None and module.weight.dtype == torch.float32 else None
    if type(module) in (nn.Identity, nn.Dropout):  # dropout does nothing while acting
        return []
    if type(module) in (nn.Tanh, nn.ReLU, nn.SiLU, nn.ELU, nn.GELU, nn.LeakyReLU, nn.Sigmoid):
        return [module]
    return None


@contextmanager
def eval_mode(*modules: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every submodule is in the mode it was in."""
    training = [part for module in modules for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def set_mode(module: nn.Module, training: bool) -> None:
    """What `module.train(training)` does, in a tenth of its time where nothing changes or no part has its own way."""
    for part in module.modules():
        if part.training is not training:
            if type(part).train is nn.Module.train:
                part.__dict__["training"] = training  # a module's own way to set an attribute costs more than the rest
            else:
                part.train(training)
