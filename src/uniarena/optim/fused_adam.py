"""Adam whose step is one fused call and little else.

On small networks a step of `torch.optim.Adam(fused=True)` is for the larger part bookkeeping: checks, grouping by
device, profiler marks. The numbers, and the state that is saved, are the same.
"""

from __future__ import annotations

from typing import Any

import torch


class FusedAdam(torch.optim.Adam):
    """`torch.optim.Adam(params, fused=True)` for parameters on one device. Kingma & Ba 2015 (arXiv:1412.6980)."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
        self._counts: dict[int, tuple[Any, list[torch.Tensor]]] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step. The first one, and any with a closure or hooks, is torch's own."""
        if closure is not None or self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks:
            return super().step(closure)
        for index, group in enumerate(self.param_groups):
            params = [p for p in group["params"] if p.grad is not None]
            states = [self.state[p] for p in params]
            if not all(states):
                return super().step()
            steps = self._counted(index, states)
            torch._fused_adam_(
                params,
                [p.grad for p in params],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                steps,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )
        return None

    def _counted(self, group: int, states: list[Any]) -> list[torch.Tensor]:
        """The steps of each parameter, one more than before. They lie in one tensor, so that one call counts them."""
        counts, steps = self._counts.get(group, (None, []))
        if len(steps) != len(states) or any(
            one is not state["step"] for one, state in zip(steps, states, strict=True)
        ):
            counts = torch.stack([state["step"] for state in states])
            steps = list(counts.unbind(0))
            for state, one in zip(states, steps, strict=True):
                state["step"] = one
            self._counts[group] = (counts, steps)
        counts.add_(1)
        return steps

    step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it into profiler marks, half its cost
