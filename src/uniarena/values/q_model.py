"""A Q-network as a model: it acts greedily, and its policy's parameters are the Q-values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from uniarena.batch import Tree
from uniarena.envs.spaces import MASK
from uniarena.nets.encoders import Encoder
from uniarena.nets.inference import FlatMLP, eval_mode, flatten
from uniarena.nets.leaves import leaf_at
from uniarena.nets.noisy import draw, noisy_layers, without_noise
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.ops.td import greedy_action
from uniarena.policies.distributions import Categorical
from uniarena.policies.frozen import FrozenPolicy
from uniarena.policies.heads import Head
from uniarena.policies.noise import Generator
from uniarena.policies.policy import Policy
from uniarena.seeding import Streams, preserved_globals, seed_globals
from uniarena.values.model import Output, check_mask
from uniarena.values.q import QNetwork, QOptions, build_q_network


class GreedyHead(Head):
    """Discrete(n): the parameters are Q-values, the action is the legal one with the largest."""

    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__(int(space.n))
        self.mask_dim = int(space.n)

    def dist(self, params: Tensor, mask: Tensor | None = None) -> Categorical:
        """All probability on the greedy action."""
        best = greedy_action(params, mask).unsqueeze(-1)
        logits = torch.full_like(params, torch.finfo(params.dtype).min)
        return Categorical(logits.scatter(-1, best, 0.0))

    def noise(self, steps: int, columns: int, generator: Generator) -> None:
        return None

    def sample(
        self, params: Tensor, noise: Any = None, mask: Tensor | None = None, generator: Generator = None
    ) -> Tensor:
        return greedy_action(params, mask)

    def mode(self, params: Tensor, mask: Tensor | None = None) -> Tensor:
        return greedy_action(params, mask)


class QPolicy(Policy):
    """The greedy policy of a Q-network.

    Args:
        network: the Q-network.
        head: of its actions.
        normalizer: applied to observations first.
    """

    def __init__(
        self, network: QNetwork, head: GreedyHead, normalizer: ObservationNormalizer | None = None
    ) -> None:
        super().__init__(cast(Any, network), head, normalizer)

    def frozen(self) -> FrozenQ:
        return FrozenQ(cast(Any, self.network), self.head, self.normalizer)


class FrozenQ(FrozenPolicy):
    """Acts on live parameters. `params` are Q-values `[B, A]`.

    Noisy layers act with one draw of their noise, taken by `noise` at the beginning of each chunk and in force
    until the next one; `mode` leaves the noise out.
    """

    def __init__(
        self, network: QNetwork, head: Head, normalizer: ObservationNormalizer | None = None
    ) -> None:
        super().__init__(cast(Any, network), head, normalizer)
        self._noisy = noisy_layers(network)
        plain = cast(QNetwork, without_noise(network)) if self._noisy else network
        self._mean = self._acting = FastQ(plain, normalizer)
        self._drawn: list[nn.Linear] = []
        if self._noisy:
            self._drawn, acting = _own_weights(network)
            self._acting = FastQ(acting, normalizer)

    def noise(self, steps: int, columns: int, generator: Generator) -> None:
        """Redraw the noise of noisy layers; no step has any of its own."""
        if self._noisy:
            noises = draw(self._noisy, generator)
            with torch.no_grad():
                for layer, linear, own in zip(self._noisy, self._drawn, noises, strict=True):
                    weight, bias = layer.noised(*own)
                    linear.weight.copy_(weight)
                    linear.bias.copy_(bias)

    def params(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, Tree | None]:
        return self._acting.step(obs, state, is_first)

    def params_on_arrays(self, rows: int) -> Callable[[Any], Any] | None:
        """`params` on arrays: `rows` observations → Q-values in new memory; None where it is not so simple. Valid until
        parameters are given other memory.
        """
        return self._acting.on_arrays(rows)

    def mode(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tree, Tree | None]:
        mask = obs.get(MASK) if isinstance(obs, dict) else None
        q, state = self._mean.step(obs, state, is_first)
        return self.head.mode(q, mask), state


class FastQ:
    """A Q-network without gradients, in as few operations as it allows, on its live parameters.

    Plain layers are flattened, one way through the network per stream; what cannot be (drawn quantiles, users'
    modules, memory) is called as it is, in evaluation mode. Noisy layers are for the caller to replace.

    Args:
        network: the Q-network.
        normalizer: applied to observations first.
    """

    def __init__(self, network: QNetwork, normalizer: ObservationNormalizer | None) -> None:
        self.network, self.normalizer = network, normalizer
        encoder, streams = network.encoder, network.streams
        self._identity = isinstance(encoder, Encoder) and encoder.identity
        self._keys = encoder.keys[0] if isinstance(encoder, Encoder) else ()
        ways = [stream for stream in (streams.advantage, streams.value) if stream is not None]
        first = normalizer if self._identity else None
        flats = [flatten(nn.Sequential(network.torso, way), first) for way in ways]
        able = network.embedding is None and isinstance(encoder, Encoder) and network.memory is None
        self._flats: list[FlatMLP] = [flat for flat in flats if flat is not None] if able else []
        if len(self._flats) < len(ways):
            self._flats = []
        self._direct = self._flats[0] if len(self._flats) == 1 and network.head.width == 1 else None

    def __call__(self, obs: Tree) -> Tensor:
        """Raw observations `[B, ...]` → Q `[B, A]`."""
        if self._direct is not None:
            return self._direct(self._features(obs))
        return self.network.head.q(self.outputs(obs))

    def on_arrays(self, rows: int) -> Callable[[Any], Any] | None:
        """The same on an array of `rows` flat observations; None where there is more to it."""
        plain = self._direct is not None and self._identity and not self._keys
        return self._direct.arrays(rows) if plain and self._direct is not None else None

    def step(self, obs: Tree, state: Tree | None, is_first: Tensor | None) -> tuple[Tensor, Tree | None]:
        """Q `[B, A]` and the state after the row; with memory also of sequences."""
        if self.network.memory is None:
            return self(obs), None
        with eval_mode(self.network):
            return self.network.params(
                obs if self.normalizer is None else self.normalizer(obs), state, is_first
            )

    def outputs(self, obs: Tree) -> Tensor:
        """Raw observations `[B, ...]` → `[B, A, K]`."""
        if self._flats:
            features = self._features(obs)
            return self.network.streams.combine(*[flat(features) for flat in self._flats])
        with eval_mode(self.network):
            out: Tensor = self.network(obs if self.normalizer is None else self.normalizer(obs))
        return out

    def _features(self, obs: Tree) -> Tensor:
        """What the flat forms take: the observation itself, or what the encoder makes of it."""
        if self._identity:
            x: Tensor = leaf_at(obs, self._keys) if self._keys else obs
            return x if x.dtype is torch.float32 else x.float()
        with eval_mode(self.network.encoder):
            return self.network.encoder(obs if self.normalizer is None else self.normalizer(obs))


class QModel(nn.Module):
    """Policy and value of one Q-network; the interface of `Model`.

    Args:
        policy: the greedy policy.

    Attributes:
        policy: as given; its network is the Q-network.
    """

    has_value = True

    def __init__(self, policy: QPolicy) -> None:
        super().__init__()
        self.policy = policy

    @property
    def network(self) -> QNetwork:
        """The Q-network: takes normalised observations."""
        return cast(QNetwork, self.policy.network)

    @property
    def normalizer(self) -> ObservationNormalizer | None:
        """What observations pass first."""
        return self.policy.normalizer

    def forward(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> Output:
        """The greedy distribution, its value and the state after, of raw observations `[N, ...]`."""
        q, state = self.policy.params(obs, state, is_first)
        mask = self.policy.mask(obs)
        return Output(self.policy.head.dist(q, mask), _best(q, mask), state)

    def q(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> Tensor:
        """Q-values `[N, A]` of raw observations."""
        return self.policy.params(obs, state, is_first)[0]

    def value(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> Tensor:
        """max Q over legal actions, `[N]`."""
        return _best(self.q(obs, state, is_first), self.policy.mask(obs))

    def initial_state(self, count: int) -> Tree | None:
        """The state of `count` fresh columns; None without memory."""
        return self.network.initial_state(count)


def build_q_model(
    observation_space: Space[Any],
    policy_space: Space[Any],
    policy_section: Mapping[str, Any],
    value_section: Mapping[str, Any] | None,
    normalizer: ObservationNormalizer | None,
    streams: Streams,
    *,
    cfg: QOptions,
    memory: Mapping[str, Any] | None = None,
) -> QModel:
    """The Q-network of an agent, initialised from the stream `init/value`.

    Args:
        observation_space: of one environment, the leaf `action_mask` included.
        policy_space: actions as the policy gives them; Discrete.
        policy_section, value_section: `agent.policy` and `agent.value`, which are one here.
        normalizer: applied to observations inside of the model; not copied.
        streams: named seeds. Global generators are left as they were.
        cfg: the learner's options: what outputs mean, dueling, noisy layers.
        memory: the section `agent.memory`; None: there is none.

    Raises:
        ConfigError: actions that are not Discrete, contradicting sections, a user's module that does not fit.
    """
    with preserved_globals():
        seed_globals(streams.seed_for("init/value"))
        network = build_q_network(observation_space, policy_space, policy_section, value_section, cfg, memory)
    assert isinstance(policy_space, spaces.Discrete)
    head = GreedyHead(policy_space)
    check_mask(observation_space, policy_space, head)
    network.float()  # whatever torch's default dtype is; statistics stay float64
    return QModel(QPolicy(network, head, normalizer))


def _best(q: Tensor, mask: Tensor | None) -> Tensor:
    return q.gather(-1, greedy_action(q, mask).unsqueeze(-1)).squeeze(-1)


def _own_weights(network: QNetwork) -> tuple[list[nn.Linear], QNetwork]:
    """The network with plain layers of their own in place of noisy ones, all else shared; and those layers."""
    plain = cast(QNetwork, without_noise(network))
    means = {id(layer.weight) for layer in noisy_layers(network)}
    drawn = [part for part in plain.modules() if isinstance(part, nn.Linear) and id(part.weight) in means]
    for linear in drawn:
        linear.weight = nn.Parameter(linear.weight.detach().clone(), requires_grad=False)
        linear.bias = nn.Parameter(linear.bias.detach().clone(), requires_grad=False)
    return drawn, plain
