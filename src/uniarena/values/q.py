"""Q-networks for discrete actions: observations to the K numbers that describe each action's return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from uniarena.batch import Tree, tree_leaves
from uniarena.config import ConfigError, Section, config, parse, split
from uniarena.nets.encoders import Encoder
from uniarena.nets.inference import eval_mode
from uniarena.nets.initialization import HIDDEN_GAIN, VALUE_GAIN, orthogonal_
from uniarena.nets.leaves import example
from uniarena.nets.memory import Memory, build_memory
from uniarena.nets.mlp import MLP
from uniarena.nets.noisy import make_noisy
from uniarena.nets.precision import widened
from uniarena.nets.tower import NetworkConfig, hidden_sizes, network_encoder
from uniarena.nets.user_module import UserModule, find_class
from uniarena.ops.td import dueling
from uniarena.values.distributional import (
    CategoricalReturn,
    CosineEmbedding,
    Expectation,
    Quantiles,
    ReturnHead,
)
from uniarena.values.memory_model import own_memory_only

WHERE = "agent.policy"

COSINES = 64
"""Features of an embedded fraction: n of Dabney et al. 2018 (arXiv:1806.06923), eq. 4."""

ReturnModel = Literal["expectation", "c51", "qr", "iqn"]


@config
class QNetworkConfig(NetworkConfig):
    """The sections `agent.policy` and `agent.value`, which are one network here."""

    activation: Literal["tanh", "relu", "elu", "gelu", "leaky_relu", "silu"] = "relu"  # of the hidden layers
    orthogonal: bool = False  # orthogonal initialisation; false: torch's own


class QOptions(Protocol):
    """What a learner's config says about its Q-network."""

    @property
    def returns(self) -> ReturnModel: ...
    @property
    def v_min(self) -> float: ...
    @property
    def v_max(self) -> float: ...
    @property
    def n_atoms(self) -> int: ...
    @property
    def n_quantiles(self) -> int | None: ...
    @property
    def n_fractions(self) -> int: ...
    @property
    def dueling(self) -> bool: ...
    @property
    def noisy(self) -> bool: ...
    @property
    def noisy_sigma(self) -> float: ...


class Streams(nn.Module):
    """The last layers: features `[..., D]` → `[..., A, K]`.

    Args:
        advantage: gives `[..., A·K]`; without a value stream these are the numbers themselves.
        value: gives `[..., K]`: dueling, Wang et al. 2016 (arXiv:1511.06581).
        actions, width: A and K.
    """

    def __init__(self, advantage: nn.Module, value: nn.Module | None, actions: int, width: int) -> None:
        super().__init__()
        self.advantage, self.value = advantage, value
        self.shape = (actions, width)

    def forward(self, features: Tensor) -> Tensor:
        own = [] if self.value is None else [self.value(features)]
        return self.combine(self.advantage(features), *own)

    def combine(self, advantage: Tensor, value: Tensor | None = None) -> Tensor:
        """The outputs of the streams put together."""
        table = advantage.unflatten(-1, self.shape)
        return table if value is None else dueling(value, table)


