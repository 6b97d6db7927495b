"""One estimate from several states of a Q-network."""

from __future__ import annotations

import torch
from torch import Tensor

from uniarena.batch import Tree
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.ops.actor_critic import Reduction, reduce_members
from uniarena.optim.past_targets import PastTargets
from uniarena.optim.targets import Target
from uniarena.values.q_model import FastQ


class PastQ:
    """What `FastQ` computes, reduced over target networks; for networks whose outputs are expectations.

    Args:
        targets: one target, or several.
        normalizer: applied to observations first.
        reduction: of the members.
    """

    def __init__(
        self, targets: PastTargets, normalizer: ObservationNormalizer | None, reduction: Reduction
    ) -> None:
        self._members = [FastQ(member.module, normalizer) for member in targets.members]  # type: ignore[arg-type]
        self._reduction = reduction

    def __call__(self, obs: Tree) -> Tensor:
        """Raw observations `[B, ...]` → Q `[B, A]`."""
        return reduce_members(torch.stack([member(obs) for member in self._members]), self._reduction)

    def outputs(self, obs: Tree) -> Tensor:
        """Raw observations `[B, ...]` → `[B, A, 1]`."""
        return reduce_members(torch.stack([member.outputs(obs) for member in self._members]), self._reduction)


def fast_targets(
    targets: Target | PastTargets, normalizer: ObservationNormalizer | None, reduction: Reduction
) -> FastQ | PastQ:
    """The quick way to what target networks say of observations."""
    if isinstance(targets, PastTargets):
        return PastQ(targets, normalizer, reduction)
    return FastQ(targets.module, normalizer)  # type: ignore[arg-type]
