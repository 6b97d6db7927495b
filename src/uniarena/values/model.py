"""Model: policy and value together, built from two spaces and two config sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gymnasium import Space
from torch import Tensor, nn

from uniarena.batch import Tree
from uniarena.config import ConfigError
from uniarena.envs.spaces import MASK, describe
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.nets.precision import widened
from uniarena.nets.tower import hidden_sizes, network_encoder
from uniarena.policies.distributions import Distribution
from uniarena.policies.heads import Head
from uniarena.policies.network import TowerNetwork
from uniarena.policies.policy import (
    Policy,
    PolicyConfig,
    PolicyNetwork,
    build_tower_network,
    build_user_network,
    parse_policy,
)
from uniarena.seeding import Streams, preserved_globals, seed_globals
from uniarena.values.memory_model import MemoryBuilder, own_memory_only
from uniarena.values.value import (
    ValueConfig,
    ValueNet,
    build_value,
    one_encoder,
    parse_value,
    value_tower,
)


class Output(NamedTuple):
    """Distribution of the action; value `[...]`, or None without a value network; next recurrent state, or
    None.
    """

    dist: Distribution
    value: Tensor | None
    state: Tree | None


class Model(nn.Module):
    """Policy and value of one agent.

    Arguments of all calls: raw observations, trees of `[N, ...]` or of sequences `[L, N, ...]`; `state [N,
    ...]` before the first row; `is_first [N]` or `[L, N]`, where the state is reset before the row. Without
    memory, both are ignored.

    Args:
        policy: observations → distribution. Its network may give the value as well.
        value_net: a value network of its own; None: the policy's network gives the value, or there is none.

    Attributes:
        policy, value_net: as given. What policy and value share is a part of `policy`, and appears once in
            `parameters()`.
    """

    def __init__(self, policy: Policy, value_net: ValueNet | None = None) -> None:
        super().__init__()
        self.policy, self.value_net = policy, value_net

    @property
    def normalizer(self) -> ObservationNormalizer | None:
        """What observations pass first; part of the policy."""
        return self.policy.normalizer

    @property
    def has_value(self) -> bool:
        """Whether there is a value at all."""
        return self.value_net is not None or self.policy.network.gives_value

    def forward(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> Output:
        """Distribution, value and next state; what policy and value share runs once."""
        inputs = self.policy.inputs(obs)
        if self.value_net is None:
            params, value, state = self.policy.network(inputs, state, is_first)
        else:
            params, state = self.policy.network.params(inputs, state, is_first)
            value = self.value_net(inputs)
        dist = self.policy.head.dist(widened(params), self.policy.mask(obs))
        return Output(dist, None if value is None else widened(value), state)

    def value(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> Tensor:
        """Values `[N]` (`[L, N]` of sequences).

        Raises:
            RuntimeError: the model has none.
        """
        inputs = self.policy.inputs(obs)
        if self.value_net is not None:
            return widened(self.value_net(inputs))
        if not self.policy.network.gives_value:
            raise RuntimeError(
                "this model has no value: neither agent.value nor the policy's module gives one."
            )
        return widened(self.policy.network.value(inputs, state, is_first))

    def initial_state(self, count: int) -> Tree | None:
        """The recurrent state of `count` fresh columns, `[count, ...]`; None without memory."""
        return self.policy.initial_state(count)


def build_model(
    observation_space: Space[Any],
    policy_space: Space[Any],
    policy_cfg: Mapping[str, Any],
    value_cfg: Mapping[str, Any] | None,
    normalizer: ObservationNormalizer | None,
    streams: Streams,
    cfg: Any = None,
    memory: Mapping[str, Any] | None = None,
) -> Model:
    """The networks of an agent, initialised from the streams `init/policy` and `init/value`.

    Args:
        observation_space: of one environment, the leaf `action_mask` included.
        policy_space: actions as the policy gives them: Discrete from 0, Box in float32.
        policy_cfg: the section `agent.policy` (`PolicyConfig`, or further keys for a user's module).
        value_cfg: the section `agent.value`, completed here from the policy's; None: no value network.
        normalizer: applied to observations inside of the model; not copied.
        streams: named seeds. Global generators are left as they were.
        cfg: the learner's config, which changes nothing here; models of other families depend on it.
        memory: the section `agent.memory`; None: there is none, unless a user's module brings its own.

    Raises:
        ConfigError: an unsupported space, an impossible combination, or a user's module that does not fit.
    """
    policy = parse_policy(policy_cfg, policy_space)
    value = None if value_cfg is None else parse_value(value_cfg, policy_cfg)
    with preserved_globals():
        seed_globals(streams.seed_for("init/policy"))
        network: PolicyNetwork
        if policy.built_in and memory:
            build = MemoryBuilder(observation_space, memory, streams)
            network, head = build.network(policy_space, policy, value)
        elif policy.built_in:
            network, head = _towers(observation_space, policy_space, policy, value, streams)
        else:
            if memory:
                raise own_memory_only(policy.network)
            network, head = build_user_network(observation_space, policy_space, policy_cfg, policy)
        seed_globals(streams.seed_for("init/value"))
        value_net = None
        if network.gives_value:
            _refuse_second_value(value_cfg or {}, policy)
        elif value is not None:
            offered = {"act_dim": head.param_dim, "action_space": policy_space}
            value_net = build_value(observation_space, value_cfg or {}, value, offered)
    check_mask(observation_space, policy_space, head)
    model = Model(Policy(network, head, normalizer), value_net)
    for part in (
        network,
        head,
        value_net,
    ):  # float32 whatever torch's default dtype is; statistics stay float64
        if part is not None:
            part.float()
    return model


def _towers(
    observation_space: Space[Any],
    policy_space: Space[Any],
    policy: PolicyConfig,
    value: ValueConfig | None,
    streams: Streams,
) -> tuple[TowerNetwork, Head]:
    """The built-in policy network; the value's tower is part of it where both share one encoder."""
    encoder = network_encoder(observation_space, policy, "agent.policy")
    network, head = build_tower_network(encoder, policy_space, policy)
    if value is not None and one_encoder(policy, value, auto=encoder.has_images):
        seed_globals(streams.seed_for("init/value"))
        network.critic = value_tower(encoder.out_dim, value, hidden_sizes(value, encoder))
    return network, head


def _refuse_second_value(section: Mapping[str, Any], policy: PolicyConfig) -> None:
    """A module that gives the value leaves no room for a value network that is set beside it."""
    if not policy.built_in and section.get("network", policy.network) != policy.network:
        raise ConfigError(
            f"{policy.network} gives the value itself, so {section['network']} would never be used.",
            path="agent.value.network",
            hint="leave agent.value out, or return the action parameters alone.",
        )


def check_mask(observation_space: Space[Any], policy_space: Space[Any], head: Head) -> None:
    """Whether the observation's mask is one for these actions.

    Raises:
        ConfigError: it has another width than there are choices.
    """
    inner = getattr(observation_space, "spaces", None)
    mask = inner.get(MASK) if isinstance(inner, Mapping) else None
    if mask is not None and tuple(mask.shape) != (head.mask_dim,):
        expected = (
            f"({head.mask_dim},)"
            if head.mask_dim
            else "none: only Discrete and MultiDiscrete actions have masks"
        )
        raise ConfigError(
            f"the observation's action_mask has shape {tuple(mask.shape)}; for actions "
            f"{describe(policy_space)} expected {expected}.",
            path="environment.action_mask",
            hint="name another key, or set environment.action_mask: none.",
        )
