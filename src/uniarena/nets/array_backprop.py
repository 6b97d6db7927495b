"""Forward and backward passes of a plain MLP on the CPU, in memory that is kept: products by torch, tanh by NumPy.

Tanh is where the time of small networks goes. NumPy's takes a sixth of torch's on one thread and differs from it by a
unit or two in the last place.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from uniarena.nets import inference
from uniarena.nets.backprop import Backprop, backprop_of

KEPT = 3
"""Numbers of rows whose memory is kept: minibatches of a rollout that does not divide have two."""

_threshold_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class _Memory:
    """Outputs and their gradients, layer by layer, for so many rows."""

    def __init__(self, rows: int, widths: list[int]) -> None:
        with torch.inference_mode(False):
            self.out = [torch.zeros(rows, width) for width in widths]
            self.gradient = [torch.zeros(rows, width) for width in widths]
            self.ones = torch.ones(rows)
        self.out_arrays = [x.numpy() for x in self.out]
        self.gradient_array = self.gradient[-1].numpy()
        self.turned = [x.t() for x in self.gradient]


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
        self._now: _Memory | None = None
        self._x = torch.empty(0)

    @property
    def able(self) -> bool:
        """Whether nobody watches, and the parameters are where NumPy can work."""
        return not self.watched and all(inference.speaks_numpy(w) for w, _ in self._parameters)

    def forward_arrays(self, x: Tensor) -> np.ndarray:
        """`[N, in]` → `[N, out]`; what `backward_arrays` needs is kept for it."""
        if [p.data_ptr() for pair in self._parameters for p in pair] != self._places:
            self._take_views()
        memory = self._memories.get(x.shape[0]) or self._remember(x.shape[0])
        self._now, self._x = memory, x
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

    @torch.no_grad()
    def backward_arrays(self) -> None:
        """Add the parameters' gradients to what they hold, from what was written into `gradient`."""
        memory = self._now
        assert memory is not None
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

    def _take_views(self) -> None:
        """Without the modules and without autograd, and anew when somebody gave a parameter other memory."""
        detached = [(weight.detach(), bias.detach()) for weight, bias in self._parameters]
        self._views = [(weight, weight.t(), bias) for weight, bias in detached]
        self._places = [p.data_ptr() for pair in self._parameters for p in pair]

    def _remember(self, rows: int) -> _Memory:
        if len(self._memories) >= KEPT:
            self._memories.clear()
        memory = self._memories[rows] = _Memory(rows, [len(bias) for _, bias in self._parameters])
        return memory


def array_backprop_of(module: nn.Module) -> ArrayBackprop | None:
    """The passes of an `MLP` or `nn.Sequential`; None where it is more than linear layers with ReLU or tanh between."""
    passes = backprop_of(module)
    return None if passes is None else ArrayBackprop(passes._layers)
