"""The parameters of an optimiser side by side in one piece of memory, and their gradients in another.

On small networks a norm, a clip or a step over a dozen tensors is a dozen times the bookkeeping of one. Names, shapes
and values of parameters and of their gradients stay as they were: each is a view of its part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, is_

import torch
from torch import Tensor, nn

LARGEST = 2**20
"""Numbers up to which it pays: beyond, arithmetic is what a step costs, and gradients need not be kept."""

FEW = 8192
"""Numbers up to which NumPy's call for a norm is the shorter one (and does not call further threads)."""
_ALIGNED = 16
"""Parts begin at multiples of so many numbers (64 bytes), as memory of their own would."""


_trained, _gradient, _place = attrgetter("requires_grad"), attrgetter("grad"), Tensor.data_ptr


class Gradients(dict[str, Tensor]):
    """Name → gradient, all of them parts of `whole`, `[M]`, which is 0 elsewhere.

    Attributes:
        array: `whole` as an array, where it is small and on the CPU.
    """

    def __init__(self, named: Iterable[tuple[str, Tensor]], whole: Tensor) -> None:
        super().__init__(named)
        self.whole = whole
        self.array = whole.numpy() if whole.is_cpu and whole.numel() <= FEW else None


class Flat:
    """One memory for `parameters`, which are moved there, and one for their gradients.

    Whoever gives a parameter other memory, such as `module.to(device)`, ends this: `holds` is False from then on.

    Args:
        names, parameters: in the optimiser's order; see `fits`.

    Attributes:
        values, gradient: `[M]`, gaps between parts are 0.
        named: name → its part of `gradient`.
    """

    def __init__(self, names: Sequence[str], parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        starts, total = [], 0
        for parameter in parameters:
            starts.append(total)
            total += -(-parameter.numel() // _ALIGNED) * _ALIGNED
        first = parameters[0]
        self.values, self.gradient = (first.detach().new_zeros(total) for _ in range(2))
        self._starts = starts
        for parameter, part in zip(parameters, self.parts(self.values), strict=True):
            part.copy_(parameter.detach())
            parameter.data = part
        self._views = self.parts(self.gradient)
        self._places = [parameter.data_ptr() for parameter in parameters]
        self.named = Gradients(zip(names, self._views, strict=True), self.gradient)

    @staticmethod
    def fits(parameters: Sequence[nn.Parameter]) -> bool:
        """Whether they are small, contiguous, float32 and on one CPU."""
        alike = all(
            type(p) is nn.Parameter
            and p.dtype == torch.float32
            and p.device.type == "cpu"
            and p.is_contiguous()
            and p.numel()
            for p in parameters
        )
        return alike and sum(p.numel() for p in parameters) <= LARGEST

    def parts(self, whole: Tensor) -> list[Tensor]:
        """`[M]` → a view for each parameter, of its shape."""
        return [
            whole[start : start + p.numel()].view(p.shape)
            for start, p in zip(self._starts, self.parameters, strict=True)
        ]

    @property
    def holds(self) -> bool:
        """Whether all parameters still lie here and are to be trained."""
        parameters = self.parameters
        return list(map(_place, parameters)) == self._places and all(map(_trained, parameters))

    @property
    def full(self) -> bool:
        """Whether `gradient` holds the gradients of all parameters."""
        return self.holds and all(map(is_, map(_gradient, self.parameters), self._views))

    def clear(self) -> None:
        """Gradients of 0, to be added to."""
        if self.named.array is None:
            self.gradient.zero_()
        else:
            self.named.array.fill(0.0)
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.grad is not view:
                parameter.grad = view

    def gather(self) -> None:
        """Gradients that autograd left elsewhere are moved here, unless a parameter has none."""
        own = list(map(_gradient, self.parameters))
        if all(map(is_, own, self._views)):
            return
        given = [gradient for gradient in own if gradient is not None and gradient.layout is torch.strided]
        if len(given) < len(own):
            return
        with torch.no_grad():
            torch._foreach_copy_(self._views, given)
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view
