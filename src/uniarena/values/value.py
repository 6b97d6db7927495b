"""State values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from uniarena.batch import Tree, tree_leaves
from uniarena.config import ConfigError, Section, config, parse, split
from uniarena.nets.inference import eval_mode
from uniarena.nets.initialization import VALUE_GAIN
from uniarena.nets.leaves import example
from uniarena.nets.tower import NetworkConfig, Tower, hidden_sizes, network_encoder
from uniarena.nets.user_module import UserModule, column, find_class
from uniarena.policies.policy import PolicyConfig

WHERE = "agent.value"


@config
class ValueConfig(NetworkConfig):
    """The section `agent.value`; what it does not set is taken from `agent.policy`."""


class ValueNet(nn.Module):
    """V(s): (normalised) observations `[..., *leaf shape]` → values `[...]`.

    Args:
        body: an encoder and tower in sequence, or a user's module behind its adapter.
        squeeze: the body gives `[..., 1]` rather than `[...]`.
    """

    def __init__(self, body: nn.Module, squeeze: bool = True) -> None:
        super().__init__()
        self.body, self.squeeze = body, squeeze

    def forward(self, obs: Tree) -> Tensor:
        value: Tensor = self.body(obs)
        return value.squeeze(-1) if self.squeeze else value


def build_value(
    observation_space: Space[Any], section: Mapping[str, Any], cfg: ValueConfig, offered: Mapping[str, Any]
) -> ValueNet:
    """The value network of its own.

    Args:
        section: `agent.value` as written; what a user's module takes as arguments.
        cfg: the same, parsed and completed from the policy's.
        offered: what a user's constructor may ask for by name, beside `obs_dim` and `observation_space`.

    Raises:
        ConfigError: a user's module that takes other arguments or gives another shape than `[N, 1]`.
    """
    if cfg.built_in:
        encoder = network_encoder(observation_space, cfg, WHERE)
        return ValueNet(nn.Sequential(encoder, value_tower(encoder.out_dim, cfg, hidden_sizes(cfg, encoder))))
    extra = {key: value for key, value in section.items() if key != "network"}
    body = UserModule(find_class(cfg.network, f"{WHERE}.network"), observation_space, offered, extra, WHERE)
    probe = example(observation_space, 3)
    with torch.no_grad(), eval_mode(body):
        value = body(probe)
    count = len(tree_leaves(probe)[0])
    column(value, (count,), type(body.module).__qualname__, f"{WHERE}.network")
    return ValueNet(body, squeeze=value.dim() == 2)


def value_tower(in_dim: int, cfg: NetworkConfig, hidden: tuple[int, ...]) -> Tower:
    """The tower from features to one value."""
    return Tower(in_dim, cfg, hidden, 1, VALUE_GAIN)


def one_encoder(policy: PolicyConfig, value: ValueConfig, auto: bool) -> bool:
    """Whether policy and value look at the observation through one encoder.

    Args:
        auto: what `share_encoder: auto` means.

    Raises:
        ConfigError: they should, and their sections ask for different ones.
    """
    same = _looks(value) == _looks(policy)
    if policy.share_encoder is True and not same:
        raise ConfigError(
            "one encoder cannot be shared by policy and value sections that ask for different ones.",
            path="agent.policy.share_encoder",
            hint="give both the same network, layout and encoders, or set share_encoder: false.",
        )
    return same and (auto if policy.share_encoder == "auto" else policy.share_encoder)


def _looks(cfg: NetworkConfig) -> tuple[Any, ...]:
    """What decides a config's encoder."""
    return cfg.network, cfg.layout, cfg.encoders, cfg.orthogonal


def parse_value(section: Mapping[str, Any], policy_section: Mapping[str, Any]) -> ValueConfig:
    """The config of `agent.value`: its own keys, then the policy's; a user's policy module is not inherited.

    Raises:
        ConfigError: unknown keys beside a built-in network, or wrong types.
    """
    inherited = Section()
    if _built_in(section):
        inherited = split(ValueConfig, policy_section)[0]
        if not _built_in(policy_section):
            inherited = inherited.without("network")
    merged = Section(section)
    for key, setting in inherited.items():
        if key not in section:
            merged.put(key, setting, inherited.where(key))
    return parse(ValueConfig, merged if _built_in(merged) else split(ValueConfig, merged)[0], WHERE)


def _built_in(section: Mapping[str, Any]) -> bool:
    """Whether the section's network is one of ours; one that names none is."""
    return NetworkConfig(network=section.get("network", "mlp")).built_in
