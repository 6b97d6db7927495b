"""Numbers that are NaN, infinite or beyond a bound: whether there are any, which, and bounded ones in their place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

_NUMPY_S = (torch.float32, torch.float64)
SMALL = 4096
"""Numbers of a tensor up to which NumPy looks at it."""


def magnitudes(tensors: Sequence[Tensor]) -> list[float]:
    """The largest magnitude in each (non-empty) tensor, NaN where one holds NaN. One copy to the host."""
    if all(map(_small, tensors)) and sum(sizes := [tensor.numel() for tensor in tensors]) <= SMALL:
        whole = np.concatenate([tensor.numpy().reshape(-1) for tensor in tensors]) if sizes else np.zeros(0)
        starts = [0, *accumulate(sizes[:-1])] if sizes else []
        found: list[float] = np.maximum.reduceat(np.abs(whole, whole), starts).tolist() if sizes else []
        return found
    pairs = [torch.aminmax(tensor) for tensor in tensors]
    ends = torch.stack([end for pair in pairs for end in pair]).tolist()
    return [max(-low, high) for low, high in zip(ends[::2], ends[1::2], strict=True)]


def _small(tensor: Tensor) -> bool:
    """Whether NumPy, whose calls cost a quarter of torch's, can look at it in about no time."""
    return tensor.is_cpu and tensor.dtype in _NUMPY_S and tensor.numel() <= SMALL and not tensor.requires_grad


def beyond(x: Tensor, bound: float) -> Tensor:
    """Bool of the same shape: NaN, infinite, or larger in magnitude than `bound`."""
    return ~(x.abs() <= bound)


def bounded(x: Tensor, bound: float, largest: float) -> Tensor:
    """NaN as 0, and ± `largest` in place of infinities and of what is beyond `bound`; a copy, the rest as it is."""
    instead = torch.nan_to_num(x.sign()) * largest
    return torch.where(beyond(x, bound), instead, x)


def largest_within(x: Tensor, bound: float) -> float:
    """The largest magnitude in `x` that is not beyond `bound`; 0 where there is none."""
    kept = torch.where(beyond(x, bound), 0.0, x).abs()
    return float(kept.max()) if kept.numel() else 0.0


def describe_beyond(x: Tensor, bound: float) -> str:
    """What the first bad entry of a tensor is and where: `nan`, `inf at [1, 3]`, `1e+38 at [0] (beyond 1e+15)`.

    Raises:
        IndexError: there is none.
    """
    at = beyond(x, bound).nonzero()[0].tolist()
    value = float(x[tuple(at)])
    place = f" at {at}" if at else ""
    return f"{value:g}{place}" + (f" (beyond max_abs={bound:g})" if abs(value) < torch.inf else "")
