"""The natural gradient as an optimiser, so that its step passes what every step passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uniarena.ops.trust_region import backtrack, conjugate_gradient, trust_region_step


@dataclass(frozen=True)
class TrustRegion:
    """What one step stays within.

    Attributes:
        kl: the mean KL from the policy before the step to the present one, 0-d, with a graph of second order.
        loss: what the step lowers, at the present parameters; 0-d.
        max_kl: largest KL of the step.
        cg_steps: of conjugate gradients.
        damping: added to the Fisher matrix's diagonal.
        search_steps: lengths that are tried, each 0.8 × the one before.
    """

    kl: Callable[[], Tensor]
    loss: Callable[[], Tensor]
    max_kl: float
    cg_steps: int = 15
    damping: float = 0.1
    search_steps: int = 10


class NaturalGradient(torch.optim.Optimizer):
    """Steps along F⁻¹·gradient, F the Fisher matrix, to the edge of a trust region; or not at all.

    Schulman et al. 2015 (arXiv:1502.05477), section 6 and appendix C. A length is taken if the loss fell and the KL
    is within bounds; if none is, the parameters stay.

    Args:
        params: of the policy, one group.
        lr: share of the longest step to begin with.

    Attributes:
        region: of the next step; set it before.
        taken: share of the longest step that the last one took.
    """

    def __init__(self, params: Any, lr: float = 1.0) -> None:
        super().__init__(params, {"lr": lr})
        self.region: TrustRegion | None = None
        self.taken = 0.0

    def step(self, closure: Any = None) -> Any:
        """One step from the gradients that the parameters hold.

        Raises:
            RuntimeError: no `region` was set.
        """
        region, self.region = self.region, None
        if region is None:
            raise RuntimeError("NaturalGradient.step needs a region: set it before each step.")
        (group,) = self.param_groups
        params = [p for p in group["params"] if p.grad is not None]
        gradient = _flat([p.grad for p in params])
        with torch.enable_grad():
            slope = _flat(torch.autograd.grad(region.kl(), params, create_graph=True))

        def fisher(vector: Tensor) -> Tensor:
            with torch.enable_grad():
                curved = torch.autograd.grad(slope.dot(vector), params, retain_graph=True)
            return _flat(curved) + region.damping * vector

        direction = conjugate_gradient(fisher, gradient, region.cg_steps)
        longest = group["lr"] * trust_region_step(direction, fisher(direction), region.max_kl)
        self.taken = self._search(params, longest, region)

    @torch.no_grad()
    def _search(self, params: list[nn.Parameter], longest: Tensor, region: TrustRegion) -> float:
        before, first = [p.clone() for p in params], float(region.loss())

        def attempt(share: float) -> bool:
            steps = (share * longest).split([p.numel() for p in params])
            for p, old, one in zip(params, before, steps, strict=True):
                p.copy_(old - one.view_as(p))
            return float(region.loss()) < first and float(region.kl()) <= region.max_kl

        taken = backtrack(attempt, region.search_steps) if bool(longest.isfinite().all()) else 0.0
        if taken == 0.0:
            for p, old in zip(params, before, strict=True):
                p.copy_(old)
        return taken


def _flat(tensors: Any) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tensors])
