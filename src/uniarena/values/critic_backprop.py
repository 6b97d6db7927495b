"""The loss of plain critics with its gradients, without an autograd graph."""

from __future__ import annotations

import torch
from torch import Tensor

from uniarena.batch import Tree
from uniarena.nets.backprop import EnsembleBackprop, ensemble_backprop_of
from uniarena.nets.leaves import Keys, leaf_at
from uniarena.ops.actor_critic import critic_loss
from uniarena.ops.statistics import Metrics
from uniarena.ops.td import td_gradient
from uniarena.optim import Derived
from uniarena.values.ensemble import QEnsemble


class CriticBackprop:
    """What `critic_loss` makes of Q, and its gradients, for members that give one number.

    Args:
        q: the critics.
        passes: of their body.
        keys: the way to the one leaf of the observation that they take.
    """

    def __init__(self, q: QEnsemble, passes: EnsembleBackprop, keys: Keys) -> None:
        self._watched = q, q.body
        self._passes, self._keys = passes, keys

    @property
    def able(self) -> bool:
        """Whether nobody watches the graph that there would be."""
        hooked = any(part._forward_hooks or part._forward_pre_hooks for part in self._watched)
        return not (hooked or self._passes.watched)

    @torch.no_grad()
    def loss(
        self, inputs: Tree, action: Tensor, target: Tensor, weight: Tensor | None, td_clip: float | None
    ) -> tuple[Derived, Metrics]:
        """The loss of rows `[N]` and its metrics.

        Args:
            inputs: normalised observations.
            action: `[N, D]`, scaled.
            target, weight: `[N]`.
            td_clip: errors beyond it count linearly.
        """
        x = leaf_at(inputs, self._keys)
        q = self._passes.forward(torch.cat([x if x.dtype is torch.float32 else x.float(), action], dim=-1))
        q = q.squeeze(-1)
        loss, surprise = critic_loss(q, target, weight, td_clip)

        def backward() -> None:
            rows = q.shape[1]
            step = td_gradient(q, target, td_clip)
            self._passes.backward(
                step.div_(rows).unsqueeze(-1) if weight is None else (step * (weight / rows)).unsqueeze(-1)
            )

        return Derived(loss, backward), {"q": q.mean(), "target": target.mean(), "surprise": surprise}


def critic_backprop(q: QEnsemble) -> CriticBackprop | None:
    """The hand-written loss of critics; None where they are more than plain MLPs that give one number."""
    encoder = q.encoder
    if encoder is None or not encoder.identity or not q.single:
        return None
    passes = ensemble_backprop_of(q.body)
    return None if passes is None else CriticBackprop(q, passes, encoder.keys[0])
