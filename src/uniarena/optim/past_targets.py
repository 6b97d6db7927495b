"""Several target networks of one source: the last states that a target was moved to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from uniarena.optim.targets import Target


class PastTargets(nn.Module):
    """The newest `count` states of a target, oldest forgotten at each move. Call it like the module.

    Averaged-DQN: Anschel et al. 2017 (arXiv:1611.01929), algorithm 2, takes the mean of their outputs; the minimum is
    the pessimistic choice of Fujimoto et al. 2018 (arXiv:1802.09477). With a small tau the states hardly differ: give a
    longer interval too.

    Args:
        source, tau, interval: as of `Target`.
        count: how many.

    Attributes:
        members: the targets, newest first; at first all are equal to the source.
    """

    def __init__(self, source: nn.Module, tau: float, interval: int, count: int) -> None:
        super().__init__()
        self.members = nn.ModuleList([Target(source, tau, interval) for _ in range(count)])

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """What the members say, one after the other along the first dimension: `[E, …]` → `[count · E, …]`."""
        return torch.cat([member(*args, **kwargs) for member in self.members])

    @property
    def updates(self) -> int:
        """How often `update` was called."""
        updates: int = self.members[0].updates  # type: ignore[assignment]
        return updates

    @torch.no_grad()
    def update(self) -> None:
        """Count, and move where the turn has come: each member to the state of the one before it."""
        newest: Any = self.members[0]
        if (newest.updates + 1) % newest.interval == 0:
            for older, younger in zip(reversed(self.members), reversed(self.members[:-1]), strict=False):
                older.module.load_state_dict(younger.module.state_dict())  # type: ignore[union-attr]
        newest.update()


def build_targets(source: nn.Module, tau: float, interval: int, count: int) -> Target | PastTargets:
    """One target, or several."""
    return Target(source, tau, interval) if count == 1 else PastTargets(source, tau, interval, count)
