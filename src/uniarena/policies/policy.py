"""Policy: observations → distribution of actions, and the frozen form of it that samplers act with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gymnasium import Space, spaces
from torch import Tensor, nn

from uniarena.batch import Tree
from uniarena.config import ConfigError, config, parse, split
from uniarena.envs.spaces import MASK, describe
from uniarena.nets.encoders import Encoder
from uniarena.nets.initialization import POLICY_GAIN
from uniarena.nets.leaves import example
from uniarena.nets.normalizer import ObservationNormalizer
from uniarena.nets.tower import NetworkConfig, Tower, hidden_sizes
from uniarena.nets.user_module import UserModule, find_class
from uniarena.policies.distributions import Distribution
from uniarena.policies.frozen import FrozenPolicy
from uniarena.policies.heads import DistributionName, Head, build_head
from uniarena.policies.memory_network import MemoryNetwork
from uniarena.policies.network import TowerNetwork, UserNetwork

WHERE = "agent.policy"

PolicyNetwork = TowerNetwork | MemoryNetwork | UserNetwork


@config
class PolicyConfig(NetworkConfig):
    """The section `agent.policy`."""

    distribution: DistributionName = "auto"  # of Box actions: gaussian (auto), squashed_gaussian, beta
    log_std_init: float = 0.0  # initial log-std of Gaussians
    gsde: bool = False  # state-dependent exploration: Gaussian noise that is a function of the state
    share_encoder: bool | Literal["auto"] = (
        "auto"  # one encoder (and memory) for policy and value; auto: where there are images
    )


class Policy(nn.Module):
    """Observations to distributions.

    Args:
        network: gives the head's parameters.
        head: gives the distribution of the action space.
        normalizer: applied to observations first; shared with whoever moves its statistics.

    Attributes:
        network, head, normalizer: as given.
    """

    def __init__(
        self, network: PolicyNetwork, head: Head, normalizer: ObservationNormalizer | None = None
    ) -> None:
        super().__init__()
        self.network, self.head, self.normalizer = network, head, normalizer

    def forward(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Distribution, Tree | None]:
        """The distribution and the next recurrent state.

        Args:
            obs: raw observations, a tree of `[N, ...]`, or of sequences `[L, N, ...]`.
            state: recurrent state `[N, ...]` before the first row; None: the initial one.
            is_first: `[N]` or `[L, N]` bool, where the state is reset before the row. Without memory it is
                ignored.
        """
        params, state = self.params(obs, state, is_first)
        return self.head.dist(params, self.mask(obs)), state

    def params(
        self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, Tree | None]:
        """The head's parameters `[..., P]` and the next recurrent state. Arguments as in `forward`."""
        return self.network.params(self.inputs(obs), state, is_first)

    def inputs(self, obs: Tree) -> Tree:
        """What the network is given: observations after normalisation."""
        return obs if self.normalizer is None else self.normalizer(obs)

    def mask(self, obs: Tree) -> Tensor | None:
        """The action mask `[..., M]` that travels with the observation."""
        return obs.get(MASK) if isinstance(obs, dict) else None

    def initial_state(self, count: int) -> Tree | None:
        """The recurrent state of `count` fresh columns, `[count, ...]`; None without memory."""
        return self.network.initial_state(count)

    def frozen(self) -> FrozenPolicy:
        """What acts: the same live parameters, without gradients, in evaluation mode, flattened where
        possible.
        """
        return FrozenPolicy(self.network, self.head, self.normalizer)


def build_tower_network(
    encoder: Encoder, space: Space[Any], cfg: PolicyConfig, critic: Tower | None = None
) -> tuple[TowerNetwork, Head]:
    """The built-in policy network on an encoder, and its head."""
    actor, head = build_actor(encoder.out_dim, hidden_sizes(cfg, encoder), space, cfg)
    return TowerNetwork(encoder, actor, critic), head


def build_actor(
    in_dim: int, hidden: tuple[int, ...], space: Space[Any], cfg: PolicyConfig
) -> tuple[Tower, Head]:
    """The policy's tower on features of some width, and its head."""
    latent = (hidden[-1] if hidden else in_dim) if cfg.gsde else None
    head = build_head(space, cfg.distribution, cfg.log_std_init, latent_dim=latent)
    width = head.param_dim - head.latent_dim
    return Tower(in_dim, cfg, hidden, width, POLICY_GAIN, with_latent=head.latent_dim > 0), head


def build_user_network(
    observation_space: Space[Any], space: Space[Any], section: Mapping[str, Any], cfg: PolicyConfig
) -> tuple[UserNetwork, Head]:
    """A user's module as the policy network, and the head that fits what it returns.

    Means alone get a learned log-std; twice as many numbers are means and log-stds. For Discrete they are
    logits.

    Raises:
        ConfigError: a field that the constructor does not take, or outputs of the wrong form or width.
    """
    where = f"{WHERE}.network"
    if cfg.gsde:
        raise ConfigError(
            "gsde needs the last hidden layer, which only built-in networks show.",
            path=f"{WHERE}.gsde",
            hint="set it false.",
        )
    head = build_head(space, cfg.distribution, cfg.log_std_init)
    head_keys = ("network", "distribution", "log_std_init", "gsde", "share_encoder")
    extra = {key: value for key, value in section.items() if key not in head_keys}
    offered = {"act_dim": head.param_dim, "action_space": space}
    body = UserModule(find_class(cfg.network, where), observation_space, offered, extra, WHERE)
    network = UserNetwork(body, example(observation_space, 3), WHERE)
    if network.param_dim == head.param_dim:
        return network, head
    widths = f"[N, {head.param_dim}]"
    if isinstance(space, spaces.Box) and cfg.distribution != "beta":
        wide = build_head(space, cfg.distribution, cfg.log_std_init, state_std=True)
        if network.param_dim == wide.param_dim:
            return network, wide
        widths += f" (means) or [N, {wide.param_dim}] (means and log-stds)"
    raise ConfigError(
        f"{type(body.module).__qualname__} gave action parameters [N, {network.param_dim}]; for "
        f"{describe(space)} expected {widths}.",
        path=where,
        hint="give the last layer act_dim outputs: a constructor parameter of that name receives the number.",
    )


def parse_policy(section: Mapping[str, Any], space: Space[Any]) -> PolicyConfig:
    """The config of `agent.policy`; keys that it does not know are left to a user's module.

    Raises:
        ConfigError: unknown keys beside a built-in network, wrong types, or a distribution without a Box to
            use it on.
    """
    network = section.get("network", "mlp")
    own = section if NetworkConfig(network=network).built_in else split(PolicyConfig, section)[0]
    cfg = parse(PolicyConfig, own, WHERE)
    if cfg.distribution != "auto" and not _has_box(space):
        raise ConfigError(
            f"{cfg.distribution} is for Box actions; the action space is {describe(space)}.",
            path=f"{WHERE}.distribution",
            hint="leave it out.",
        )
    return cfg


def _has_box(space: Space[Any]) -> bool:
    inner = getattr(space, "spaces", None)
    if inner is None:
        return isinstance(space, spaces.Box)
    return any(_has_box(child) for child in (inner.values() if isinstance(inner, Mapping) else inner))
