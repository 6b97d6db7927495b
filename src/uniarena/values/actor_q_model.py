"""Policy and ensemble of Q-functions of one agent, for off-policy actor-critic learners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import Space, spaces
from torch import Tensor, nn

from uniarena.batch import Tree
from uniarena.config import ConfigError
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.nets.precision import widened
from uniarena.policies.action_scale import ActionScale
from uniarena.policies.deterministic import DeterministicHead
from uniarena.policies.distributions import Distribution
from uniarena.policies.heads import build_head
from uniarena.policies.network import TowerNetwork, UserNetwork
from uniarena.policies.policy import WHERE, Policy, build_user_network
from uniarena.seeding import Streams, preserved_globals, seed_globals
from uniarena.values.actor_parts import actor_tower, completed, critics_for, of_every_action, parse_actor
from uniarena.values.ensemble import QEnsemble
from uniarena.values.model import Output, check_mask
from uniarena.values.value import ValueNet


class ActorQModel(nn.Module):
    """A policy, and Q of E members. Each looks at the observation with an encoder of its own.

    Args:
        policy: observations → distribution.
        q: the critics.
        scale: of Box actions; None: the actions are discrete, and the critics give all of them.
        v: the value of observations alone, of normalised ones, where a learner has one.

    Attributes:
        policy, q, scale, v: as given.
    """

    has_value = False

    def __init__(
        self, policy: Policy, q: QEnsemble, scale: ActionScale | None, v: ValueNet | None = None
    ) -> None:
        super().__init__()
        self.policy, self.q, self.scale, self.v = policy, q, scale, v

    @property
    def normalizer(self) -> ObservationNormalizer | None:
        """What observations pass first; part of the policy."""
        return self.policy.normalizer

    def forward(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> Output:
        """The distribution of the action; there is no value of states."""
        dist, state = self.policy(obs, state, is_first)
        return Output(dist, None, state)

    def dist(self, inputs: Tree, obs: Tree) -> Distribution:
        """The distribution from normalised observations; `obs`, not normalised, holds the action mask."""
        params, _ = self.policy.network.params(inputs)
        return self.policy.head.dist(widened(params), self.policy.mask(obs))

    def value(self, obs: Tree, action: Tree | None = None) -> Tensor:
        """Q of raw observations and of actions as the policy gives them: `[E, N]`, or `[E, N, outputs]`."""
        row = None if action is None or self.scale is None else self.scale(action)
        return self.q(self.policy.inputs(obs), row)

    def initial_state(self, count: int) -> Tree | None:
        """None: there is no memory."""
        return None


def build_actor_q(
    observation_space: Space[Any],
    policy_space: Space[Any],
    policy_cfg: Mapping[str, Any],
    value_cfg: Mapping[str, Any] | None,
    normalizer: ObservationNormalizer | None,
    streams: Streams,
    *,
    cfg: Any,
) -> ActorQModel:
    """The networks of a stochastic actor-critic, initialised from the streams `init/policy` and `init/value`.

    Box actions are squashed Gaussians (log-stds from the network) unless `agent.policy.distribution` says
    otherwise; Discrete ones are categorical, with critics that give all actions at once.

    Args:
        observation_space, policy_space, policy_cfg, value_cfg, normalizer, streams: as in `build_model`.
        cfg: the learner's config; its property `critics` is an `EnsembleSpec`.

    Raises:
        ConfigError: an unsupported action space, one without the bounds that are needed, a policy with
            memory, or a module that does not fit.
    """
    discrete = isinstance(policy_space, spaces.Discrete)
    scale = None if discrete else ActionScale(policy_space)
    wanted = policy_cfg.get("distribution") or "auto"
    squashed = not discrete and wanted in ("auto", "squashed_gaussian")
    if scale is not None and wanted != "gaussian":
        scale.require_bounds("a squashed Gaussian policy" if squashed else f"distribution: {wanted}")
    section = completed(policy_cfg, {"distribution": "squashed_gaussian"} if squashed else {})
    parsed = parse_actor(section, policy_space)
    with preserved_globals():
        seed_globals(streams.seed_for("init/policy"))
        network: TowerNetwork | UserNetwork
        if parsed.built_in:
            options = parsed.distribution, parsed.log_std_init
            head = build_head(policy_space, *options, state_std=True)
            network = actor_tower(observation_space, parsed, head)
        else:
            network, head = build_user_network(observation_space, policy_space, section, parsed)
        policy = Policy(network, head, normalizer)
        seed_globals(streams.seed_for("init/value"))
        spec = cfg.critics
        if isinstance(policy_space, spaces.Discrete):
            spec = of_every_action(spec, policy_space)
        q = critics_for(observation_space, policy_space, section, value_cfg, spec, scale)
    return checked(ActorQModel(policy, q, scale), observation_space, policy_space)


def build_deterministic_actor_q(
    observation_space: Space[Any],
    policy_space: Space[Any],
    policy_cfg: Mapping[str, Any],
    value_cfg: Mapping[str, Any] | None,
    normalizer: ObservationNormalizer | None,
    streams: Streams,
    *,
    cfg: Any,
) -> ActorQModel:
    """The same for deterministic policies: tanh into the bounds. Of a user's module that gives means and log-stds,
    the means count.
    """
    scale = ActionScale(policy_space)
    scale.require_bounds("a deterministic policy")
    if policy_cfg.get("distribution") not in (None, "auto", "squashed_gaussian"):
        raise ConfigError(
            f"this learner's policy is deterministic; got {policy_cfg['distribution']!r}.",
            path=f"{WHERE}.distribution",
            hint="leave it out: actions are squashed into their bounds by tanh.",
        )
    section = completed(policy_cfg, {"distribution": "squashed_gaussian"})
    parsed = parse_actor(section, policy_space)
    with preserved_globals():
        seed_globals(streams.seed_for("init/policy"))
        network: TowerNetwork | UserNetwork
        if parsed.built_in:
            head = DeterministicHead(scale, scale.dims)
            network = actor_tower(observation_space, parsed, head)
        else:
            network, _ = build_user_network(observation_space, policy_space, section, parsed)
            head = DeterministicHead(scale, network.param_dim)
        policy = Policy(network, head, normalizer)
        seed_globals(streams.seed_for("init/value"))
        q = critics_for(observation_space, policy_space, section, value_cfg, cfg.critics, scale)
    return checked(ActorQModel(policy, q, scale), observation_space, policy_space)


def checked(model: ActorQModel, observation_space: Space[Any], policy_space: Space[Any]) -> ActorQModel:
    """Networks in float32 whatever torch's default dtype is; policies with memory and odd masks are refused."""
    check_mask(observation_space, policy_space, model.policy.head)
    refuse_memory(model.policy, "use a module without initial_state, or ppo.")
    for part in (model.policy.network, model.policy.head, model.q, model.v):
        if part is not None:
            part.float()
    return model


def refuse_memory(policy: Policy, hint: str) -> None:
    """Refuse a policy with memory.

    Raises:
        ConfigError: it has one; `hint` is the way out.
    """
    if policy.initial_state(1) is not None:
        raise ConfigError(
            "this learner samples single rows, and the policy has memory.",
            path=f"{WHERE}.network",
            hint=hint,
        )
