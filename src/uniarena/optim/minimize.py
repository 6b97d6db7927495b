"""The one way in which every learner turns a loss into a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from uniarena.batch import Batch, tree_paths
from uniarena.ops.finite import beyond, describe_beyond, magnitudes
from uniarena.ops.statistics import Metrics
from uniarena.optim.accumulation import cut, joined
from uniarena.optim.clipping import Bound, check_parts, global_norm
from uniarena.optim.optimizer import Optimizer, drop_gradients
from uniarena.optim.precision import Precision


@dataclass(frozen=True)
class Derived:
    """A loss whose derivatives were written down by hand, in place of a tensor with a graph.

    Attributes:
        value: the loss, a 0-d tensor without a graph.
        backward: adds the gradients to the parameters' own.
    """

    value: Tensor
    backward: Callable[[], None]

    def detach(self) -> Tensor:
        """The value."""
        return self.value


LossFn = Callable[[Any], tuple[Tensor | Derived, Metrics]]
"""Batch → (scalar loss, detached 0-d metrics)."""

React = Callable[["NonFiniteError", dict[str, Tensor]], bool]
"""(what is wrong, the tensors at fault by name) → True: they were mended in place, go on; False: leave the step out. It
may also raise."""


class Terms(Protocol):
    """What is added to the losses of some optimisers."""

    def added(self, loss_fn: LossFn, optimizer: Optimizer) -> LossFn:
        """The loss of this step of the optimiser; the given one where it is none of its own."""

    def describe(self) -> str: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class NonFiniteError(ArithmeticError):
    """A number is NaN, infinite or huge. Raised before it reaches a step of an optimiser.

    Attributes:
        where: `loss`, `gradient`, `value`, `parameter`, `optimizer`, `buffer`; of what environments and policies gave,
            `observation`, `final observation`, `next observation`, `reward`, `action`, `log_prob`.
        names: the metrics, parameters, or leaf at fault.
        env, env_step: the column, and the environment steps of the run before it; None where it has no such place.
        parameters: names of what the step would have changed.
        in_a_row: steps of this optimiser that were bad one after the other, this one included.
        left_out: the update was left out, and nothing else is to be done.
        rule: what was decided about it; empty: nothing yet.
    """

    def __init__(
        self,
        where: str,
        names: list[str],
        message: str,
        env: int | None = None,
        env_step: int | None = None,
    ) -> None:
        super().__init__(message)
        self.where, self.names, self.env, self.env_step = where, names, env, env_step
        self.parameters: list[str] = []
        self.in_a_row, self.left_out, self.rule = 1, False, ""


@dataclass(frozen=True)
class LearnStep:
    """Between backward and the optimiser's step.

    Attributes:
        gradients: parameter name → gradient; write in place (`clamp_`, `mul_`, `zero_`) to change the step.
        optimizer: `scale(factor)` changes its learning rate for good; `groups` are the torch optimiser's.
    """

    method: ClassVar[str] = "on_learn_step"
    gradients: dict[str, Tensor]
    optimizer: Optimizer


class Minimize:
    """Takes gradient steps: loss, backward, finite or not, SAM's second pass, hook, clip, step.

    Args:
        max_grad_norm: largest global L2 norm of the gradient, or of each part by name; longer ones are scaled down to
            it. None: no clipping.
        precision: computes losses in fewer bits; None: in float32.

    Attributes:
        hook: called with a `LearnStep` between backward and clipping; None costs nothing.
        react: decides what becomes of a bad step; None: it is an error.
        rng: what losses draw from; a second pass draws the same numbers again.
        regularizers: added to losses; None costs nothing.
        loss_fn: what the present step minimises, regularisers included.
        max_abs: larger magnitudes are bad in what is watched.
        bad_steps: first parameter of an optimiser (or `watch`) → how many bad ones came in a row.
        left_out: whether a step was left out since this was last set to False.
    """

    def __init__(self, max_grad_norm: Bound = None, precision: Precision | None = None) -> None:
        check_parts(max_grad_norm, "learner.max_grad_norm")
        self.max_grad_norm, self.precision = max_grad_norm, precision
        self.hook: Callable[[LearnStep], None] | None = None
        self.react: React | None = None
        self.rng: torch.Generator | None = None
        self.regularizers: Terms | None = None
        self.loss_fn: LossFn | None = None
        self.max_abs = math.inf
        self.bad_steps: dict[str, int] = {}
        self.left_out = False

    def __call__(self, loss_fn: LossFn, batch: Any, optimizer: Optimizer) -> Metrics:
        """One step of `optimizer` on `loss_fn(batch)`.

        Returns:
            the loss function's metrics, with `loss` and `grad_norm` (before hook and clipping) added; nothing
            is copied to the host but what the finite check reads.

        Raises:
            NonFiniteError: the loss or a gradient is not finite, and `react` lets it pass; no parameter was changed.
        """
        if self.regularizers is not None:
            loss_fn = self.regularizers.added(loss_fn, optimizer)
        self.loss_fn, sharp = loss_fn, optimizer.sharpness is not None
        drawn = self.rng.get_state() if sharp and self.rng is not None else None
        metrics = _backward(loss_fn, batch, optimizer, self.precision)
        gradients = optimizer.gradients()
        norm, good = global_norm(gradients), True
        size = float(norm)
        metrics["grad_norm"] = norm
        if not (math.isfinite(size) and math.isfinite(float(metrics["loss"]))):
            if self._overflowed(metrics, optimizer):
                return metrics
            good = False
            if not self._mended(_fault(metrics, gradients, batch), gradients, optimizer):
                return metrics
            size = float(global_norm(gradients))
        if sharp and size > 0.0:
            if drawn is not None:
                self.rng.set_state(drawn)  # type: ignore[union-attr]
            with optimizer.climbed(global_norm(gradients)):
                above = _backward(loss_fn, batch, optimizer, self.precision)
            gradients = optimizer.gradients()
            size = float(global_norm(gradients))
            if not math.isfinite(size):
                if self._overflowed(metrics, optimizer):
                    return metrics
                good, above["grad_norm"] = False, global_norm(gradients)
                if not self._mended(_fault(above, gradients, batch), gradients, optimizer):
                    return metrics
                size = float(global_norm(gradients))
        if self.hook is not None:
            self.hook(LearnStep(dict(gradients), optimizer))
            size = float(global_norm(gradients))
            if not math.isfinite(size):
                good = False
                if not self._mended(_bad_gradient(gradients, " after on_learn_step"), gradients, optimizer):
                    return metrics
                size = float(global_norm(gradients))
        optimizer.clip(gradients, size, self.max_grad_norm)
        optimizer.step()
        if self.precision is not None:
            self.precision.stepped()
            metrics.update(self.precision.metrics(False))
        if good and self.bad_steps:
            self.bad_steps.pop(optimizer.names[0], None)
        return metrics

    def _overflowed(self, metrics: Metrics, optimizer: Optimizer) -> bool:
        """Whether the gradients are too large only for the scale of a float16 loss; then there is no `grad_norm`."""
        if self.precision is None or not self.precision.overflowed(float(metrics["loss"])):
            return False
        del metrics["grad_norm"]
        drop_gradients(optimizer.parameters)  # whoever looks at the gradients of the last step finds none
        metrics.update(self.precision.metrics(True))
        return True

    def state_dict(self) -> dict[str, Any]:
        """The scale of float16 losses and what regularisers go by, where there are any."""
        scale = None if self.precision is None else self.precision.scale
        own = {} if scale is None else {"scale": scale.state_dict()}
        return own if self.regularizers is None else own | {"regularizers": self.regularizers.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave; a scale begins anew where another precision was saved."""
        if self.precision is not None and self.precision.scale is not None and "scale" in state:
            self.precision.scale.load_state_dict(state["scale"])
        if self.regularizers is not None:
            self.regularizers.load_state_dict(state.get("regularizers", {}))

    def watch(self, **tensors: Tensor) -> None:
        """Look at what losses are about to be made of, such as values and advantages `[T, B]`, by name.

        Raises:
            NonFiniteError: NaN, infinities or magnitudes beyond `max_abs`, and `react` mends nothing.
        """
        if all(size <= self.max_abs and size < math.inf for size in magnitudes(list(tensors.values()))):
            if self.bad_steps:
                self.bad_steps.pop("watch", None)
            return
        bound = min(self.max_abs, torch.finfo(torch.float64).max)
        bad = {name: x for name, x in tensors.items() if bool(beyond(x, bound).any())}
        said = ", ".join(f"{name} is {describe_beyond(x, bound)}" for name, x in bad.items())
        message = f"{said} (row, column of the rollout); no step was taken. {ADVICE}"
        error = NonFiniteError("value", list(bad), message)
        if not self._mended(error, bad, None):
            error.left_out = True
            raise error

    def _mended(self, error: NonFiniteError, tensors: dict[str, Tensor], optimizer: Optimizer | None) -> bool:
        """Let `react` decide. True: the tensors are finite now; False: the step is to be left out."""
        if self.react is None:
            raise error
        name = "watch" if optimizer is None else optimizer.names[0]
        error.parameters = [] if optimizer is None else optimizer.names
        self.bad_steps[name] = error.in_a_row = self.bad_steps.get(name, 0) + 1
        mended = self.react(error, tensors)
        self.left_out |= not mended
        return mended


