"""From any observation space to one flat float32 vector per observation.

Box leaves are flattened as they are, Discrete and MultiDiscrete become one-hot, images go through a
convolutional network, Dict and Tuple leaves are encoded key by key (sorted) and concatenated. A leaf that is a
table of entities can be declared a set or a graph, together with the leaves that hold its mask and its edges. Nothing
is guessed where a guess could be wrong: only uint8 Boxes of the shape and bounds of an image are taken for one,
and only if their layout can be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from uniarena.batch import Tree
from uniarena.config import Between, ConfigError, config
from uniarena.envs.spaces import describe
from uniarena.nets.cnn import NATURE_MIN_SIDE, ImpalaCNN, MinAtarCNN, NatureCNN
from uniarena.nets.graph import Entities
from uniarena.nets.leaves import Keys, dotted, leaf_at, leaves

Layout = Literal["auto", "hwc", "chw", "flat"]

IMAGE_NETWORKS: dict[str, type[nn.Module]] = {
    "nature_cnn": NatureCNN,
    "impala_cnn": ImpalaCNN,
    "minatar_cnn": MinAtarCNN,
}

CHANNEL_COUNTS = (1, 3, 4)
"""Sizes of an axis that is taken for the channels of an image whose layout is not declared."""

Beside = tuple[Keys | None, ...]
"""The ways to further leaves that a part of an encoder takes; None: nothing is there."""

IMAGE_MIN_SIDE = 32
"""uint8 arrays with smaller sides (grids of object codes, for example) are images only if their layout is
declared.
"""


@config
class EncoderConfig:
    """How one leaf of the observation becomes features."""

    network: Literal["auto", "nature_cnn", "impala_cnn", "minatar_cnn", "set", "graph"] = (
        "auto"  # for images; auto: by their size. set, graph: of entities [E, F]
    )
    layout: Layout = (
        "auto"  # hwc or chw: it is an image; flat: it is not; auto: uint8 images that can be told
    )
    mask: str | None = None  # set, graph: leaf that says which entities are there, [E]
    edges: str | None = None  # graph: leaf that says which send to which, [E, E]; null: all to all
    hidden_size: Annotated[int, Between(1)] = 64  # set, graph: numbers that an entity becomes
    rounds: Annotated[int, Between(1)] = 2  # graph: of messages between entities

    @property
    def of_entities(self) -> bool:
        """Whether the leaf is a set or a graph."""
        return self.network in ("set", "graph")

    def __post_init__(self) -> None:
        for name, kinds in (("mask", ("set", "graph")), ("edges", ("graph",))):
            if getattr(self, name) is not None and self.network not in kinds:
                raise ConfigError(
                    f"{name} is for entities, and network is {self.network}.",
                    path=name,
                    hint=f"write network: {kinds[-1]}.",
                )


class Flat(nn.Module):
    """Box and MultiBinary: all numbers in a row, unscaled."""

    def __init__(self, space: Space[Any]) -> None:
        super().__init__()
        self.dims = len(space.shape or ())
        self.out_dim = spaces.utils.flatdim(space)
        self.binary = isinstance(space, spaces.MultiBinary)

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        if self.dims == 1:
            return x
        return x.unsqueeze(-1) if self.dims == 0 else x.flatten(-self.dims)


class OneHot(nn.Module):
    """Discrete and MultiDiscrete, from `start`: one 1 per number. Outside of the space: zeros."""

    classes: Tensor
    owner: Tensor

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        super().__init__()
        self.dims = len(space.shape or ())
        counts = [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.reshape(-1).tolist()
        starts = (
            [int(space.start)] if isinstance(space, spaces.Discrete) else space.start.reshape(-1).tolist()
        )
        values = [start + k for start, n in zip(starts, counts, strict=True) for k in range(n)]
        owners = [index for index, n in enumerate(counts) for _ in range(n)]
        self.register_buffer("classes", torch.tensor(values), persistent=False)
        self.register_buffer("owner", torch.tensor(owners), persistent=False)
        self.out_dim = len(values)

    def forward(self, x: Tensor) -> Tensor:
        numbers = x.unsqueeze(-1) if self.dims == 0 else x.flatten(-self.dims).index_select(-1, self.owner)
        return (numbers == self.classes).float()


class Image(nn.Module):
    """An image `[..., H, W, C]` or `[..., C, H, W]` through a convolutional network; 0…255 becomes 0…1."""

    def __init__(self, space: spaces.Box, layout: Layout, network: str) -> None:
        super().__init__()
        self.shape = tuple(space.shape)
        self.channels_last = layout == "hwc"
        height, width, channels = self.shape if self.channels_last else (*self.shape[1:], self.shape[0])
        if network == "auto":
            network = "nature_cnn" if min(height, width) >= NATURE_MIN_SIDE else "minatar_cnn"
        self.scale = 1.0 / 255.0 if float(space.high.max()) == 255.0 else None
        self.network = IMAGE_NETWORKS[network](channels, height, width)
        self.out_dim: int = self.network.out_dim  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        lead = x.shape[:-3]
        images = x.reshape(-1, *self.shape)
        if self.channels_last:
            images = images.permute(0, 3, 1, 2)  # no copy: the convolutions take the strides as they are
        images = images.float()
        if self.scale is not None:
            images = images * self.scale
        return self.network(images).reshape(*lead, self.out_dim)


class Encoder(nn.Module):
    """Every leaf of an observation through its own encoder, concatenated in sorted key order.

    Attributes:
        out_dim: width of the output.
        identity: the only leaf, at `keys[0]`, is its own encoding (a flat float Box).
        has_images: some leaf goes through a convolutional network.
    """

    def __init__(self, parts: list[tuple[tuple[str | int, ...], nn.Module, Beside]], identity: bool) -> None:
        super().__init__()
        self.keys = [keys for keys, _, _ in parts]
        self.parts = nn.ModuleList([part for _, part, _ in parts])
        self._beside = [beside for _, _, beside in parts]
        self.identity = identity
        self.out_dim = sum(part.out_dim for _, part, _ in parts)  # type: ignore[misc]
        self.has_images = any(isinstance(part, Image) for _, part, _ in parts)

    def forward(self, obs: Tree) -> Tensor:
        """An observation tree of `[..., *leaf shape]` → `[..., out_dim]` float32."""
        features = [
            part(leaf_at(obs, keys), *(None if more is None else leaf_at(obs, more) for more in beside))
            for keys, part, beside in zip(self.keys, self.parts, self._beside, strict=True)
        ]
        return features[0] if len(features) == 1 else torch.cat(features, dim=-1)


def build_encoder(
    space: Space[Any],
    cfg: EncoderConfig | None = None,
    per_key: Mapping[str, EncoderConfig] | None = None,
    where: str = "agent.policy",
) -> Encoder:
    """The encoder of an observation space; leaves called `action_mask` are left out.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of them, nested at will.
        cfg: for every leaf that `per_key` does not name; a declared layout counts for its three-dimensional
            Boxes.
        per_key: dotted path of a leaf (`sensors.cam`) → its own config.
        where: config path for messages.

    Raises:
        ConfigError: an unsupported space, an image of unclear layout, or a `per_key` name that is no leaf.
    """
    cfg, per_key = cfg or EncoderConfig(), dict(per_key or {})
    found = list(leaves(space))
    names = [dotted(keys) for keys, _ in found]
    for name in per_key:
        if name not in names:
            raise ConfigError(
                f"{name!r} is no leaf of the observation space; its leaves: {', '.join(map(repr, names))}.",
                path=f"{where}.encoders.{name}",
            )
    if not any(spaces.utils.flatdim(leaf) for _, leaf in found):
        raise ConfigError(
            f"the observation space has nothing to look at (action masks apart): it is {describe(space)}.",
            path=where,
            hint="give observations at least one number; a constant will do.",
        )
    parts: list[tuple[Keys, nn.Module, Beside]] = []
    every = dict(zip(names, found, strict=True))
    taken = {name for own in per_key.values() for name in (own.mask, own.edges)}
    for (keys, leaf), name in zip(found, names, strict=True):
        own = per_key.get(name)
        place = where if own is None else f"{where}.encoders.{name}"
        if own is not None and own.of_entities:
            parts.append((keys, *_entities(leaf, own, every, place)))
        elif name not in taken:
            parts.append((keys, _leaf_encoder(leaf, own or cfg, own is not None, name, place), ()))
    first = found[0][1]
    plain = isinstance(first, spaces.Box) and len(first.shape) == 1 and first.dtype.kind == "f"
    return Encoder(parts, identity=len(found) == 1 and plain)


def image_leaves(
    space: Space[Any], cfg: EncoderConfig | None = None, per_key: Mapping[str, EncoderConfig] | None = None
) -> list[str]:
    """Dotted paths of the leaves that `build_encoder` would treat as images; a layout that cannot be told is
    none.
    """
    cfg, per_key = cfg or EncoderConfig(), per_key or {}
    found = []
    for keys, leaf in leaves(space):
        name = dotted(keys)
        layout = per_key.get(name, cfg).layout
        if isinstance(leaf, spaces.Box) and (_told(leaf) if layout == "auto" else _declared(leaf, layout)):
            found.append(name)
    return found


def large_inputs(space: Space[Any], obs: Tree, limit: float = 1e3) -> dict[str, float]:
    """Dotted path → largest magnitude of the float Box leaves of `obs` that exceed `limit` and so want
    normalising.
    """
    found = {}
    for keys, leaf in leaves(space):
        if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f" and spaces.utils.flatdim(leaf):
            largest = float(torch.as_tensor(leaf_at(obs, keys)).abs().max())
            if largest > limit:
                found[dotted(keys)] = largest
    return found


def _entities(
    space: Space[Any], cfg: EncoderConfig, every: Mapping[str, tuple[Keys, Space[Any]]], where: str
) -> tuple[nn.Module, Beside]:
    """The encoder of a set or graph, and the ways to its mask and its edges.

    Raises:
        ConfigError: the leaf is no table, or mask or edges are missing, of another shape, or of float numbers.
    """
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)) or len(space.shape or ()) != 2:
        raise ConfigError(
            f"entities are a table [E, F] of numbers, and this leaf is {space}.", path=f"{where}.network"
        )
    count, width = space.shape
    ways: list[Keys | None] = []
    for name, shape in (("mask", (count,)), ("edges", (count, count))):
        key = getattr(cfg, name)
        if key is None:
            ways.append(None)
            continue
        if key not in every:
            raise ConfigError(
                f"{key!r} is no leaf of the observation space; its leaves: {', '.join(map(repr, every))}.",
                path=f"{where}.{name}",
            )
        keys, leaf = every[key]
        if tuple(leaf.shape or ()) != shape or getattr(leaf.dtype, "kind", "f") == "f":
            raise ConfigError(
                f"{key!r} is {leaf}; expected whole numbers of shape {shape}, such as MultiBinary, which normalisation "
                "leaves alone.",
                path=f"{where}.{name}",
            )
        ways.append(keys)
    return Entities(width, cfg.hidden_size, cfg.rounds if cfg.network == "graph" else 0), tuple(ways)


def _leaf_encoder(space: Space[Any], cfg: EncoderConfig, named: bool, name: str, where: str) -> nn.Module:
    leaf = f"observation {name!r}" if name else "the observation"
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return OneHot(space)
    if isinstance(space, spaces.MultiBinary):
        return Flat(space)
    if not isinstance(space, spaces.Box):
        raise ConfigError(
            f"{leaf} is a {type(space).__name__} space, which has no encoder; expected Box, Discrete, "
            "MultiDiscrete, MultiBinary, or Dict and Tuple of them.",
            path=where,
            hint="turn it into numbers in an environment wrapper.",
        )
    layout = _layout(space, cfg, named, leaf, where)
    if layout is None:
        return Flat(space)
    try:
        return Image(space, layout, cfg.network)
    except ValueError as error:
        raise ConfigError(f"{leaf}: {error}", path=f"{where}.network") from error


def _layout(space: spaces.Box, cfg: EncoderConfig, named: bool, leaf: str, where: str) -> Layout | None:
    """How the leaf is an image; None: it is none."""
    if cfg.layout == "auto":
        if _told(space) is None and _image_like(space):
            raise ConfigError(
                f"{leaf} is uint8 of shape {space.shape}; its channels could be the first or the last axis.",
                path=f"{where}.layout",
                hint=f"set {where}.layout to hwc, chw, or flat if it is no image.",
            )
        return _told(space)
    if named and cfg.layout != "flat" and len(space.shape) != 3:
        raise ConfigError(
            f"{leaf} has shape {space.shape}; the layout {cfg.layout!r} needs three dimensions.",
            path=f"{where}.layout",
        )
    return cfg.layout if _declared(space, cfg.layout) else None


def _declared(space: spaces.Box, layout: Layout) -> bool:
    return layout != "flat" and len(space.shape) == 3


def _image_like(space: spaces.Box) -> bool:
    """Dtype, bounds and shape of an image: nothing else is taken for one without being told."""
    pixels = space.dtype == "uint8" and float(space.low.min()) == 0.0 and float(space.high.max()) == 255.0
    return pixels and len(space.shape) == 3 and sorted(space.shape)[1] >= IMAGE_MIN_SIDE


def _told(space: spaces.Box) -> Layout | None:
    """The layout of an image where its shape leaves no doubt, else None."""
    if not _image_like(space):
        return None
    first, last = space.shape[0] in CHANNEL_COUNTS, space.shape[-1] in CHANNEL_COUNTS
    if first == last:
        return None
    return "hwc" if last else "chw"
