"""Target networks: slowly following copies that bootstrapped targets are computed with."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class Target(nn.Module):
    """A copy of a module that follows it. Call it like the module; it gives no gradients.

    Every `interval`-th `update` moves the copy: target += tau · (source − target). A small tau with interval
    1 is the soft update of Lillicrap et al. 2016 (arXiv:1509.02971, section 3); tau 1 with a long interval is
    the periodic copy of Mnih et al. 2015 (Nature 518:529). It stays in evaluation mode.

    Args:
        source: the module to follow; it is not a part of this one.
        tau: share of the way, in (0, 1].
        interval: updates between two moves.

    Attributes:
        module: the copy.
        updates: how often `update` was called; saved with the copy.

    Raises:
        ValueError: tau or interval out of range.
    """

    def __init__(self, source: nn.Module, tau: float = 1.0, interval: int = 1) -> None:
        super().__init__()
        if not 0.0 < tau <= 1.0:
            raise ValueError(f"tau={tau}: expected a share above 0, at most 1.")
        if interval < 1:
            raise ValueError(f"interval={interval}: expected at least 1 update.")
        self.tau, self.interval, self.updates = tau, interval, 0
        self.module = copy.deepcopy(source).requires_grad_(False).eval()
        self._source = (source,)  # in a tuple, so that it is not registered as a part
        # Number by number: modules keep their tensors when they move to another device.
        mine, theirs = _tensors(self.module), _tensors(source)
        moving = [(a, b) for a, b in zip(mine, theirs, strict=True) if a.is_floating_point()]
        self._pairs = [a for a, _ in moving], [b for _, b in moving]
        self._other = [(a, b) for a, b in zip(mine, theirs, strict=True) if not a.is_floating_point()]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self.module(*args, **kwargs)

    def update(self) -> None:
        """Count, and move the copy where its turn has come."""
        self.__dict__["updates"] = updates = self.updates + 1  # a module's own way to set it costs more
        if updates % self.interval == 0:
            with torch.no_grad():
                mine, theirs = self._pairs
                torch._foreach_lerp_(mine, theirs, self.tau)
                self._copy(self._other)

    @torch.no_grad()
    def reset(self) -> None:
        """Make the copy equal to its source: after other parameters were loaded into that."""
        self._copy([*zip(*self._pairs, strict=True), *self._other])

    @torch.no_grad()
    def distance(self) -> tuple[torch.Tensor, torch.Tensor]:
        """How far the copy is from its source, and how long that is: two L2 norms over all numbers, 0-d."""
        mine, theirs = self._pairs
        lengths = [torch._foreach_norm(x) for x in (torch._foreach_sub(mine, theirs), theirs)]
        gap, size = (torch.linalg.vector_norm(torch.stack(list(norms))) for norms in lengths)
        return gap, size

    def follows(self, parameters: Iterable[int]) -> bool:
        """Whether the source holds one of these parameters, given by `id`."""
        return not {id(parameter) for parameter in self._source[0].parameters()}.isdisjoint(parameters)

    @staticmethod
    def _copy(pairs: list[Any]) -> None:
        for mine, theirs in pairs:
            mine.copy_(theirs)

    def train(self, mode: bool = True) -> Target:
        """Stays in evaluation mode, whatever the learner's mode."""
        return super().train(False)

    def get_extra_state(self) -> dict[str, int]:
        return {"updates": self.updates}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.updates = int(state["updates"])


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers in one order."""
    return [*module.parameters(), *module.buffers()]
