"""The randomness of sampling, apart from the parameters so that a whole chunk's can be drawn at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Generator = torch.Generator | None
"""None: torch's global generator."""


def gumbel(shape: Any, generator: Generator, device: torch.device) -> Tensor:
    """Standard Gumbel noise, finite: −log of an exponential variate that is kept above 0."""
    exponential = torch.empty(shape, device=device).exponential_(generator=generator)
    return exponential.clamp_(min=torch.finfo(torch.float32).tiny).log_().neg_()


def logistic(shape: Any, generator: Generator, device: torch.device) -> Tensor:
    """Standard logistic noise, finite: the logit of a uniform variate."""
    return torch.logit(torch.rand(shape, generator=generator, device=device), eps=1e-7)


def normal(shape: Any, generator: Generator, device: torch.device) -> Tensor:
    """Standard normal noise."""
    return torch.randn(shape, generator=generator, device=device)
