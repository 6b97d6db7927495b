"""The parts that actor-critics from replay are built of: sections with the family's defaults, towers and critics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gymnasium import Space, spaces

from uniarena.config import ConfigError, Section
from uniarena.envs.spaces import describe
from uniarena.nets.initialization import POLICY_GAIN
from uniarena.nets.tower import NetworkConfig, Tower, hidden_sizes, network_encoder
from uniarena.policies.action_scale import ActionScale
from uniarena.policies.heads import GaussianHead, Head, JointHead
from uniarena.policies.network import TowerNetwork
from uniarena.policies.policy import WHERE, PolicyConfig, parse_policy
from uniarena.values.ensemble import EnsembleSpec, QEnsemble, build_critics
from uniarena.values.value import ValueConfig, parse_value

DEFAULTS: dict[str, Any] = {"hidden_sizes": (256, 256), "activation": "relu", "orthogonal": False}
"""Of built-in networks: Haarnoja et al. 2018 (arXiv:1812.05905), table 1; torch's own initialisation."""


def completed(section: Mapping[str, Any], more: Mapping[str, Any]) -> Section:
    """A policy section with the family's defaults; a user's module keeps its own arguments."""
    built_in = NetworkConfig(network=section.get("network", "mlp")).built_in
    completed = Section(section)
    for key, setting in {**(DEFAULTS if built_in else {}), **more}.items():
        if section.get(key) in (None, "auto"):
            completed.put(key, setting, None)
    return completed


def parse_actor(section: Section, policy_space: Space[Any]) -> PolicyConfig:
    """`agent.policy`, without what only on-policy learners can do.

    Raises:
        ConfigError: a shared encoder, or gSDE.
    """
    parsed = parse_policy(section, policy_space)
    for key, hint in (("share_encoder", "leave it out."), ("gsde", "choose an explorer in agent.explorer.")):
        if getattr(parsed, key) is True:
            raise ConfigError(
                f"{key} is not for off-policy learners: policy and critics have encoders of their own, and the "
                "policy's noise has to be drawn anew for every row.",
                path=f"{WHERE}.{key}",
                hint=hint,
            )
    return parsed


def actor_tower(observation_space: Space[Any], parsed: PolicyConfig, head: Head) -> TowerNetwork:
    """The built-in policy network for a head."""
    encoder = network_encoder(observation_space, parsed, WHERE)
    actor = Tower(encoder.out_dim, parsed, hidden_sizes(parsed, encoder), head.param_dim, POLICY_GAIN)
    offset = 0
    parts: list[Any] = list(head.heads) if isinstance(head, JointHead) else [head]
    for part in parts:
        if isinstance(part, GaussianHead):  # the log-std is the second half of its outputs
            actor.output.bias.data[offset + part.dims : offset + 2 * part.dims] += parsed.log_std_init
        offset += part.param_dim
    return TowerNetwork(encoder, actor)


def value_section(
    policy_section: Section, value_cfg: Mapping[str, Any] | None
) -> tuple[Section, ValueConfig]:
    """`agent.value` with the family's defaults, as written and parsed."""
    section = Section(value_cfg or {})
    if NetworkConfig(network=section.get("network", "mlp")).built_in:
        for key, setting in DEFAULTS.items():
            if section.get(key) is None and policy_section.get(key) is None:
                section.put(key, setting, None)
    return section, parse_value(section, policy_section)


def critics_for(
    observation_space: Space[Any],
    policy_space: Space[Any],
    policy_section: Section,
    value_cfg: Mapping[str, Any] | None,
    spec: EnsembleSpec,
    scale: ActionScale | None,
) -> QEnsemble:
    """The ensemble of critics that a learner asks for."""
    section, parsed = value_section(policy_section, value_cfg)
    dims = None if scale is None else scale.dims
    return build_critics(observation_space, section, parsed, spec, dims, policy_space)


def of_every_action(spec: EnsembleSpec, space: spaces.Discrete) -> EnsembleSpec:
    """The same, with one output for each action.

    Raises:
        ConfigError: quantiles were asked for.
    """
    if spec.outputs > 1:
        raise ConfigError(
            f"critics that give {spec.outputs} quantiles are for continuous actions; the action space is "
            f"{describe(space)}.",
            path="learner.type",
            hint="use sac, or dqn with returns: qr.",
        )
    return replace(spec, outputs=int(space.n))
