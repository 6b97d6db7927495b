"""Forward and backward passes of a plain MLP on the CPU, in memory that is kept: tanh by NumPy, products by torch, or
where they are small by NumPy too, whose calls take less time.

Tanh is where the time of small networks goes. NumPy's takes a sixth of torch's on one thread and differs from it by a
unit or two in the last place.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from uniarena.nets import inference
from uniarena.nets.backprop import Backprop, backprop_of
from uniarena.nets.inference import SMALL, ZERO

KEPT = 3
"""Numbers of rows whose memory is kept: minibatches of a rollout that does not divide have two."""

_place = Tensor.data_ptr
_threshold_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class _Memory:
    """Outputs and their gradients, layer by layer, for so many rows; shapes are those of the weights."""

    def __init__(self, rows: int, shapes: list[tuple[int, int]]) -> None:
        widths = [width for width, _ in shapes]
        with torch.inference_mode(False):
            self.out = [torch.zeros(rows, width) for width in widths]
            self.gradient = [torch.zeros(rows, width) for width in widths]
            self.ones = torch.ones(rows)
        self.out_arrays = [x.numpy() for x in self.out]
        self.gradient_arrays = [x.numpy() for x in self.gradient]
        self.gradient_array = self.gradient_arrays[-1]
        self.turned = [x.t() for x in self.gradient]
        self.small = rows * max(width * inputs for width, inputs in shapes) <= SMALL
        if self.small:
            self.turned_arrays = [x.T for x in self.gradient_arrays]
            self.ones_array = self.ones.numpy()
            self.active = [np.zeros((rows, width), bool) for width in widths[:-1]]
            self.found = [(np.zeros(shape, np.float32), np.zeros(shape[:1], np.float32)) for shape in shapes]


class ArrayBackprop(Backprop):
    """See `Backprop`; here outputs and gradients are arrays that the next call with as many rows overwrites.

    Args:
        layers: linear, ReLU or tanh, …, linear; float32 on the CPU.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__(layers)
        self._tanh = [type(layer) is nn.Tanh for layer in layers[1::2]]
        self._memories: dict[int, _Memory] = {}
        self._places: list[int] = []
        self._known: dict[int, tuple[Tensor, Tensor, np.ndarray, np.ndarray]] = {}
        self._now: _Memory | None = None
        self._x = torch.empty(0)
        self._x_array = np.empty(0, np.float32)

    @property
    def able(self) -> bool:
        """Whether nobody watches, and the parameters are where NumPy can work."""
        return not self.watched and all(map(inference.speaks_numpy, self._every))

    def forward_arrays(self, x: Tensor) -> np.ndarray:
        """`[N, in]` → `[N, out]`; what `backward_arrays` needs is kept for it."""
        if list(map(_place, self._every)) != self._places:
            self._take_views()
        memory = self._memories.get(x.shape[0]) or self._remember(x.shape[0])
        self._now, self._x = memory, x
        if memory.small:
            self._x_array = x.numpy()
            return self._forward_small(memory, self._x_array)
        last = len(self._tanh)
        for index, (_, turned, bias) in enumerate(self._views):
            out = memory.out[index]
            torch.addmm(bias, x, turned, out=out)
            if index < last:
                if self._tanh[index]:
                    np.tanh(memory.out_arrays[index], memory.out_arrays[index])
                else:
                    torch.relu_(out)
            x = out
        return memory.out_arrays[-1]

    def _forward_small(self, memory: _Memory, x: np.ndarray) -> np.ndarray:
        last = len(self._tanh)
        for index, ((_, turned, bias), out) in enumerate(zip(self._arrays, memory.out_arrays, strict=True)):
            np.dot(x, turned, out)
            np.add(out, bias, out)
            if index < last:
                if self._tanh[index]:
                    np.tanh(out, out)
                else:
                    np.maximum(out, ZERO, out=out)
            x = out
        return x

    @property
    def out(self) -> Tensor:
        """The last output as a tensor, in the same memory."""
        assert self._now is not None
        return self._now.out[-1]

    @property
    def gradient(self) -> np.ndarray:
        """Where the gradient of the last output goes, `[N, out]`."""
        assert self._now is not None
        return self._now.gradient_array

    def backward_arrays(self) -> None:
        """Add the parameters' gradients to what they hold, from what was written into `gradient`."""
        memory = self._now
        assert memory is not None
        if memory.small:
            self._backward_small(memory)
        else:
            self._backward(memory)

    @torch.no_grad()
    def _backward(self, memory: _Memory) -> None:
        for index in range(len(self._parameters) - 1, -1, -1):
            weight, bias = self._parameters[index]
            gradient, turned = memory.gradient[index], memory.turned[index]
            seen = memory.out[index - 1] if index else self._x
            if weight.grad is None or bias.grad is None:
                weight.grad, bias.grad = torch.zeros_like(weight), torch.zeros_like(bias)
            weight.grad.addmm_(turned, seen)
            bias.grad.addmv_(turned, memory.ones)
            if index:
                below = memory.gradient[index - 1]
                torch.mm(gradient, self._views[index][0], out=below)
                if self._tanh[index - 1]:
                    _tanh_backward(below, seen, grad_input=below)
                else:
                    _threshold_backward(below, seen, 0, grad_input=below)

    def _backward_small(self, memory: _Memory) -> None:
        """`backward_arrays` by NumPy, which adds to what is there in a second call."""
        x = self._x_array
        for index in range(len(self._parameters) - 1, -1, -1):
            gradient, (of_weight, of_bias) = memory.gradient_arrays[index], memory.found[index]
            seen = memory.out_arrays[index - 1] if index else x
            weight, bias = self._gradient_arrays(index)
            np.add(weight, np.dot(memory.turned_arrays[index], seen, of_weight), weight)
            np.add(bias, np.dot(memory.ones_array, gradient, of_bias), bias)
            if index:
                below = memory.gradient_arrays[index - 1]
                np.dot(gradient, self._arrays[index][0], below)
                if self._tanh[index - 1]:
                    seen_by, into = memory.out[index - 1], memory.gradient[index - 1]
                    _tanh_backward(into, seen_by, grad_input=into)
                else:
                    np.multiply(below, np.greater(seen, ZERO, memory.active[index - 1]), below)

    def _gradient_arrays(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the gradients of a layer's parameters are, as arrays, which are remembered while they stay there."""
        weight, bias = self._parameters[index]
        own, other = weight.grad, bias.grad
        if own is None or other is None:
            own, other = weight.grad, bias.grad = torch.zeros_like(weight), torch.zeros_like(bias)
        known = self._known.get(index)
        if known is None or known[0] is not own or known[1] is not other:
            known = self._known[index] = (own, other, own.numpy(), other.numpy())
        return known[2], known[3]

    def _take_views(self) -> None:
        """Without the modules and without autograd, and anew when somebody gave a parameter other memory."""
        detached = [(weight.detach(), bias.detach()) for weight, bias in self._parameters]
        self._views = [(weight, weight.t(), bias) for weight, bias in detached]
        self._memories, self._known = {}, {}  # a copy of this object has arrays beside its tensors
        self._arrays = [tuple(x.numpy() for x in views) for views in self._views]
        self._places = list(map(_place, self._every))

    def _remember(self, rows: int) -> _Memory:
        if len(self._memories) >= KEPT:
            self._memories.clear()
        memory = self._memories[rows] = _Memory(rows, [tuple(weight.shape) for weight, _ in self._parameters])
        return memory


def array_backprop_of(module: nn.Module) -> ArrayBackprop | None:
    """The passes of an `MLP` or `nn.Sequential`; None where it is more than linear layers with ReLU or tanh between."""
    passes = backprop_of(module)
    return None if passes is None else ArrayBackprop(passes._layers)
