"""Adam whose step is one fused call and little else.

On small networks a step of `torch.optim.Adam(fused=True)` is for the larger part bookkeeping: checks, grouping by
device, profiler marks. The numbers, and the state that is saved, are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from uniarena.optim.flat import Flat


class FusedAdam(torch.optim.Adam):
    """`torch.optim.Adam(params, fused=True)` for parameters on one device. Kingma & Ba 2015 (arXiv:1412.6980).

    Attributes:
        flat: the parameters in one memory; a step is then one of one tensor. None: each by itself.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
        self._counts: dict[int, tuple[Any, list[Tensor], bool]] = {}
        self.flat: Flat | None = None
        self._moments: tuple[list[Tensor], list[list[Tensor]]] = ([], [])

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
            steps, even = self._counted(index, states)
            if even and self.flat is not None and len(self.param_groups) == 1 and self.flat.full:
                flat = self.flat
                first, second = self._flat_moments(flat, states)
                _step(group, [flat.values], [flat.gradient], [first], [second], steps[:1])
                continue
            moments = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
            _step(group, params, [p.grad for p in params], *moments, steps)
        return None

    def _counted(self, group: int, states: list[Any]) -> tuple[list[Tensor], bool]:
        """The steps of each parameter, one more than before, and whether all are the same. They lie in one tensor, so
        that one call counts them.
        """
        counts, steps, even = self._counts.get(group, (None, [], False))
        if len(steps) != len(states) or any(
            one is not state["step"] for one, state in zip(steps, states, strict=True)
        ):
            counts = torch.stack([state["step"] for state in states])
            steps, even = list(counts.unbind(0)), bool((counts == counts[0]).all())
            for state, one in zip(states, steps, strict=True):
                state["step"] = one
            self._counts[group] = (counts, steps, even)
        counts.add_(1)
        return steps, even

    def _flat_moments(self, flat: Flat, states: list[Any]) -> list[Tensor]:
        """Both moments of all parameters in one tensor each, of which the states hold views."""
        whole, views = self._moments
        names = ("exp_avg", "exp_avg_sq")
        if not whole or any(
            state[name] is not view
            for name, own in zip(names, views, strict=True)
            for state, view in zip(states, own, strict=True)
        ):
            whole = [torch.zeros_like(flat.values) for _ in names]
            views = [flat.parts(each) for each in whole]
            for name, own in zip(names, views, strict=True):
                for state, view in zip(states, own, strict=True):
                    view.copy_(state[name])
                    state[name] = view
            self._moments = (whole, views)
        return whole

    step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it into profiler marks, half its cost


def _step(group: dict[str, Any], params: Any, gradients: Any, first: Any, second: Any, steps: Any) -> None:
    torch._fused_adam_(
        params,
        gradients,
        first,
        second,
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
