"""JAX arrays and torch tensors of the same memory, by dlpack. The only file that imports jax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def to_torch(array: Any) -> Tensor:
    """A tensor that shares the array's memory."""
    return torch.from_dlpack(array)


def to_jax(tensor: Tensor) -> Any:
    """An array that shares the tensor's memory."""
    import jax.dlpack

    return jax.dlpack.from_dlpack(tensor.contiguous())


def library() -> Any:
    """The module `jax`."""
    import jax

    return jax
