"""Policy and value with memory, built from the sections `agent.policy`, `agent.value` and `agent.memory`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from gymnasium import Space

from uniarena.config import ConfigError
from uniarena.nets.memory import WHERE, build_memory
from uniarena.nets.tower import NetworkConfig, hidden_sizes, network_encoder
from uniarena.policies.heads import Head
from uniarena.policies.memory_network import Judge, MemoryNetwork, Trunk
from uniarena.policies.policy import PolicyConfig, build_actor
from uniarena.seeding import Streams, seed_globals
from uniarena.values.value import ValueConfig, one_encoder, value_tower


class MemoryBuilder:
    """Builds networks with one kind of memory.

    Args:
        observation_space: of one environment.
        section: `agent.memory`.
        streams: named seeds; the global generators are seeded from them, part by part.
    """

    def __init__(self, observation_space: Space[Any], section: Mapping[str, Any], streams: Streams) -> None:
        self.observation_space, self.section, self.streams = observation_space, section, streams

    def network(
        self, policy_space: Space[Any], policy: PolicyConfig, value: ValueConfig | None
    ) -> tuple[MemoryNetwork, Head]:
        """The network and the head of its policy. One encoder and memory serve both where an encoder alone would.

        Raises:
            ConfigError: a section that cannot be met, or a value network of the user's.
        """
        if value is not None and not value.built_in:
            raise own_memory_only(value.network, "agent.value.network")
        trunk, hidden = self._trunk(policy, "policy")
        actor, head = build_actor(trunk.out_dim, hidden, policy_space, policy)
        if value is None:
            return MemoryNetwork(trunk, actor), head
        shared = one_encoder(policy, value, auto=trunk.encoder.has_images)
        seed_globals(self.streams.seed_for("init/value"))
        if shared:
            tower = value_tower(trunk.out_dim, value, hidden_sizes(value, trunk.encoder))
            return MemoryNetwork(trunk, actor, Judge(tower)), head
        own, hidden = self._trunk(value, "value")
        return MemoryNetwork(trunk, actor, Judge(value_tower(own.out_dim, value, hidden), own)), head

    def _trunk(self, cfg: NetworkConfig, part: str) -> tuple[Trunk, tuple[int, ...]]:
        """Encoder and memory of a section, and the hidden layers of a tower on it."""
        encoder = network_encoder(self.observation_space, cfg, f"agent.{part}")
        return Trunk(encoder, build_memory(self.section, encoder.out_dim)), hidden_sizes(cfg, encoder)


def as_argument(
    section: Mapping[str, Any] | None, build_model: Callable[..., Any], learner: Any
) -> dict[str, Any]:
    """The section `agent.memory` as an argument of a learner's `build_model`; nothing where there is none.

    Raises:
        ConfigError: the models of this learner have no memory.
    """
    if not section:
        return {}
    if "memory" not in inspect.signature(build_model).parameters:
        raise ConfigError(
            f"{learner} has no networks with memory.",
            path=WHERE,
            hint="use ppo or a2c, or dqn for discrete actions.",
        )
    return {"memory": section}


def own_memory_only(network: Any, path: str = "agent.policy.network") -> ConfigError:
    """The error for memory beside a module of the user's, which keeps its own."""
    return ConfigError(
        f"agent.memory is a part of built-in networks, and {network} is a module of your own.",
        path=path,
        hint=f"remove {WHERE}, and give the module initial_state(n); or use a built-in network.",
    )
