"""Policies that choose by Q among what the data's behaviour would do: of discrete actions, and of sampled ones.

Batch-constrained Q-learning: Fujimoto et al. 2018 (arXiv:1812.02900) for Boxes, 2019 (arXiv:1910.01708) for Discrete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from uniarena.batch import Tree, tree_map
from uniarena.config import ConfigError
from uniarena.envs.spaces import MASK, describe
from uniarena.nets.encoders import Encoder
from uniarena.nets.inference import eval_mode
from uniarena.nets.mlp import MLP
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.nets.tower import hidden_sizes, network_encoder
from uniarena.ops.actor_critic import reduce_members
from uniarena.ops.offline import likely
from uniarena.policies.action_scale import ActionScale
from uniarena.policies.deterministic import DeterministicHead
from uniarena.policies.frozen import FrozenPolicy
from uniarena.policies.heads import Head, device_of
from uniarena.policies.noise import Generator, normal
from uniarena.policies.policy import WHERE, Policy
from uniarena.seeding import Streams, preserved_globals, seed_globals
from uniarena.values.actor_parts import completed, critics_for, parse_actor
from uniarena.values.actor_q_model import ActorQModel, checked
from uniarena.values.cloning import build_weighted_model
from uniarena.values.ensemble import QEnsemble
from uniarena.values.q_model import GreedyHead

LATENT_BOUND = 0.5
"""Latents of actions are cut to it, as in the authors' code, so that none is far from the data."""
LARGEST_ROW = 1.0 - 1e-6
"""Before atanh."""