ADVICE = "Look for NaN or huge values in observations and rewards, or lower learner.learning_rate."


def _backward(loss_fn: LossFn, batch: Any, optimizer: Optimizer, precision: Precision | None) -> Metrics:
    """The gradients of the batch, in the parameters; the metrics and `loss`."""
    parts = cut(batch, optimizer.accumulate)
    if len(parts) == 1:
        return _of_part(loss_fn, parts[0][0], optimizer, precision)
    found: list[Metrics] = []
    sums: dict[str, Tensor] = {}
    for part, share in parts:
        found.append(_of_part(loss_fn, part, optimizer, precision))
        for name, gradient in optimizer.gradients().items():
            sums[name] = sums[name].add_(gradient, alpha=share) if name in sums else gradient * share
    for name, parameter in zip(optimizer.names, optimizer.parameters, strict=True):
        parameter.grad = sums.get(name)
    return joined(found, [share for _, share in parts])


def _of_part(loss_fn: LossFn, part: Any, optimizer: Optimizer, precision: Precision | None) -> Metrics:
    if precision is None:
        loss, metrics = loss_fn(part)
        optimizer.backward(loss)
    else:
        with precision.autocast():
            loss, metrics = loss_fn(part)
        precision.backward(loss, optimizer)
    return {**metrics, "loss": loss.detach()}


