"""The loss of a plain Q-network with its gradients, without an autograd graph."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from uniarena.batch import Batch, Tree
from uniarena.nets.array_backprop import ArrayBackprop, array_backprop_of
from uniarena.nets.encoders import Encoder
from uniarena.nets.leaves import Keys, leaf_at
from uniarena.ops.actor_critic import clip_target
from uniarena.ops.statistics import Metrics
from uniarena.ops.td import td_target
from uniarena.optim import Derived
from uniarena.values.distributional import Expectation
from uniarena.values.past_q import PastQ
from uniarena.values.q import QNetwork
from uniarena.values.q_model import FastQ

HALF = np.float32(0.5)


class QBackprop:
    """What `DQN.loss` computes, for one number per action.

    Args:
        passes: of the whole network.
        keys: the way to the one leaf of the observation that it takes.
    """

    def __init__(self, passes: ArrayBackprop, keys: Keys) -> None:
        self._passes, self._keys = passes, keys
        self._at: np.ndarray | None = None

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
        wanted = target.numpy().reshape(-1)
        table = np.empty((4, len(wanted)), np.float32)
        size, loss, out, aim = table
        with np.errstate(all="ignore"):  # `Minimize` looks at the result
            q = self._passes.forward_arrays(x if x.dtype is torch.float32 else x.float())
            rows, width = q.shape
            at = self._starts(rows, width) + action.numpy()
            q.reshape(-1).take(at, None, out)
            aim[:] = wanted
            step = error = out - wanted
            np.abs(error, size)
            if td_clip is not None:
                step = np.minimum(np.maximum(error, np.float32(-td_clip)), np.float32(td_clip))
            # ½·e² within the bound c, and c·(|e| − ½·c) beyond it, are both s·(e − ½·s) of the bounded error s
            np.multiply(step, error - HALF * step, loss)
            if weight is not None:
                shares = weight.numpy()
                step = step * shares
                np.multiply(loss, shares, loss)
            means = np.add.reduce(table, 1) / np.float32(rows)

        surprise, total, mean, expected = torch.from_numpy(means).unbind()
        own = {"q": mean, "target": expected, "surprise": torch.from_numpy(size), "td_error": surprise}
        return Derived(total, partial(self._backward, at, step)), own

    def _backward(self, at: np.ndarray, step: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            gradient = self._passes.gradient
            gradient.fill(0.0)
            gradient.reshape(-1)[at] = step / np.float32(len(step))
            self._passes.backward_arrays()

    def _starts(self, rows: int, width: int) -> np.ndarray:
        """`[rows]` where each row of a table begins."""
        if self._at is None or len(self._at) != rows:
            self._at = np.arange(0, rows * width, width)
        return self._at


def plain_target(fast: FastQ | PastQ, batch: Batch, bounds: tuple[float, float] | None) -> Tensor:
    """r + d·max Q(s', ·) as `[N, 1]`, of networks that give one number per action; see `DQN.targets`.

    Args:
        fast: the target network.
        bounds: what the return can be at all; everything beyond is cut to them.
    """
    obs, reward, discount = batch.next_obs, batch.reward, batch.discount
    run = None
    if isinstance(fast, FastQ) and isinstance(obs, Tensor) and obs.dtype is torch.float32 and obs.dim() == 2:
        run = fast.on_arrays(obs.shape[0])
    if run is None or reward.device.type != "cpu":
        with torch.no_grad():
            return clip_target(td_target(reward, discount, fast(obs).amax(-1)), bounds).unsqueeze(1)
    with np.errstate(all="ignore"):  # `Minimize` looks at what becomes of it
        target = reward.numpy() + discount.numpy() * np.maximum.reduce(run(obs.numpy()), 1)
        if bounds is not None:
            target = np.clip(target, *bounds, dtype=np.float32)
    return torch.from_numpy(target.reshape(-1, 1))


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
