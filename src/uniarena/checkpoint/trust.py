"""What a checkpoint may make a program do: build an agent of the sizes it holds, and import nothing by name."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from uniarena.checkpoint.manifest import CheckpointError
from uniarena.config import ConfigError

SPARE = 2**24
"""Numbers that an agent may hold beyond four times those that its checkpoint does."""

_NO_NAMES = ("observation_space", "action_map", "device")
_FACTORIES = frozenset(
    getattr(torch, name) for name in ("empty", "zeros", "ones", "full", "rand", "randn", "eye")
)


def check_trust(spec: Any, folder: Path, trust: bool) -> None:
    """Refuse a description that would import code named by the checkpoint (`module:Class`), unless it is
    trusted.

    Raises:
        CheckpointError: it names an import path and `trust` is false.
    """
    if trust:
        return
    waiting = [spec]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and ":" in value:  # whatever stands before a colon is imported
            reason = f"would import {value!r}. If you know where it comes from, load it with trust=True."
            raise CheckpointError(folder, reason)
        if isinstance(value, Mapping):
            waiting += [entry for key, entry in value.items() if key not in _NO_NAMES]
        elif isinstance(value, (list, tuple)):
            waiting += value


@contextlib.contextmanager
def rebuilding(folder: Path | str, fault: str, saved: Any = None) -> Iterator[None]:
    """Around the building of something from a checkpoint: what does not fit becomes a CheckpointError.

    Args:
        fault: what it then says.
        saved: the state of what is built from a description by somebody else: networks much larger than what they saved
            are refused before the memory is taken. None: no limit.

    Raises:
        CheckpointError: what is described cannot be built, or is not what was saved.
    """
    try:
        with _Bounded(4 * _count(saved) + SPARE) if saved is not None else contextlib.nullcontext():
            yield
    except (CheckpointError, ConfigError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:400]
        raise CheckpointError(folder, f"{fault}: {type(error).__name__}: {said}") from error


class _Bounded(TorchFunctionMode):
    """Counts the numbers that new tensors take."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.left = limit

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES:
            self.left -= _asked(args, kwargs)
            if self.left < 0:
                raise ValueError("it describes networks much larger than those that it holds")
        return func(*args, **kwargs)


def _asked(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    shape = kwargs.get("size", args)
    shape = shape[0] if len(shape) and isinstance(shape[0], (tuple, list)) else shape
    return math.prod(size for size in shape if isinstance(size, int))


def _count(state: Any) -> int:
    """Numbers in all tensors of a state."""
    if isinstance(state, Tensor):
        return state.numel()
    inner = (
        state.values() if isinstance(state, Mapping) else state if isinstance(state, (list, tuple)) else ()
    )
    return sum(_count(value) for value in inner)