class QNetwork(nn.Module):
    """Encoder → (memory) → torso → (⊙ embedded fractions) → streams.

    Args:
        encoder: observations to features: built in, or a user's module that gives `[..., A·K]` at once.
        torso: hidden layers, maybe none.
        streams: the last layers.
        head: what the outputs mean.
        embedding: of the fractions at which drawn quantiles are asked for; None: there are none.
        memory: of the rows before; None: there is none.

    Attributes:
        encoder, torso, streams, head, embedding, memory: as given.
    """

    gives_value = False  # beside the action parameters, as policy networks may

    def __init__(
        self,
        encoder: Encoder | UserModule,
        torso: nn.Module,
        streams: Streams,
        head: ReturnHead,
        embedding: CosineEmbedding | None = None,
        memory: Memory | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.torso, self.streams = encoder, torso, streams
        self.head, self.embedding, self.memory = head, embedding, memory

    def forward(self, obs: Tree, fractions: Tensor | None = None) -> Tensor:
        """(Normalised) observations `[..., *leaf shape]` → `[..., A, K]`; with memory, as if episodes began.

        Args:
            fractions: `[..., K]`, for drawn quantiles; None: those that Q is the mean of.
        """
        return self.outputs(self.remember(obs)[0], fractions)

    def remember(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, Tree | None]:
        """Observations of a row `[N, …]` or a sequence `[T, N, …]` → features `[…, F]`, and the state after it."""
        features = self.encoder(obs)
        return (features, None) if self.memory is None else self.memory(features, state, is_first)

    def outputs(self, features: Tensor, fractions: Tensor | None = None) -> Tensor:
        """Features of `remember` → `[..., A, K]`."""
        features = self.torso(features)
        if self.embedding is None:
            return widened(self.streams(features))
        if fractions is None:
            fractions = self.head.fractions.expand(*features.shape[:-1], -1)  # type: ignore[operator]
        each = self.streams(features.unsqueeze(-2) * self.embedding(fractions))  # [..., K, A, 1]
        return widened(each.squeeze(-1).transpose(-1, -2))

    def params(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, Tree | None]:
        """As a policy's network: Q `[..., A]`, and the state after the row."""
        features, state = self.remember(obs, state, is_first)
        return self.head.q(self.outputs(features)), state

    def initial_state(self, count: int) -> Tree | None:
        """The state of `count` fresh columns; None without memory."""
        return None if self.memory is None else self.memory.initial_state(count)


def build_q_network(
    observation_space: Space[Any],
    policy_space: Space[Any],
    policy_section: Mapping[str, Any],
    value_section: Mapping[str, Any] | None,
    cfg: QOptions,
    memory: Mapping[str, Any] | None = None,
) -> QNetwork:
    """The Q-network that config sections and a learner's options ask for; draws from the global generator.

    The last hidden layer is part of the streams where they are two, and follows the embedding of drawn quantiles.

    Raises:
        ConfigError: actions that are not Discrete, or a user's module with options that need our own layers.
    """
    if not isinstance(policy_space, spaces.Discrete):
        raise ConfigError(
            f"Q-learning compares actions one by one, so they must be Discrete; the environment has {policy_space}.",
            path="learner.type",
            hint="use ppo, sac, td3 or ddpg for Box actions; from data cql, iql, td3_bc or bcq.",
        )
    actions, head = int(policy_space.n), build_return_head(cfg)
    section = one_section(policy_section, value_section)
    own = NetworkConfig(network=section.get("network", "mlp")).built_in
    net = parse(QNetworkConfig, section if own else split(QNetworkConfig, section)[0], WHERE)
    if not own:
        if memory:
            raise own_memory_only(net.network)
        return _user_network(observation_space, policy_space, section, net, cfg, head)
    encoder = network_encoder(observation_space, net, WHERE)
    kept = build_memory(memory, encoder.out_dim) if memory else None
    in_dim = encoder.out_dim if kept is None else kept.out_dim
    hidden = hidden_sizes(net, encoder)
    drawn = cfg.returns == "iqn"
    late = len(hidden) - 1 if hidden and (cfg.dueling or drawn) else len(hidden)
    torso: nn.Module = MLP(in_dim, hidden[:late], net.activation)
    width = hidden[late - 1] if late else in_dim

    def stream(outputs: int) -> MLP:
        return MLP(width, hidden[late:], net.activation, outputs)

    streams = Streams(
        stream(actions * head.width), stream(head.width) if cfg.dueling else None, actions, head.width
    )
    if net.orthogonal:
        _orthogonal(torso, streams)
    if cfg.noisy:
        torso, streams = (make_noisy(part, cfg.noisy_sigma) for part in (torso, streams))  # type: ignore[assignment]
    embedding = CosineEmbedding(COSINES, width) if drawn else None
    return QNetwork(encoder, torso, streams, head, embedding, kept)


def build_return_head(cfg: QOptions) -> ReturnHead:
    """What the outputs of the Q-network mean."""
    if cfg.returns == "expectation":
        return Expectation()
    if cfg.returns == "c51":
        return CategoricalReturn(cfg.v_min, cfg.v_max, cfg.n_atoms)
    if cfg.returns == "qr":
        return Quantiles(cfg.n_quantiles or 200)
    return Quantiles(cfg.n_quantiles or 32, drawn=cfg.n_fractions)


def _orthogonal(torso: nn.Module, streams: Streams) -> None:
    orthogonal_(torso, HIDDEN_GAIN)
    orthogonal_(streams, HIDDEN_GAIN)
    for stream in (streams.advantage, streams.value):
        if isinstance(stream, MLP):
            orthogonal_(stream.layers[-1], VALUE_GAIN)


def one_section(policy: Mapping[str, Any], value: Mapping[str, Any] | None) -> Section:
    """The keys of both sections; a Q-network is policy and value at once."""
    merged, second = Section(policy), Section(value or {})
    for key, setting in second.items():
        if key in merged and merged[key] != setting:
            raise ConfigError(
                f"agent.policy.{key} is {merged[key]!r} and agent.value.{key} is {setting!r}; of a Q-network the two "
                "are one.",
                path=f"agent.value.{key}",
                hint="set it in one place.",
            )
        merged.put(key, setting, second.where(key))
    return merged


def _user_network(
    observation_space: Space[Any],
    policy_space: spaces.Discrete,
    section: Section,
    net: QNetworkConfig,
    cfg: QOptions,
    head: ReturnHead,
) -> QNetwork:
    """A user's module as the whole network: `[N, A·K]` from observations."""
    where, outputs = f"{WHERE}.network", int(policy_space.n) * head.width
    unable = [name for name in ("dueling", "noisy") if getattr(cfg, name)]
    unable += ["returns"] if cfg.returns == "iqn" else []
    if unable:
        raise ConfigError(
            f"{unable[0]} changes layers that {net.network} makes itself.",
            path=f"learner.{unable[0]}",
            hint="build it into the module and leave the option out, or use a built-in network.",
        )
    offered = {"act_dim": outputs, "action_space": policy_space}
    cls = find_class(net.network, where)
    body = UserModule(cls, observation_space, offered, section.without("network"), WHERE)
    name, probe = type(body.module).__qualname__, example(observation_space, 3)
    if callable(getattr(body.module, "initial_state", None)):
        raise ConfigError(
            f"{name} has memory (initial_state), which Q-networks cannot train.",
            path=where,
            hint="use a built-in network with agent.memory, a module without memory, or ppo.",
        )
    with torch.no_grad(), eval_mode(body):
        out = body(probe)
    count = len(tree_leaves(probe)[0])
    if not isinstance(out, Tensor) or tuple(out.shape) != (count, outputs):
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ConfigError(
            f"{name} gave {got} for {count} observations; expected ({count}, {outputs}): {head.width} "
            f"number(s) for each of {policy_space.n} actions.",
            path=where,
            hint="give the last layer act_dim outputs: a constructor parameter of that name receives the number.",
        )
    return QNetwork(body, nn.Identity(), Streams(nn.Identity(), None, int(policy_space.n), head.width), head)
