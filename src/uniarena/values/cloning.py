"""Models whose policy is fitted to actions of data: a policy alone, or with critics and a value beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import Space, spaces

from uniarena.config import ConfigError
from uniarena.envs.spaces import describe
from uniarena.nets.leaves import leaves
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.policies.action_scale import ActionScale
from uniarena.policies.cloned import ScaledGaussianHead
from uniarena.policies.deterministic import DeterministicHead
from uniarena.policies.heads import Head, build_head
from uniarena.policies.policy import Policy, PolicyConfig, build_user_network
from uniarena.seeding import Streams, preserved_globals, seed_globals
from uniarena.values.actor_parts import (
    actor_tower,
    completed,
    critics_for,
    of_every_action,
    parse_actor,
    value_section,
)
from uniarena.values.actor_q_model import ActorQModel, checked, refuse_memory
from uniarena.values.model import Model, check_mask
from uniarena.values.value import build_value


def build_cloning_model(
    observation_space: Space[Any],
    policy_space: Space[Any],
    policy_cfg: Mapping[str, Any],
    value_cfg: Mapping[str, Any] | None,
    normalizer: ObservationNormalizer | None,
    streams: Streams,
    *,
    cfg: Any,
) -> Model:
    """A policy alone, initialised from the stream `init/policy`. `agent.value` has no meaning here.

    Args:
        cfg: the learner's config; where `cfg.deterministic`, Box actions come from a deterministic head.

    Raises:
        ConfigError: an unsupported action space, a policy with memory, or a module that does not fit.
    """
    policy = _policy(observation_space, policy_space, policy_cfg, normalizer, streams, cfg.deterministic)
    check_mask(observation_space, policy_space, policy.head)
    refuse_memory(policy, "use a module without initial_state.")
    policy.network.float()
    policy.head.float()
    return Model(policy)


def build_weighted_model(
    observation_space: Space[Any],
    policy_space: Space[Any],
    policy_cfg: Mapping[str, Any],
    value_cfg: Mapping[str, Any] | None,
    normalizer: ObservationNormalizer | None,
    streams: Streams,
    *,
    cfg: Any,
) -> ActorQModel:
    """A policy for weighted cloning, critics, and where `cfg.baseline` is `expectile` a value of observations.

    Args:
        cfg: the learner's config; its property `critics` is an `EnsembleSpec`.

    Raises:
        ConfigError: as above, or actions that are neither Boxes nor Discrete.
    """
    discrete = isinstance(policy_space, spaces.Discrete)
    scale = None if discrete else ActionScale(policy_space)
    policy = _policy(observation_space, policy_space, policy_cfg, normalizer, streams)
    section = completed(policy_cfg, {})
    with preserved_globals():
        seed_globals(streams.seed_for("init/value"))
        spec = cfg.critics
        if isinstance(policy_space, spaces.Discrete):
            spec = of_every_action(spec, policy_space)
        q, v = critics_for(observation_space, policy_space, section, value_cfg, spec, scale), None
        if cfg.baseline == "expectile":
            given, parsed = value_section(section, value_cfg)
            v = build_value(observation_space, given, parsed, {"act_dim": 0, "action_space": policy_space})
    return checked(ActorQModel(policy, q, scale, v), observation_space, policy_space)


def _policy(
    observation_space: Space[Any],
    policy_space: Space[Any],
    policy_cfg: Mapping[str, Any],
    normalizer: ObservationNormalizer | None,
    streams: Streams,
    deterministic: bool = False,
) -> Policy:
    section = completed(policy_cfg, {})
    parsed = parse_actor(section, policy_space)
    with preserved_globals():
        seed_globals(streams.seed_for("init/policy"))
        if not parsed.built_in:
            network, head = build_user_network(observation_space, policy_space, section, parsed)
            if deterministic:
                head = DeterministicHead(_bounded(policy_space), network.param_dim)
            return Policy(network, head, normalizer)
        head = _head(policy_space, parsed, deterministic)
        return Policy(actor_tower(observation_space, parsed, head), head, normalizer)


def _head(space: Space[Any], parsed: PolicyConfig, deterministic: bool) -> Head:
    if deterministic:
        if parsed.distribution != "auto":
            raise ConfigError(
                f"deterministic: true and distribution: {parsed.distribution} contradict each other.",
                path="learner.deterministic",
                hint="keep one of the two.",
            )
        scale = _bounded(space)
        return DeterministicHead(scale, scale.dims)
    boxes = all(isinstance(leaf, spaces.Box) for _, leaf in leaves(space))
    if boxes and parsed.distribution == "auto":
        return ScaledGaussianHead(ActionScale(space), parsed.log_std_init)
    return build_head(space, parsed.distribution, parsed.log_std_init, state_std=True)


def _bounded(space: Space[Any]) -> ActionScale:
    if not all(isinstance(leaf, spaces.Box) for _, leaf in leaves(space)):
        raise ConfigError(
            f"a deterministic policy is for continuous actions; the action space is {describe(space)}.",
            path="learner.deterministic",
            hint="leave it out: evaluation takes the likeliest action anyway.",
        )
    scale = ActionScale(space)
    scale.require_bounds("a deterministic policy")
    return scale
