"""The model of a decision transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import Space, spaces

from uniarena.config import ConfigError, Section
from uniarena.nets.leaves import leaves
from uniarena.nets.memory import build_memory
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.nets.tower import Tower, hidden_sizes, network_encoder
from uniarena.policies.action_scale import ActionScale
from uniarena.policies.decision import ActionCode, DecisionNetwork, DecisionPolicy
from uniarena.policies.deterministic import DeterministicHead
from uniarena.policies.heads import Head, build_head
from uniarena.policies.policy import WHERE
from uniarena.seeding import Streams, preserved_globals, seed_globals
from uniarena.values.actor_parts import parse_actor
from uniarena.values.model import Model, check_mask

MEMORY: dict[str, Any] = {"type": "gtrxl", "window": 20, "hidden_size": 128, "num_layers": 3, "num_heads": 1}
"""Where `agent.memory` is not given: context, width, layers and heads of Chen et al. 2021, table 9."""


def build_decision_model(
    observation_space: Space[Any],
    policy_space: Space[Any],
    policy_cfg: Mapping[str, Any],
    value_cfg: Mapping[str, Any] | None,
    normalizer: ObservationNormalizer | None,
    streams: Streams,
    *,
    cfg: Any,
    memory: Mapping[str, Any] | None = None,
) -> Model:
    """A policy with memory that is asked for a return, initialised from the stream `init/policy`.

    Args:
        cfg: the learner's config, with `target_return`.
        memory: the section `agent.memory`; None: `MEMORY`.

    Raises:
        ConfigError: actions that are neither Boxes with bounds nor Discrete, or a module of the user's.
    """
    parsed = parse_actor(Section(policy_cfg), policy_space)
    if not parsed.built_in or parsed.distribution != "auto":
        raise ConfigError(
            "this learner's policy is built in: of it encoder, hidden_sizes and activation can be chosen.",
            path=f"{WHERE}.{'distribution' if parsed.built_in else 'network'}",
            hint="leave it out.",
        )
    with preserved_globals():
        seed_globals(streams.seed_for("init/policy"))
        encoder, code = network_encoder(observation_space, parsed, WHERE), ActionCode(policy_space)
        kept = build_memory(memory or MEMORY, encoder.out_dim + 1 + code.width)
        head = _head(policy_space)
        hidden = hidden_sizes(parsed, encoder) if parsed.hidden_sizes is not None else ()
        actor = Tower(kept.out_dim, parsed, hidden, head.param_dim, 1.0)
        network: Any = DecisionNetwork(encoder, kept, actor, code, cfg.target_return)
    check_mask(observation_space, policy_space, head)
    network.float()
    head.float()
    return Model(DecisionPolicy(network, head, normalizer))


def _head(space: Space[Any]) -> Head:
    if not all(isinstance(leaf, spaces.Box) for _, leaf in leaves(space)):
        return build_head(space)
    scale = ActionScale(space)
    scale.require_bounds("a decision transformer")
    return DeterministicHead(scale, scale.dims)
