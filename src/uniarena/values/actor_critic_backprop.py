"""The loss of a plain actor-critic on one minibatch with its gradients, without an autograd graph.

For two MLPs on one flat observation and a categorical or Gaussian head on the CPU. Everything else has autograd, and so
has a model that somebody looks into: a hook on a part or a parameter, a frozen parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from uniarena.batch import Batch, Tree
from uniarena.envs.spaces import MASK
from uniarena.nets.array_backprop import ArrayBackprop, array_backprop_of
from uniarena.nets.encoders import Encoder
from uniarena.nets.inference import hooks_of
from uniarena.nets.leaves import Keys, leaf_at
from uniarena.nets.return_scale import ScaledLinear
from uniarena.nets.tower import Tower
from uniarena.ops.policy_gradient_arrays import policy_rows, value_rows
from uniarena.ops.statistics import Metrics
from uniarena.optim import Derived
from uniarena.policies.array_heads import ArrayHead, array_head_of
from uniarena.policies.network import TowerNetwork
from uniarena.policies.policy import Policy
from uniarena.values.model import Model
from uniarena.values.value import ValueNet

NAMES = ("loss", "policy_loss", "entropy", "clip_fraction", "clamped_fraction", "kl", "value_loss")


@dataclass(frozen=True)
class Weights:
    """What of the loss moves with the progress of a run; see `PolicyGradientConfig`."""

    clip_range: float
    ent_coef: float
    kl_coef: float


class ActorCriticBackprop:
    """What `PolicyLoss` computes.

    Args:
        model: whose loss it is.
        policy, value: passes of the whole networks.
        head: of the policy.
        keys: the way to the one leaf of the observation that both take.
        scale: the value's last layer where it has units of return.
    """

    def __init__(
        self,
        model: Model,
        policy: ArrayBackprop,
        value: ArrayBackprop,
        head: ArrayHead,
        keys: Keys,
        scale: ScaledLinear | None,
    ) -> None:
        self._model, self._policy, self._value, self._head = model, policy, value, head
        self._keys, self._scale = keys, scale
        # what a hook on the normaliser sees is the same either way
        self._hooks = hooks_of(model, leave_out=model.normalizer)

    def takes(self, batch: Batch) -> bool:
        """Whether it can stand for the usual loss on this minibatch."""
        if "state" in batch or "valid" in batch or not torch.is_grad_enabled() or any(self._hooks):
            return False
        if "forward" in vars(self._model) or (isinstance(batch.obs, dict) and MASK in batch.obs):
            return False
        return self._policy.able and self._value.able and self._head.able

    def loss(self, batch: Batch, old: Tensor, cfg: Any, weights: Weights) -> tuple[Derived, Metrics]:
        """The loss of rows `[N]` and its metrics.

        Args:
            batch: obs, action, advantage, target; value where values are clipped.
            old: log-probs of the actions under the behaviour policy.
            cfg: a `PolicyGradientConfig`.
        """
        with np.errstate(all="ignore"):  # `Minimize` looks at the result
            return self._loss(batch, old, cfg, weights)

    def _loss(self, batch: Batch, old: Tensor, cfg: Any, weights: Weights) -> tuple[Derived, Metrics]:
        x = self._inputs(batch.obs)
        self._policy.forward_arrays(x)
        log_prob, entropy = self._head.log_prob(self._policy.out, batch.action)
        arrays = (log_prob, old.numpy(), batch.advantage.numpy())
        rows = policy_rows(*arrays, cfg.clip, weights.clip_range, cfg.dual_clip, weights.kl_coef)
        raw = self._value.forward_arrays(x).reshape(-1)
        own_loss, slope = self._value_part(raw, batch, cfg)
        total = rows.loss + cfg.vf_coef * own_loss - weights.ent_coef * entropy + weights.kl_coef * rows.kl

        @np.errstate(all="ignore")
        def backward() -> None:
            self._head.backward(rows.gradient, weights.ent_coef, self._policy.gradient)
            self._policy.backward_arrays()
            np.multiply(slope, cfg.vf_coef, self._value.gradient.reshape(-1))
            self._value.backward_arrays()

        figures = (total, rows.loss, entropy, rows.clip_fraction, rows.clamped_fraction, rows.kl, own_loss)
        metrics = dict(zip(NAMES, torch.tensor(figures, dtype=torch.float32).unbind(), strict=True))
        return Derived(metrics.pop("loss"), backward), metrics

    def _value_part(self, raw: np.ndarray, batch: Batch, cfg: Any) -> tuple[float, np.ndarray]:
        """The value's loss in units of the deviation of returns, and its gradient on the network's own output."""
        bound, target = cfg.value_clip, batch.target.numpy()
        old: Any = None if bound is None else batch.value.numpy()
        if self._scale is None:
            return value_rows(raw, target, old, bound, cfg.value_loss)
        mean, std = float(self._scale.mean), float(self._scale.std)
        target = (target - np.float32(mean)) / np.float32(std)
        if bound is not None:
            old, bound = (old - np.float32(mean)) / np.float32(std), bound / std
        return value_rows(raw, target, old, bound, cfg.value_loss)

    def _inputs(self, obs: Tree) -> Tensor:
        normalizer = self._model.normalizer
        if normalizer is not None:
            with torch.no_grad():
                obs = normalizer(obs)
        x: Tensor = leaf_at(obs, self._keys)
        return x if x.dtype is torch.float32 else x.float()


def actor_critic_backprop(model: Any) -> ActorCriticBackprop | None:
    """The hand-written loss of a model; None where it is more than two MLPs on one flat observation."""
    if type(model) is not Model or type(model.policy) is not Policy:
        return None
    network: Any = model.policy.network
    head, net = array_head_of(model.policy.head), model.value_net
    if head is None or type(network) is not TowerNetwork or not _plain(network.encoder):
        return None
    critic: Any = network.critic
    if critic is None:
        if type(net) is not ValueNet or not net.squeeze or type(net.body) is not nn.Sequential:
            return None
        encoder, critic = net.body
        if not _plain(encoder) or encoder.keys != network.encoder.keys:
            return None
    actor, value, scale = _passes(network.actor), _passes(critic), critic.output
    if actor is None or value is None:
        return None
    scale = scale if type(scale) is ScaledLinear else None
    return ActorCriticBackprop(model, actor, value, head, network.encoder.keys[0], scale)


def _plain(encoder: Any) -> bool:
    return type(encoder) is Encoder and encoder.identity


def _passes(tower: Any) -> ArrayBackprop | None:
    """The passes of a tower; a last layer in units of return without these units."""
    if type(tower) is not Tower or tower.with_latent:
        return None
    output: Any = tower.output
    if type(output) is ScaledLinear:
        inner = nn.Linear(output.weight.shape[1], output.weight.shape[0], device="meta")
        inner.weight, inner.bias = output.weight, output.bias
        output = inner
    return array_backprop_of(nn.Sequential(tower.torso, output))