class ConstrainedNetwork(nn.Module):
    """Discrete actions: Q, where the behaviour's model G finds an action likely enough.

    Args:
        network, head: of G.
        q: critics that give all actions; they belong to the model.
        threshold: of G relative to its largest probability.
        reduction: of the critics.

    Attributes:
        behaviour, head: as given.
    """

    gives_value = False

    def __init__(self, network: Any, head: Head, q: QEnsemble, threshold: float, reduction: Any) -> None:
        super().__init__()
        self.behaviour, self.head = network, head
        self.threshold, self.reduction, self._q = threshold, reduction, (q,)

    def log_p(self, inputs: Tree) -> Tensor:
        """log G `[N, A]` of normalised observations; illegal actions have almost none."""
        params, _ = self.behaviour.params(inputs)
        mask = inputs.get(MASK) if isinstance(inputs, dict) else None
        found: Tensor = self.head.dist(params, mask).log_p  # type: ignore[attr-defined]
        return found

    def params(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """Q `[N, A]`, with the dtype's minimum where an action is unlikely."""
        q = reduce_members(self._q[0](obs), self.reduction)
        allowed = likely(self.log_p(obs), self.threshold)
        return q.masked_fill(~allowed, torch.finfo(q.dtype).min), None

    def initial_state(self, count: int) -> None:
        """No memory."""
        return None


class ActionModel(nn.Module):
    """A conditional variational auto-encoder of scaled actions given features of observations.

    Kingma & Welling 2013 (arXiv:1312.6114); widths as in the authors' code of BCQ.

    Args:
        features, dims: widths F of the features and D of an action; the latent has 2·D numbers.
        hidden: widths of the hidden layers.
    """

    def __init__(self, features: int, dims: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.latent = 2 * dims
        self.encoder = MLP(features + dims, hidden, "relu", 2 * self.latent)
        self.decoder = MLP(features + self.latent, hidden, "relu", dims)

    def forward(self, features: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`[N, F]`, `[N, D]`, `[N, 2·D]` → the action decoded from a sample of its latent; mean and log-std of that."""
        mean, log_std = self.encoder(torch.cat([features, action], dim=-1)).chunk(2, dim=-1)
        log_std = log_std.clamp(-4.0, 15.0)
        return self.decode(features, mean + log_std.exp() * noise), mean, log_std

    def decode(self, features: Tensor, latent: Tensor) -> Tensor:
        """`[N, D]` within [−1, 1]."""
        decoded: Tensor = self.decoder(torch.cat([features, latent], dim=-1))
        return decoded.tanh()


class CandidateNetwork(nn.Module):
    """Boxes: K actions decoded from latents, each moved a little by a network; the one with the largest Q is taken.

    Args:
        encoder: of observations.
        model: of the behaviour's actions.
        perturbation: features and action → how to move it.
        q: critics; they belong to the model, and the first one chooses.
        reach: the furthest that an action is moved, in half widths.
        count: K.

    Attributes:
        encoder, model, perturbation: as given.
        latents: `[K, 2·D]`, those that deterministic evaluation takes.
    """

    gives_value = False
    latents: Tensor

    def __init__(
        self, encoder: Encoder, model: ActionModel, perturbation: MLP, q: QEnsemble, reach: float, count: int
    ) -> None:
        super().__init__()
        self.encoder, self.model, self.perturbation = encoder, model, perturbation
        self.reach, self._q = reach, (q,)
        self.register_buffer("latents", self.bounded(torch.randn(count, model.latent)))

    @staticmethod
    def bounded(latent: Tensor) -> Tensor:
        """Latents cut to where the data is."""
        return latent.clamp(-LATENT_BOUND, LATENT_BOUND)

    def candidates(self, inputs: Tree, latent: Tensor, perturbation: Any = None) -> tuple[Tree, Tensor]:
        """`[N, K, 2·D]` latents → the observations of every candidate, `[N·K, …]`, and their actions `[N·K, D]`."""
        count = latent.shape[1]
        inputs = tree_map(lambda leaf: leaf.repeat_interleave(count, dim=0), inputs)
        features = self.encoder(inputs)
        action = self.model.decode(features, latent.flatten(0, 1))
        return inputs, self.moved(features, action, perturbation)

    def moved(self, features: Tensor, action: Tensor, perturbation: Any = None) -> Tensor:
        """Scaled actions `[N, D]`, moved and cut to the bounds. Fujimoto et al. 2018 (arXiv:1812.02900), eq. 12."""
        step = (perturbation or self.perturbation)(torch.cat([features, action], dim=-1))
        return (action + self.reach * step.tanh()).clamp(-1.0, 1.0)

    def chosen(self, inputs: Tree, latent: Tensor) -> Tensor:
        """`[N, D]`: the candidate with the largest Q."""
        wide, action = self.candidates(inputs, latent)
        q = self._q[0](wide, action)[0].unflatten(0, latent.shape[:2])
        action = action.unflatten(0, latent.shape[:2])
        index = q.argmax(1)[:, None, None].expand(-1, 1, action.shape[-1])
        return action.gather(1, index).squeeze(1)

    def params(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """What `DeterministicHead` takes: the chosen one of the fixed latents, before the squash."""
        rows = len(self.encoder(obs))
        return self.row(self.chosen(obs, self.latents.expand(rows, -1, -1))), None

    @staticmethod
    def row(action: Tensor) -> Tensor:
        """Scaled actions before the squash."""
        return action.clamp(-LARGEST_ROW, LARGEST_ROW).atanh()

    def initial_state(self, count: int) -> None:
        """No memory."""
        return None


class CandidatePolicy(Policy):
    """The policy of a `CandidateNetwork`."""

    def frozen(self) -> FrozenCandidates:
        return FrozenCandidates(self.network, self.head, self.normalizer)


class FrozenCandidates(FrozenPolicy):
    """Samples have latents of their own; `mode` takes the fixed ones."""

    def noise(self, steps: int, columns: int, generator: Generator) -> Tensor:
        latents: Tensor = self.network.latents  # type: ignore[assignment]
        return normal((steps, columns, *latents.shape), generator, device_of(generator))

    def sample(
        self,
        obs: Tree,
        state: Tree | None = None,
        is_first: Tensor | None = None,
        noise: Tree | None = None,
        generator: Generator = None,
    ) -> tuple[Tree, None]:
        network: Any = self.network
        inputs = obs if self.normalizer is None else self.normalizer(obs)
        with eval_mode(network):
            if noise is None:
                noise = self.noise(1, len(network.encoder(inputs)), generator)[0]
            params = network.row(network.chosen(inputs, network.bounded(noise)))
        return self.head.mode(params), None


def build_constrained_q(
    observation_space: Space[Any],
    policy_space: Space[Any],
    policy_cfg: Mapping[str, Any],
    value_cfg: Mapping[str, Any] | None,
    normalizer: ObservationNormalizer | None,
    streams: Streams,
    *,
    cfg: Any,
) -> ActorQModel:
    """Critics of discrete actions, and a policy that is greedy among those which a model of the behaviour finds likely.

    Args:
        cfg: the learner's config, with `critics`, `threshold` and `policy_reduce`.

    Raises:
        ConfigError: actions that are not Discrete, or what `build_weighted_model` refuses.
    """
    if not isinstance(policy_space, spaces.Discrete):
        raise ConfigError(
            f"this learner compares actions one by one, so they must be Discrete; the environment has "
            f"{describe(policy_space)}.",
            path="learner.type",
            hint="use bcq for Box actions.",
        )
    sections = policy_space, policy_cfg, value_cfg, normalizer, streams
    model = build_weighted_model(observation_space, *sections, cfg=cfg)
    behaviour = model.policy
    rest = behaviour.head, model.q, cfg.threshold, cfg.policy_reduce
    network: Any = ConstrainedNetwork(behaviour.network, *rest)
    return ActorQModel(Policy(network, GreedyHead(policy_space), normalizer), model.q, None)


def build_candidates(
    observation_space: Space[Any],
    policy_space: Space[Any],
    policy_cfg: Mapping[str, Any],
    value_cfg: Mapping[str, Any] | None,
    normalizer: ObservationNormalizer | None,
    streams: Streams,
    *,
    cfg: Any,
) -> ActorQModel:
    """Critics, a model of the behaviour's actions, and a network that moves them. `agent.policy` is of the latter.

    Args:
        cfg: the learner's config, with `critics`, `model_hidden_sizes`, `reach` and `candidates`.

    Raises:
        ConfigError: actions without bounds, or a module of the user's as the policy.
    """
    scale = ActionScale(policy_space)
    scale.require_bounds("batch-constrained Q-learning")
    section = completed(policy_cfg, {})
    parsed = parse_actor(section, policy_space)
    if not parsed.built_in or parsed.distribution != "auto":
        raise ConfigError(
            "of this learner's policy only encoder, hidden_sizes and activation can be chosen: its actions come from a "
            "model of the data.",
            path=f"{WHERE}.{'distribution' if parsed.built_in else 'network'}",
            hint="leave it out.",
        )
    with preserved_globals():
        seed_globals(streams.seed_for("init/policy"))
        encoder = network_encoder(observation_space, parsed, WHERE)
        width, hidden = encoder.out_dim, hidden_sizes(parsed, encoder)
        model = ActionModel(width, scale.dims, cfg.model_hidden_sizes)
        perturbation = MLP(width + scale.dims, hidden, parsed.activation, scale.dims)
        seed_globals(streams.seed_for("init/value"))
        q = critics_for(observation_space, policy_space, section, value_cfg, cfg.critics, scale)
        network: Any = CandidateNetwork(encoder, model, perturbation, q, cfg.reach, cfg.candidates)
    policy = CandidatePolicy(network, DeterministicHead(scale, scale.dims), normalizer)
    return checked(ActorQModel(policy, q, scale), observation_space, policy_space)
