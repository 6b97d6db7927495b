"""What parameters, gradients and hidden units say: a look at what is there, without another backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from uniarena.optim.targets import Target

BOUNDED = {nn.Tanh: 0.99, nn.Sigmoid: 0.49, nn.Softsign: 0.99}
"""Activations with bounds, and how far from their middle is near a bound."""
NEARLY_ALL = 0.95


def by_layer(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Norms of parameters or their gradients by layer: `actor.0.weight` and `actor.0.bias` are `actor.0`."""
    if not tensors:
        return {}
    norms = torch.stack(torch._foreach_norm([x.detach() for x in tensors.values()])).tolist()
    squares: dict[str, float] = {}
    for name, norm in zip(tensors, norms, strict=True):
        layer = name.rpartition(".")[0] or name
        squares[layer] = squares.get(layer, 0.0) + norm * norm
    return {layer: math.sqrt(square) for layer, square in squares.items()}


def of_gradients(learner: Any) -> dict[str, float]:
    """Norms of the last step's gradients, in all and by layer; they are what was applied, so after clipping."""
    gradients: dict[str, Tensor] = {}
    for optimizer in learner.optimizers.values():
        gradients |= optimizer.gradients()
    layers = by_layer(gradients)
    if not layers:
        return {}
    total = math.sqrt(sum(norm * norm for norm in layers.values()))
    return {
        "health/gradient_norm": total,
        **{f"gradient/{layer}": norm for layer, norm in layers.items()},
    }


class Moves:
    """How far parameters move between two calls.

    Args:
        named: (name, parameter) pairs.
    """

    def __init__(self, named: Any) -> None:
        pairs = [(name, p) for name, p in named if p.is_floating_point() and p.numel()]
        self.names, self.parameters = [name for name, _ in pairs], [p.detach() for _, p in pairs]
        self._before = [torch.empty_like(p) for p in self.parameters]
        self.mark()

    def mark(self) -> None:
        """Remember where the parameters are."""
        torch._foreach_copy_(self._before, self.parameters)

    def ratios(self) -> dict[str, float]:
        """‖Δ‖ / ‖θ‖ since the last mark, in all and by layer."""
        if not self.names:
            return {}
        changes = torch._foreach_sub(self.parameters, self._before)
        moved = by_layer(dict(zip(self.names, changes, strict=True)))
        size = by_layer(dict(zip(self.names, self.parameters, strict=True)))
        found = {f"update_ratio/{layer}": moved[layer] / size[layer] for layer in moved if size[layer] > 0}
        length = math.sqrt(sum(x * x for x in size.values()))
        if length > 0:
            found["health/update_ratio"] = math.sqrt(sum(x * x for x in moved.values())) / length
        return found


def target_gap(learner: nn.Module) -> dict[str, float]:
    """‖θ − θ′‖ / ‖θ‖ over all target networks θ′; nothing where there are none."""
    gaps: list[Tensor] = []
    sizes: list[Tensor] = []
    for target in (part for part in learner.modules() if isinstance(part, Target)):
        gap, size = target.distance()
        gaps.append(gap)
        sizes.append(size)
    if not gaps:
        return {}
    length, apart = (float(torch.stack(norms).square().sum().sqrt()) for norms in (sizes, gaps))
    return {"health/target_gap": apart / length} if length > 0 else {}


class Units:
    """Counts, while the model runs, hidden units that say nothing: dead ReLUs, saturated bounded ones."""

    def __init__(self) -> None:
        self.dead: dict[str, float] = {}
        self.saturated: dict[str, float] = {}

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Hooks on the activations of a model inside, and none afterwards."""
        hooks = []
        for name, part in model.named_modules():
            if isinstance(part, nn.ReLU):
                hooks.append(part.register_forward_hook(self._noting_dead(name)))
            elif type(part) in BOUNDED:
                hooks.append(part.register_forward_hook(self._noting_saturated(name, BOUNDED[type(part)])))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _noting_dead(self, name: str) -> Any:
        def note(part: nn.Module, inputs: Any, out: Tensor) -> None:
            self.dead[name] = float((_by_unit(out) > 0).any(0).logical_not().float().mean())

        return note

    def _noting_saturated(self, name: str, near: float) -> Any:
        def note(part: nn.Module, inputs: Any, out: Tensor) -> None:
            away = _by_unit(out) - 0.5 if isinstance(part, nn.Sigmoid) else _by_unit(out)
            often = (away.abs() > near).float().mean(0) >= NEARLY_ALL
            self.saturated[name] = float(often.float().mean())

        return note

    def figures(self) -> dict[str, float]:
        """The worst layer's shares."""
        found = {}
        if self.dead:
            found["health/dead_units"] = max(self.dead.values())
        if self.saturated:
            found["health/saturated_units"] = max(self.saturated.values())
        return found


def _by_unit(out: Tensor) -> Tensor:
    """`[N, units]` of a layer's output: features, or the channels of an image `[N, C, H, W]` over all places."""
    if out.dim() == 4:
        return out.movedim(1, -1).flatten(0, 2)
    return out.flatten(0, -2)
