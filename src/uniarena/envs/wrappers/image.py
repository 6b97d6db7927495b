"""Crop, grayscale, resize of images; uint8 out. The layout is declared, or clear from the shape, or refused.

Resizing weighs every source pixel by the area that it shares with the target pixel (what OpenCV calls
INTER_AREA), as two small matrix products, so that CPU and device pipelines give the same picture. Grayscale:
ITU-R BT.601 luma, 0.299 R + 0.587 G + 0.114 B.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from uniarena.batch import Tree
from uniarena.config import ConfigError, config
from uniarena.envs.protocol import Array, Env
from uniarena.envs.wrappers.base import EnvWrapper
from uniarena.envs.wrappers.leaves import choose_leaves, get_leaf, replace_leaves, set_leaves

LUMA = (0.299, 0.587, 0.114)
CHANNELS = (1, 3, 4)


@config
class PreprocessImageConfig:
    """Settings of `PreprocessImage`."""

    layout: Literal["HWC", "CHW"] | None = (
        None  # of the environment's images; None: only where the shape leaves no doubt
    )
    output_layout: Literal["HWC", "CHW"] | None = None  # None: as it came
    crop: tuple[int, int, int, int] | None = (
        None  # top, left, height, width in pixels; before everything else
    )
    grayscale: bool = False  # one channel, which is kept as an axis
    size: int | tuple[int, int] | None = None  # height and width after resizing; one number: both
    keys: tuple[str, ...] | None = (
        None  # leaves to process, e.g. ["sensors.cam"]; None: every image-shaped uint8 Box
    )


class PreprocessImage(EnvWrapper):
    """Crops, turns gray and resizes image leaves; the result is a uint8 Box `[H, W, C]` or `[C, H, W]`.

    Float images are scaled from the bounds of their space to 0 … 255; they need finite bounds, the same for
    all pixels.

    Raises:
        ConfigError: no image, an undeclared layout where both could be meant, a crop outside the picture,
            grayscale of a picture that has not 1 or 3 channels, or float images without bounds.
    """

    Config = PreprocessImageConfig
    where = "environment.wrappers.preprocess_image"

    def __init__(self, env: Env, cfg: PreprocessImageConfig) -> None:
        super().__init__(env, cfg)
        accepts = _is_image if cfg.keys is None else _is_box
        leaves = choose_leaves(
            env.observation_space, cfg.keys, accepts, self.where, "an image (uint8 Box of 2 or 3 axes)"
        )
        if cfg.keys is None and len(leaves) > 1:
            raise ConfigError(
                f"{len(leaves)} leaves could be images: {', '.join(map(repr, leaves))}",
                path=f"{self.where}.keys",
                hint=f"name those that are, e.g. `keys: [{next(iter(leaves))}]`",
            )
        self._pipes = {
            path: _Pipe(leaf, cfg, repr(path) if path else "the observation", env.device)
            for path, leaf in leaves.items()
        }
        self.observation_space = replace_leaves(
            env.observation_space, {path: pipe.space for path, pipe in self._pipes.items()}
        )

    def _map_obs(self, obs: Tree) -> Tree:
        return set_leaves(obs, {path: pipe(get_leaf(obs, path)) for path, pipe in self._pipes.items()})


class _Pipe:
    """What is done to one leaf; the checks at construction, the arithmetic in `__call__`."""

    def __init__(self, leaf: Space[Any], cfg: PreprocessImageConfig, name: str, device: torch.device) -> None:
        assert isinstance(leaf, spaces.Box)
        self.layout = _layout(leaf, cfg, name)
        self.output_layout = cfg.output_layout or self.layout
        self.flat = len(leaf.shape) == 2
        shape = (*leaf.shape, 1) if self.flat else leaf.shape
        height, width, channels = (
            shape if self.layout == "HWC" or self.flat else (shape[1], shape[2], shape[0])
        )
        self.offset, self.factor = _to_bytes(leaf, name)
        self.crop = _crop(cfg.crop, height, width, name)
        if self.crop is not None:
            height, width = cfg.crop[2:]  # type: ignore[index]
        if cfg.grayscale and channels not in (1, 3):
            raise ConfigError(
                f"{name} has {channels} channels; grayscale expects 1 or 3",
                path=f"{PreprocessImage.where}.grayscale",
            )
        self.luma = torch.tensor(LUMA, device=device) if cfg.grayscale and channels == 3 else None
        channels = 1 if cfg.grayscale else channels
        size = _size(cfg.size, height, width)
        self.rows = _area_weights(height, size[0], device) if size[0] != height else None
        self.columns = _area_weights(width, size[1], device) if size[1] != width else None
        out = (*size, channels) if self.output_layout == "HWC" else (channels, *size)
        self.space = spaces.Box(0, 255, out, np.uint8)

    def __call__(self, images: Array) -> Array:
        """`[N, …]` of the leaf's shape → `[N, …]` uint8 of the new shape."""
        x = torch.from_numpy(images) if isinstance(images, np.ndarray) else images
        x = self._process(x)
        return x.numpy() if isinstance(images, np.ndarray) else x

    def _process(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1) if self.flat else x if self.layout == "CHW" else x.permute(0, 3, 1, 2)
        if self.crop is not None:
            x = x[:, :, self.crop[0], self.crop[1]]
        whole = x.dtype == torch.uint8
        if self.factor is not None:
            x, whole = (x.float() - self.offset) * self.factor, False
        if self.luma is not None:
            x, whole = torch.einsum("nchw,c->nhw", x.float(), self.luma).unsqueeze(1), False
        if self.rows is not None:
            x, whole = self.rows @ x.float(), False
        if self.columns is not None:
            x, whole = x.float() @ self.columns.T, False
        if not whole:
            x = x.round().clamp_(0, 255).to(torch.uint8)
        return (x if self.output_layout == "CHW" else x.permute(0, 2, 3, 1)).contiguous()


