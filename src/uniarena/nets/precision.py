"""What stays in 32 bits where networks run in 16."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

KINDS = ("cpu", "cuda")


def autocasting() -> bool:
    """Whether operations run in fewer bits here than their inputs have."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def widened(x: Tensor) -> Tensor:
    """16-bit floats as float32, anything else as it is: what a network says before losses and targets use it."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


@contextmanager
def full_precision() -> Iterator[None]:
    """No autocast inside, on any device."""
    with ExitStack() as stack:
        for kind in KINDS:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def as_target(fn: Callable[P, R]) -> Callable[P, R]:
    """A function whose results are constants of a loss: no graph, and full precision inside of an autocast loss."""

    @wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.no_grad():
            if not autocasting():
                return fn(*args, **kwargs)
            with full_precision():
                return fn(*args, **kwargs)

    return call