def _fault(metrics: Metrics, gradients: dict[str, Tensor], batch: Any) -> NonFiniteError:
    """What is wrong with a step whose loss or gradient is not finite; `metrics` hold the loss."""
    loss = float(metrics["loss"])
    if math.isfinite(loss):
        return _bad_gradient(gradients, f"; the loss was {loss:.6g}")
    own = {name: value for name, value in metrics.items() if name not in ("loss", "grad_norm")}
    names = [name for name, value in own.items() if not bool(value.isfinite().all())]
    fields = batch if isinstance(batch, Batch) else ()
    paths = [pair for name in fields for pair in tree_paths(batch[name], name)]
    inputs = [path for path, x in paths if x.is_floating_point() and not bool(x.isfinite().all())]
    found = f"not finite: {', '.join(names) or 'only the total'}" + (
        f"; in its batch: {', '.join(inputs)}" if inputs else ""
    )
    return NonFiniteError("loss", names, f"the loss is {loss} ({found}); no step was taken. {ADVICE}")


def _bad_gradient(gradients: dict[str, Tensor], said: str) -> NonFiniteError:
    names = [name for name, gradient in gradients.items() if not bool(gradient.isfinite().all())]
    what = (
        f"the gradient is not finite in {', '.join(names)}"
        if names
        else "the gradient's norm overflows float32"
    )
    return NonFiniteError("gradient", names, f"{what}{said}; no step was taken. Lower learner.learning_rate.")