def _is_box(space: Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) in (2, 3)


def _is_image(space: Space[Any]) -> bool:
    return _is_box(space) and space.dtype == np.uint8


def _layout(leaf: spaces.Box, cfg: PreprocessImageConfig, name: str) -> str:
    where = f"{PreprocessImage.where}.layout"
    if len(leaf.shape) == 2:
        layout = cfg.output_layout or cfg.layout
        if layout is None:
            raise ConfigError(
                f"{name} has shape {leaf.shape} without channels",
                path=where,
                hint="set `layout: CHW` for an output of (1, H, W), `layout: HWC` for (H, W, 1)",
            )
        return layout
    first, last = leaf.shape[0] in CHANNELS, leaf.shape[-1] in CHANNELS
    if cfg.layout is not None:
        channels = leaf.shape[-1] if cfg.layout == "HWC" else leaf.shape[0]
        other_fits = first if cfg.layout == "HWC" else last
        if channels not in CHANNELS and other_fits:
            other = "CHW" if cfg.layout == "HWC" else "HWC"
            raise ConfigError(
                f"layout is {cfg.layout}, but {name} has shape {leaf.shape}, that is {channels} channels",
                path=where,
                hint=f"set `layout: {other}`",
            )
        return cfg.layout
    if first != last:
        return "CHW" if first else "HWC"
    raise ConfigError(
        f"{name} has shape {leaf.shape}: channels first or last cannot be told from it",
        path=where,
        hint="set `layout: HWC` (height, width, channels) or `layout: CHW`",
    )


def _to_bytes(leaf: spaces.Box, name: str) -> tuple[float, float | None]:
    """(offset, factor) that take the leaf's values to 0 … 255; no factor for uint8."""
    if leaf.dtype == np.uint8:
        return 0.0, None
    low, high = float(leaf.low.min()), float(leaf.high.max())
    if not np.isfinite(low + high) or np.any(leaf.low != low) or np.any(leaf.high != high) or low >= high:
        raise ConfigError(
            f"{name} is {leaf.dtype} in {low:g} … {high:g}; expected uint8, or one pair of finite bounds",
            path=f"{PreprocessImage.where}.keys",
            hint="declare the range in the observation space, e.g. Box(0.0, 1.0, shape, float32)",
        )
    return low, 255.0 / (high - low)


def _crop(
    crop: tuple[int, int, int, int] | None, height: int, width: int, name: str
) -> tuple[slice, slice] | None:
    if crop is None:
        return None
    top, left, rows, columns = crop
    if min(top, left) < 0 or min(rows, columns) < 1 or top + rows > height or left + columns > width:
        raise ConfigError(
            f"crop (top, left, height, width) is {tuple(crop)}; expected part of {name}, {height} × {width}",
            path=f"{PreprocessImage.where}.crop",
        )
    return slice(top, top + rows), slice(left, left + columns)


def _size(size: int | tuple[int, int] | None, height: int, width: int) -> tuple[int, int]:
    if size is None:
        return height, width
    pair = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    if min(pair) < 1:
        raise ConfigError(f"size is {size}; expected positive pixels", path=f"{PreprocessImage.where}.size")
    return pair


def _area_weights(source: int, target: int, device: torch.device) -> Tensor:
    """`[target, source]` float32: the share of each source pixel in each target pixel; rows sum to 1."""
    edges = torch.linspace(0, source, target + 1, dtype=torch.float64)
    start = torch.arange(source, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], start + 1) - torch.maximum(edges[:-1, None], start)
    overlap = overlap.clamp_(min=0)
    return (overlap / overlap.sum(1, keepdim=True)).to(device, torch.float32)
