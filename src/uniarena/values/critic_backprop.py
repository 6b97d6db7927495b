"""The losses of plain critics, and of a policy that they judge, with their gradients, without an autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from uniarena.batch import Tree
from uniarena.nets.backprop import Backprop, EnsembleBackprop, backprop_of, ensemble_backprop_of
from uniarena.nets.leaves import Keys, leaf_at
from uniarena.ops.actor_critic import Reduction, critic_loss, reduce_members, reduction_gradient, soft_value
from uniarena.ops.statistics import Metrics
from uniarena.ops.td import td_gradient
from uniarena.optim import Derived
from uniarena.policies.distributions import Distribution
from uniarena.policies.network import TowerNetwork
from uniarena.values.actor_q_model import ActorQModel
from uniarena.values.ensemble import QEnsemble


class CriticBackprop:
    """What `critic_loss` makes of Q, and its gradients, for members that give one number.

    Args:
        q: the critics.
        passes: of their body.
        keys: the way to the one leaf of the observation that they take.

    Attributes:
        passes: as given.
    """

    def __init__(self, q: QEnsemble, passes: EnsembleBackprop, keys: Keys) -> None:
        self._watched = q, q.body
        self.passes, self._keys = passes, keys

    @property
    def able(self) -> bool:
        """Whether nobody watches the graph that there would be."""
        return not (hooked(self._watched) or self.passes.watched)

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
        q = self.passes.forward(torch.cat([flat(inputs, self._keys), action], dim=-1)).squeeze(-1)
        loss, surprise = critic_loss(q, target, weight, td_clip)

        def backward() -> None:
            rows = q.shape[1]
            step = td_gradient(q, target, td_clip)
            self.passes.backward(
                step.div_(rows).unsqueeze(-1) if weight is None else (step * (weight / rows)).unsqueeze(-1)
            )

        return Derived(loss, backward), {"q": q.mean(), "target": target.mean(), "surprise": surprise}


Draw = Callable[[Distribution, Tree], tuple[Tensor, Tensor]]
"""(distribution, inputs) → an action for each row, scaled `[N, D]`, and its log-prob `[N]`."""


class PolicyBackprop:
    """The loss of a policy that its critics judge. Only the drawing of actions, a few small operations, has a graph.

    Args:
        model: policy and critics.
        policy, critics: passes of their networks.
        keys: the way to the one leaf of the observation that both take.
    """

    def __init__(self, model: ActorQModel, policy: Backprop, critics: CriticBackprop, keys: Keys) -> None:
        self._head, self._watched = (
            model.policy.head,
            (model.policy.network, *model.policy.network.children()),
        )
        self._policy, self._critics, self._keys = policy, critics, keys

    @property
    def able(self) -> bool:
        """Whether nobody watches the graph that there would be."""
        return self._critics.able and not (hooked(self._watched) or self._policy.watched)

    def loss(self, inputs: Tree, draw: Draw, alpha: Tensor, reduction: Reduction) -> tuple[Derived, Tensor]:
        """−V of the policy's own actions, the mean over rows `[N]`; and their log-probs.

        Args:
            inputs: normalised observations.
            draw: how an action is drawn.
            alpha: the temperature.
            reduction: of the critics.
        """
        x = flat(inputs, self._keys)
        params = self._policy.forward(x).requires_grad_()
        with torch.enable_grad():
            action, log_prob = draw(self._head.dist(params), inputs)
        critics = self._critics.passes
        q = critics.forward(torch.cat([x, action.detach()], dim=-1)).squeeze(-1)
        value = soft_value(reduce_members(q, reduction), log_prob.detach(), alpha)

        def backward() -> None:
            rows = q.shape[1]
            to_q = reduction_gradient(q, reduction).div_(-rows).unsqueeze(-1)
            to_action = critics.input_gradient(to_q, x.shape[1])
            torch.autograd.backward((action, log_prob), (to_action, (alpha / rows).expand(rows)))
            assert params.grad is not None
            self._policy.backward(params.grad)

        return Derived(-value.mean(), backward), log_prob.detach()


def policy_backprop(model: ActorQModel) -> PolicyBackprop | None:
    """The hand-written loss of a policy; None where it or the critics are more than plain MLPs of one observation."""
    network, critics = model.policy.network, critic_backprop(model.q)
    if critics is None or not isinstance(network, TowerNetwork) or not network.encoder.identity:
        return None
    if network.actor.with_latent or network.encoder.keys != model.q.encoder.keys:  # type: ignore[union-attr]
        return None
    passes = backprop_of(nn.Sequential(network.actor.torso, network.actor.output))
    return None if passes is None else PolicyBackprop(model, passes, critics, network.encoder.keys[0])


def hooked(modules: Iterable[nn.Module]) -> bool:
    """Whether a call of one of these modules would call somebody else too."""
    return any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in modules)


def flat(inputs: Tree, keys: Keys) -> Tensor:
    """The one leaf, float32."""
    x: Tensor = leaf_at(inputs, keys)
    return x if x.dtype is torch.float32 else x.float()


def critic_backprop(q: QEnsemble) -> CriticBackprop | None:
    """The hand-written loss of critics; None where they are more than plain MLPs that give one number."""
    encoder = q.encoder
    if encoder is None or not encoder.identity or not q.single:
        return None
    passes = ensemble_backprop_of(q.body)
    return None if passes is None else CriticBackprop(q, passes, encoder.keys[0])
