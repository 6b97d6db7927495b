"""Forward passes for acting: a plain MLP as a short list of in-place operations on views of its live
parameters.

On a few rows a forward pass through modules is dispatch, not arithmetic. The flat form computes the same
numbers with the module calls, hooks, checks and allocations left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
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


SMALL = 2**17
"""Multiplications of a product up to which NumPy's call is the shorter one (and does not call further threads)."""


def speaks_numpy(tensor: Tensor) -> bool:
    """Whether NumPy can look at it where it lies."""
    return tensor.is_cpu


class FlatMLP:
    """`[B, in]` float32 → `[B, out]`, a fresh tensor; no gradients. Made by `flatten`.

    Parameters are not copied: an optimiser's in-place step is seen by the next call. When their storage is
    exchanged (`module.to(device)`, a copy of the whole object), the views are taken anew. On the CPU tanh and small
    products are NumPy's, whose calls take less time, tanh also for many rows.
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
        kept = self._kept.get(rows)
        if kept is None:
            kept = self._allocate(rows)
        if self._normalizer is not None:
            x = (
                torch.sub(x, self._centre, out=kept.scaled)
                .mul_(self._inv_std)
                .clamp_(-self._clip, self._clip)
            )
        if kept.plan is not None:
            return torch.from_numpy(_run(kept.plan, x.numpy()))
        for (weight, bias, activations, _), out in zip(self._hidden, kept.out, strict=True):
            x = torch.addmm(bias, x, weight, out=out)
            for activation in activations:
                x = activation(x)
        weight, bias, activations, _ = self._last
        x = torch.addmm(bias, x, weight)
        for activation in activations:
            x = activation(x)
        return x

    def arrays(self, rows: int) -> Callable[[Any], Any] | None:
        """The same from array `[rows, in]` to a fresh array `[rows, out]`; None where NumPy is not the quicker way, or
        observations are normalised first. Ask again when parameters may have been given other memory.
        """
        if self._first.data_ptr() != self._pointer:
            self._take_views()
        kept = self._kept.get(rows) or self._allocate(rows)
        return None if kept.plan is None or self._normalizer is not None else partial(_run, kept.plan)

    def __getstate__(self) -> dict[str, Any]:
        return {"layers": self._layers, "normalizer": self._normalizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["layers"], state["normalizer"])  # type: ignore[misc]

    def _take_views(self) -> None:
        self._pointer = self._first.data_ptr()
        self._cpu = speaks_numpy(self._first)
        plan: list[tuple[Tensor, Tensor, list[Callable[[Tensor], Tensor]], Any]] = []
        in_place = {**_IN_PLACE, nn.Tanh: tanh_} if self._cpu else _IN_PLACE
        for layer in self._layers:
            if isinstance(layer, nn.Linear):
                weight, bias = layer.weight.detach().t(), layer.bias.detach()
                plan.append((weight, bias, [], (weight.numpy(), bias.numpy()) if self._cpu else None))
            else:
                plan[-1][2].append(in_place.get(type(layer), layer))
        self._hidden, self._last = plan[:-1], plan[-1]
        self._kept: dict[int, _Kept] = {}
        if self._normalizer is not None:
            self._centre, self._inv_std = self._normalizer.centre, self._normalizer.inv_std
            self._clip = self._normalizer.clip

    def _allocate(self, rows: int) -> _Kept:
        if len(self._kept) >= _MAX_BATCH_SIZES:
            self._kept.clear()
        layers = (*self._hidden, self._last)
        largest = max(weight.numel() for weight, *_ in layers)
        with torch.inference_mode(False):  # so that the buffers serve inside and outside of inference mode
            widths = [weight.shape[1] for weight, *_ in self._hidden]
            out = [self._first.new_empty(rows, width).detach() for width in widths]
            scaled = self._first.new_empty(rows, self._first.shape[1]).detach()
        plan = None
        if self._cpu and rows * largest <= SMALL:
            pairs = zip(layers, (*out, None), strict=True)
            plan = [_array_layer(own[0], own[1], acts, into) for (_, _, acts, own), into in pairs]
        kept = self._kept[rows] = _Kept(out, scaled, plan)
        return kept


class _ArrayLayer(NamedTuple):
    """A linear layer and its activations on arrays, into kept memory or, without `out`, a new array."""

    weight: np.ndarray
    bias: np.ndarray
    out: np.ndarray | None
    tanh: bool
    relu: bool
    others: list[Any]


class _Kept(NamedTuple):
    """Memory for so many rows, and, of few rows on the CPU, what NumPy does."""

    out: list[Tensor]
    scaled: Tensor
    plan: list[_ArrayLayer] | None


def _array_layer(weight: Any, bias: Any, activations: list[Any], out: Tensor | None) -> _ArrayLayer:
    tanh, relu = activations == [tanh_], activations == [torch.relu_]
    others = [] if tanh or relu else activations
    return _ArrayLayer(weight, bias, None if out is None else out.numpy(), tanh, relu, others)


ZERO = np.zeros((), np.float32)
"""In the precision of networks, so that NumPy need not ask."""


def _run(plan: list[_ArrayLayer], x: Any) -> Any:
    for weight, bias, out, tanh, relu, others in plan:
        x = np.dot(x, weight, out)
        np.add(x, bias, x)
        if relu:
            np.maximum(x, ZERO, out=x)
        elif tanh:
            np.tanh(x, x)
        elif others:
            for activation in others:
                x = activation(torch.from_numpy(x)).numpy()
    return x


def tanh_(x: Tensor) -> Tensor:
    """In place, of a tensor on the CPU without a gradient. NumPy's takes a sixth of torch's time on one thread, and
    differs from it in the last place at most.
    """
    array = x.numpy()
    np.tanh(array, array)
    return x


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
        _mark(part, False)
    try:
        yield
    finally:
        for part in training:
            _mark(part, True)


def _mark(part: nn.Module, training: bool) -> None:
    """Set `training` of one module, whose own way to set an attribute costs more than all the rest."""
    if "training" in part.__dict__:
        part.__dict__["training"] = training
    else:
        part.training = training


def set_mode(module: nn.Module, training: bool) -> None:
    """What `module.train(training)` does, in a tenth of its time where nothing changes or no part has its own way."""
    for part in module.modules():
        if part.training is not training:
            if type(part).train is nn.Module.train:
                _mark(part, training)
            else:
                part.train(training)


def hooks_of(module: nn.Module, leave_out: nn.Module | None = None) -> list[dict[int, Any]]:
    """Where hooks on a module's parts are kept, all but those of one part: the dicts fill when hooks come."""
    outside = set() if leave_out is None else set(leave_out.modules())
    return [
        hooks
        for part in module.modules()
        if part not in outside
        for hooks in (
            part._forward_hooks,
            part._forward_pre_hooks,
            part._backward_hooks,
            part._backward_pre_hooks,
        )
    ]
