"""The loss of a plain Q-network with its gradients, without an autograd graph."""

from __future__ import annotations

import torch
from torch import Tensor

from uniarena.batch import Tree
from uniarena.nets.backprop import Backprop, backprop_of
from uniarena.nets.encoders import Encoder
from uniarena.nets.leaves import Keys, leaf_at
from uniarena.ops.statistics import Metrics
from uniarena.ops.td import td_gradient, td_loss
from uniarena.optim import Derived
from uniarena.values.distributional import Expectation
from uniarena.values.q import QNetwork


class QBackprop:
    """What `DQN.loss` computes, for one number per action.

    Args:
        passes: of the whole network.
        keys: the way to the one leaf of the observation that it takes.
    """

    def __init__(self, passes: Backprop, keys: Keys) -> None:
        self._passes, self._keys = passes, keys

    @property
    def able(self) -> bool:
        """Whether nobody watches the graph that there would be."""
        return not self._passes.watched

    @torch.no_grad()
    def loss(
        self, inputs: Tree, action: Tensor, target: Tensor, weight: Tensor | None, td_clip: float | None
    ) -> tuple[Derived, Metrics]:
        """The loss of rows `[N]` and its metrics.

        Args:
            inputs: normalised observations.
            action, weight: `[N]`.
            target: `[N, 1]`.
            td_clip: errors beyond it count linearly.
        """
        x = leaf_at(inputs, self._keys)
        q = self._passes.forward(x if x.dtype is torch.float32 else x.float())
        index = action.long().unsqueeze(1)
        out = q.gather(1, index)
        loss = td_loss(out, target, td_clip)
        rows = q.shape[0]
        share = torch.full_like(target, 1.0 / rows) if weight is None else (weight / rows).unsqueeze(1)
        total = loss.mean() if weight is None else loss.squeeze(1).mul(weight).mean()

        def backward() -> None:
            step = share * td_gradient(out, target, td_clip)
            self._passes.backward(torch.zeros_like(q).scatter_(1, index, step))

        surprise = (target - out).abs_().squeeze(1)
        return Derived(total, backward), {"q": out.mean(), "target": target.mean(), "surprise": surprise}


def q_backprop(network: QNetwork) -> QBackprop | None:
    """The hand-written loss of a Q-network; None where it is more than an MLP that gives one number per action."""
    encoder, streams = network.encoder, network.streams
    plain = isinstance(encoder, Encoder) and encoder.identity and streams.value is None
    if not (
        plain and network.embedding is None and network.memory is None and type(network.head) is Expectation
    ):
        return None
    passes = backprop_of(torch.nn.Sequential(network.torso, streams.advantage))
    return None if passes is None else QBackprop(passes, encoder.keys[0])  # type: ignore[arg-type,index]
