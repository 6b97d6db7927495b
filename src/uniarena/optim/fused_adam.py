"""Adam whose step is one fused call and little else.

On small networks a step of `torch.optim.Adam(fused=True)` is for the larger part bookkeeping: checks, grouping by
device, profiler marks. The numbers, and the state that is saved, are the same.
"""

from __future__ import annotations

from inspect import unwrap
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uniarena.optim.flat import Flat

MOMENTS = ("exp_avg", "exp_avg_sq")


class FusedAdam(torch.optim.Adam):
    """`torch.optim.Adam(params, fused=True)` for parameters on one device. Kingma & Ba 2015 (arXiv:1412.6980).

    Attributes:
        flat: the parameters in one memory; a step is then one of one tensor. None: each by itself.
    """

    # torch wraps these so that its compiler leaves them alone, and loads the compiler at the first call of one: seconds
    # and megabytes that most runs have no use for
    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
        self._counts: dict[int, tuple[Any, list[Tensor]]] = {}
        self.flat: Flat | None = None
        self._whole: _Whole | None = None

    def step(self, closure: Any = None) -> Any:
        """One step. Any with a closure or hooks is torch's own."""
        if closure is not None or self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks:
            return super().step(closure)
        if self._flat_step():
            return None
        self._step_each()
        return None

    @torch.no_grad()
    def _step_each(self) -> None:
        for index, group in enumerate(self.param_groups):
            params = [p for p in group["params"] if p.grad is not None]
            states = [self.state[p] or self._begun(p) for p in params]
            steps = self._counted(index, states)
            first, second = ([state[name] for state in states] for name in MOMENTS)
            _step(group, params, [p.grad for p in params], first, second, steps)

    def _begun(self, parameter: Tensor) -> Any:
        """The state before the first step, as torch makes it. Its own first step would load its compiler."""
        own = self.state[parameter]
        own["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        for name in MOMENTS:
            own[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return own

    def _flat_step(self) -> bool:
        """One step of all parameters as one tensor; False: they are not, or have taken different numbers of steps."""
        flat = self.flat
        if flat is None or len(self.param_groups) != 1 or not flat.full:
            return False
        whole = self._whole
        if whole is None or not whole.holds(self.state):
            states = [self.state[parameter] for parameter in flat.parameters]
            whole = self._whole = _Whole.of(flat, states) if all(states) else None
            if whole is None:
                return False
        whole.counted += ONE
        first, second = whole.moments
        _step(self.param_groups[0], [flat.values], [flat.gradient], [first], [second], whole.steps[:1])
        return True

    def _counted(self, group: int, states: list[Any]) -> list[Tensor]:
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


ONE = np.float32(1.0)


class _Whole:
    """The state of all parameters in one tensor each, of which each parameter's own state holds views."""

    def __init__(self, flat: Flat, states: list[Any]) -> None:
        self.states = states
        self.counts = torch.stack([state["step"] for state in states])
        self.counted = self.counts.numpy()  # in the same memory: a parameter that fits is on the CPU
        self.steps = list(self.counts.unbind(0))
        self.moments = [torch.zeros_like(flat.values) for _ in MOMENTS]
        views = [flat.parts(moment) for moment in self.moments]
        self.views = list(zip(self.steps, *views, strict=True))
        for state, (step, *own) in zip(states, self.views, strict=True):
            for name, view in zip(MOMENTS, own, strict=True):
                view.copy_(state[name])
                state[name] = view
            state["step"] = step

    @classmethod
    def of(cls, flat: Flat, states: list[Any]) -> _Whole | None:
        """None where the parameters have taken different numbers of steps."""
        counts = torch.stack([state["step"] for state in states])
        return cls(flat, states) if bool((counts == counts[0]).all()) else None

    def holds(self, state: dict[Any, Any]) -> bool:
        """Whether nobody put other tensors in place of the views."""
        own = self.states
        if len(state) != len(own) or not all(map(is_, state.values(), own)):
            return False
        for each, (step, first, second) in zip(own, self.views, strict=True):
            if each["step"] is not step or each["exp_avg"] is not first or each["exp_avg_sq"] is not second:
                return False
        return True


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
