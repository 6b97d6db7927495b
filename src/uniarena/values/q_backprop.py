"""The loss of a plain Q-network with its gradients, without an autograd graph."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from uniarena.batch import Tree
from uniarena.nets.array_backprop import ArrayBackprop, array_backprop_of
from uniarena.nets.encoders import Encoder
from uniarena.nets.leaves import Keys, leaf_at
from uniarena.ops.statistics import Metrics
from uniarena.optim import Derived
from uniarena.values.distributional import Expectation
from uniarena.values.q import QNetwork


class QBackprop:
    """What `DQN.loss` computes, for one number per action.

    Args:
        passes: of the whole network.
        keys: the way to the one leaf of the observation that it takes.
    """

    def __init__(self, passes: ArrayBackprop, keys: Keys) -> None:
        self._passes, self._keys = passes, keys

    @property
    def able(self) -> bool:
        """Whether nobody watches the graph that there would be, and the network is on the CPU."""
        return self._passes.able

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
        q = self._passes.forward_arrays(x if x.dtype is torch.float32 else x.float())
        rows, width = q.shape
        at = np.arange(0, rows * width, width) + action.numpy()
        wanted, out = target.numpy().reshape(-1), q.reshape(-1).take(at)
        with np.errstate(all="ignore"):  # `Minimize` looks at the result
            error = out - wanted
            size = np.abs(error)
            step = error
            loss = 0.5 * error * error
            if td_clip is not None:
                step = np.minimum(np.maximum(error, -td_clip), td_clip)
                loss = np.where(size < td_clip, loss, td_clip * (size - 0.5 * td_clip))
            if weight is not None:
                shares = weight.numpy()
                step, loss = step * shares, loss * shares
            sums = [np.add.reduce(each) / rows for each in (loss, out, wanted)]

        @np.errstate(all="ignore")
        def backward() -> None:
            gradient = self._passes.gradient
            gradient.fill(0.0)
            gradient.reshape(-1)[at] = step / np.float32(rows)
            self._passes.backward_arrays()

        total, mean, aim = torch.tensor(sums, dtype=torch.float32).unbind()
        return Derived(total, backward), {"q": mean, "target": aim, "surprise": torch.from_numpy(size)}


def q_backprop(network: QNetwork) -> QBackprop | None:
    """The hand-written loss of a Q-network; None where it is more than an MLP that gives one number per action."""
    encoder, streams = network.encoder, network.streams
    plain = isinstance(encoder, Encoder) and encoder.identity and streams.value is None
    if not (
        plain and network.embedding is None and network.memory is None and type(network.head) is Expectation
    ):
        return None
    passes = array_backprop_of(torch.nn.Sequential(network.torso, streams.advantage))
    return None if passes is None else QBackprop(passes, encoder.keys[0])  # type: ignore[arg-type,index]
