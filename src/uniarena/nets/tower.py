"""The built-in networks: an encoder and towers upon it, and the config that both policy and value share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from gymnasium import Space
from torch import Tensor, nn

from uniarena.config import ConfigError, config
from uniarena.nets.encoders import IMAGE_NETWORKS, Encoder, EncoderConfig, Layout, build_encoder
from uniarena.nets.initialization import HIDDEN_GAIN, orthogonal_
from uniarena.nets.mlp import MLP

BUILT_IN = ("mlp", *IMAGE_NETWORKS)
"""Networks made here; any other name is a registered class or the import path of one."""

DEFAULT_HIDDEN = (64, 64)


@config
class NetworkConfig:
    """What the sections of policy and value have in common. A user's module takes further keys as its
    arguments.
    """

    network: Any = (
        "mlp"  # mlp, nature_cnn, impala_cnn, minatar_cnn, a registered name, or package.module:Class
    )
    hidden_sizes: tuple[int, ...] | None = (
        None  # hidden layers; null: 64, 64, and none after an image encoder
    )
    activation: Literal["tanh", "relu", "elu", "gelu", "leaky_relu", "silu"] = "tanh"  # of the hidden layers
    orthogonal: bool = True  # orthogonal initialisation; false: torch's own
    layout: Layout = (
        "auto"  # of images: hwc, chw, flat (no image), auto (uint8 images whose shape leaves no doubt)
    )
    encoders: dict[str, EncoderConfig] | None = None  # leaf of the observation (a.b) → its own encoder

    def __post_init__(self) -> None:
        if self.hidden_sizes is not None and any(size < 1 for size in self.hidden_sizes):
            raise ConfigError(
                f"got {list(self.hidden_sizes)}; every width must be at least 1.", path="hidden_sizes"
            )

    @property
    def built_in(self) -> bool:
        """Whether `network` is one of ours."""
        return isinstance(self.network, str) and self.network in BUILT_IN


class Tower(nn.Module):
    """Hidden layers and one linear output layer.

    Args:
        in_dim: width of the features.
        cfg: activation and initialisation.
        hidden_sizes: widths of the hidden layers.
        out_dim: width of the output layer.
        gain: orthogonal gain of the output layer.
        with_latent: append the last hidden layer to the output (state-dependent exploration).

    Attributes:
        torso: the hidden layers, an `MLP`.
        output: the linear layer.
    """

    def __init__(
        self,
        in_dim: int,
        cfg: NetworkConfig,
        hidden_sizes: Sequence[int],
        out_dim: int,
        gain: float,
        with_latent: bool = False,
    ) -> None:
        super().__init__()
        self.torso = MLP(in_dim, hidden_sizes, cfg.activation)
        self.output = nn.Linear(self.torso.out_dim, out_dim)
        self.with_latent = with_latent
        if cfg.orthogonal:
            orthogonal_(self.torso, HIDDEN_GAIN)
            orthogonal_(self.output, gain)

    def forward(self, features: Tensor) -> Tensor:
        """`[..., in_dim]` → `[..., out_dim]`, or `[..., out_dim + latent]`."""
        latent: Tensor = self.torso(features)
        out: Tensor = self.output(latent)
        return torch.cat([out, latent], dim=-1) if self.with_latent else out


def network_encoder(space: Space[Any], cfg: NetworkConfig, where: str) -> Encoder:
    """The encoder that a built-in network puts before its towers.

    Raises:
        ConfigError: as `build_encoder`, or a convolutional network without an image to look at.
    """
    images: Any = cfg.network if cfg.network in IMAGE_NETWORKS else "auto"
    encoder = build_encoder(space, EncoderConfig(network=images, layout=cfg.layout), cfg.encoders, where)
    if images != "auto" and not encoder.has_images:
        raise ConfigError(
            f"{images} needs an image, and no part of the observation {space} is taken for one.",
            path=f"{where}.network",
            hint=f"use mlp, or set {where}.layout to hwc or chw if a three-dimensional part is an image.",
        )
    if cfg.orthogonal:
        orthogonal_(encoder, HIDDEN_GAIN)
    return encoder


def hidden_sizes(cfg: NetworkConfig, encoder: Encoder) -> tuple[int, ...]:
    """The hidden layers of a tower on this encoder."""
    if cfg.hidden_sizes is not None:
        return cfg.hidden_sizes
    return () if encoder.has_images else DEFAULT_HIDDEN
