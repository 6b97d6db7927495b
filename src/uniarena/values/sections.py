"""The section `agent.policy` with every key, as the family of a learner's model completes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from uniarena.config import parse
from uniarena.nets.tower import NetworkConfig
from uniarena.policies.policy import WHERE, PolicyConfig
from uniarena.values.actor_parts import completed
from uniarena.values.actor_q_model import build_actor_q, build_deterministic_actor_q
from uniarena.values.cloning import build_cloning_model, build_weighted_model
from uniarena.values.constrained import build_candidates, build_constrained_q
from uniarena.values.decision import build_decision_model
from uniarena.values.model import build_model
from uniarena.values.q import QNetworkConfig, one_section
from uniarena.values.q_model import build_q_model

_PLAIN = (build_model, build_decision_model)
_ACTORS = (
    build_actor_q,
    build_deterministic_actor_q,
    build_candidates,
    build_constrained_q,
    build_cloning_model,
    build_weighted_model,
)


def whole_policy(
    build: Callable[..., Any] | None, policy: Mapping[str, Any], value: Mapping[str, Any]
) -> NetworkConfig | None:
    """The policy's config.

    Args:
        build: how the learner builds its model: its `build_model`.
        policy, value: the sections as given.

    Returns:
        None for a network or a learner that is not built in, whose keys only they know.
    """
    if not NetworkConfig(network=policy.get("network", "mlp")).built_in:
        return None
    if build is build_q_model:
        return parse(QNetworkConfig, one_section(policy, value), WHERE)
    if build in _PLAIN or build in _ACTORS:
        return parse(PolicyConfig, policy if build in _PLAIN else completed(policy, {}), WHERE)
    return None
