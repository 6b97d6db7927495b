"""What is done to a gradient before it becomes a step: normalised, clipped by unit, by a quantile, by its length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from uniarena.config import Between, ConfigError
from uniarena.optim.flat import Gradients

Bound = float | Mapping[str, float] | None
"""Longest gradient; or part (`policy`, `value`) → longest gradient of that part."""

Norm = Annotated[float, Between(0, above=True)]
GradNorm = Norm | dict[str, Norm] | None
"""`Bound`, as configs declare it."""

PARTS = ("policy", "value", "intrinsic")
LEAST_UNIT = 1e-3
"""Units with smaller weights are clipped as if they had this norm, so that zeros can begin to learn."""
ENOUGH_NORMS = 10
"""Past norms that a quantile needs to mean something."""


def global_norm(gradients: Mapping[str, Tensor]) -> Tensor:
    """L2 norm of all gradients together, a 0-d tensor."""
    if isinstance(gradients, Gradients):
        array = gradients.array
        if array is None:
            return torch.linalg.vector_norm(gradients.whole)
        square = np.empty((), np.float32)
        return torch.from_numpy(np.sqrt(np.dot(array, array, square), square))
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients.values()))))


def part_of(name: str) -> str:
    """The part that a parameter belongs to, by its name: `value` (also a critic on a shared encoder), else `policy`."""
    value = name.startswith(("value", "q.", "critic")) or ".critic." in name
    return "value" if value else "temperature" if name.startswith("temperature") else "policy"


def check_parts(bound: Bound, path: str) -> None:
    """Whether a bound by part names parts.

    Raises:
        ConfigError: it names something else.
    """
    odd = [part for part in bound if part not in PARTS] if isinstance(bound, Mapping) else []
    if odd:
        raise ConfigError(
            f"there is no part {odd[0]!r}; gradients are clipped by part for {', '.join(PARTS)}.",
            path=f"{path}.{odd[0]}",
            hint=f"write {path}: {{policy: 0.5, value: 0.5}}, or one number for all together.",
        )


def unit_norm(x: Tensor) -> Tensor:
    """Norms of the units of one parameter, in a shape that broadcasts with it.

    A unit is what makes one output: a row of `[out, in]`, a filter of `[out, in, h, w]`, a column of a member's `[in,
    out]` of an ensemble `[E, in, out]`; a bias is one unit, in an ensemble one a member.
    """
    if x.ndim < 2:
        return torch.linalg.vector_norm(x)
    if x.ndim == 3:
        return torch.linalg.vector_norm(x, dim=2 if x.shape[1] == 1 else 1, keepdim=True)
    return torch.linalg.vector_norm(x, dim=tuple(range(1, x.ndim)), keepdim=True)


def clip_units_(gradient: Tensor, weight: Tensor, factor: float) -> None:
    """Each unit's gradient at most `factor` × the unit's weight, in norm; in place.

    Adaptive gradient clipping: Brock et al. 2021 (arXiv:2102.06171), eq. 3. Deviation: the last layer too, which is
    not told apart here.
    """
    largest = factor * unit_norm(weight.detach()).clamp(min=LEAST_UNIT)
    gradient.mul_((largest / unit_norm(gradient).clamp(min=1e-6)).clamp(max=1.0))


class Clipping:
    """Shapes the gradients of one optimiser, in this order: normalise, units, quantile, `max_grad_norm`.

    Args:
        normalize: divide the gradient by its norm. Hazan et al. 2015 (arXiv:1507.02030), algorithm 1.
        agc: λ of `clip_units_`; None: off.
        quantile: no longer than this quantile of the last `window` norms. Seetharaman et al. 2020 (arXiv:2007.14469),
            section 2, who take the quantile 0.1 of all norms, the present one included; None: off.
        window: see `quantile`.
        by: whether `max_grad_norm` bounds all gradients together, or those of each layer.
        part: what part all parameters belong to; None: each by its name.

    Attributes:
        norms: the last norms, oldest first; saved.
    """

    def __init__(
        self,
        *,
        normalize: bool = False,
        agc: float | None = None,
        quantile: float | None = None,
        window: int = 200,
        by: Literal["all", "layer"] = "all",
        part: str | None = None,
    ) -> None:
        self.normalize, self.agc, self.quantile, self.window = normalize, agc, quantile, window
        self.by, self.part = by, part
        self.norms: list[float] = []
        self._plain = not normalize and agc is None and quantile is None

    def __call__(
        self, gradients: dict[str, Tensor], size: float, bound: Bound, weights: Mapping[str, Tensor] | None
    ) -> None:
        """In place.

        Args:
            gradients: by name of the parameter; finite.
            size: their global norm.
            bound: `max_grad_norm`.
            weights: the parameters by name; only read with `agc`.
        """
        if not self._plain:
            size = self._shape(gradients, size, weights or {})
        if bound is None:
            return
        if self.by == "all" and (isinstance(bound, float) or not isinstance(bound, Mapping)):
            if size > bound:
                whole = [gradients.whole] if isinstance(gradients, Gradients) else list(gradients.values())
                torch._foreach_mul_(whole, bound / (size + 1e-6))
            return
        for key, names in self._groups(gradients).items():
            limit = bound.get(key[0]) if isinstance(bound, Mapping) else bound
            if limit is not None:
                _shorten([gradients[name] for name in names], limit)

    @property
    def needs_weights(self) -> bool:
        """Whether a call looks at the parameters."""
        return self.agc is not None

    def _shape(self, gradients: dict[str, Tensor], size: float, weights: Mapping[str, Tensor]) -> float:
        every = list(gradients.values())
        if self.normalize and size > 0.0:
            torch._foreach_mul_(every, 1.0 / size)
            size = 1.0
        if self.agc is not None:
            for name, gradient in gradients.items():
                clip_units_(gradient, weights[name], self.agc)
            size = float(global_norm(gradients))
        if self.quantile is not None:
            usual = math.inf
            if len(self.norms) >= ENOUGH_NORMS:
                usual = float(np.quantile(self.norms, self.quantile))
            self.norms = [*self.norms, size][-self.window :]
            if size > usual:
                torch._foreach_mul_(every, usual / size)
                size = usual
        return size

    def _groups(self, names: Iterable[str]) -> dict[tuple[str, str], list[str]]:
        """(part, layer) → its parameters; the layer is empty where all are bounded together."""
        found: dict[tuple[str, str], list[str]] = {}
        for name in names:
            layer = name.rpartition(".")[0] if self.by == "layer" else ""
            found.setdefault((self.part or part_of(name), layer), []).append(name)
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"norms": list(self.norms)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        self.norms = [float(norm) for norm in state["norms"]]


def _shorten(gradients: list[Tensor], limit: float) -> None:
    size = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
    if size > limit:
        torch._foreach_mul_(gradients, limit / (size + 1e-6))
