"""Convolutional encoders: `[N, C, H, W]` float images in `[0, 1]` → `[N, out_dim]` features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NATURE_MIN_SIDE = 36
"""The smallest image side that leaves NatureCNN's last layer one pixel."""


class NatureCNN(nn.Module):
    """Three convolutions and a linear layer of 512: Mnih et al. 2015, "Human-level control…", Methods.

    Args:
        channels, height, width: of the images; both sides at least 36.

    Raises:
        ValueError: the image is too small.
    """

    out_dim = 512

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        if min(height, width) < NATURE_MIN_SIDE:
            raise ValueError(
                f"NatureCNN needs images of at least {NATURE_MIN_SIDE}×{NATURE_MIN_SIDE} pixels, got "
                f"{height}×{width}; use impala_cnn or minatar_cnn."
            )
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.linear = nn.Linear(_flat_width(self.convolutions, channels, height, width), self.out_dim)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.linear(self.convolutions(images)))


class MinAtarCNN(nn.Module):
    """One convolution of 16 3×3 filters and a linear layer of 128: Young & Tian 2019 (arXiv:1903.03176).

    For small grids such as MinAtar's 10×10, where an Atari network does not fit.

    Args:
        channels, height, width: of the images; both sides at least 3.
    """

    out_dim = 128

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        if min(height, width) < 3:
            raise ValueError(f"MinAtarCNN needs images of at least 3×3 pixels, got {height}×{width}.")
        self.convolutions = nn.Sequential(nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten())
        self.linear = nn.Linear(_flat_width(self.convolutions, channels, height, width), self.out_dim)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.linear(self.convolutions(images)))


class _Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3×3, same width."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(torch.relu(self.first(torch.relu(x))))
        return out


class ImpalaCNN(nn.Module):
    """Three blocks of convolution, pooling and two residual units, then a linear layer of 256.

    Espeholt et al. 2018 (arXiv:1802.01561), figure 3 right, without the LSTM.

    Args:
        channels, height, width: of the images, any size.
    """

    out_dim = 256

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        before = channels
        for depth in (16, 32, 32):
            pool = nn.MaxPool2d(3, stride=2, padding=1)
            blocks += [nn.Conv2d(before, depth, 3, padding=1), pool, _Residual(depth), _Residual(depth)]
            before = depth
        self.convolutions = nn.Sequential(*blocks, nn.ReLU(), nn.Flatten())
        self.linear = nn.Linear(_flat_width(self.convolutions, channels, height, width), self.out_dim)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.linear(self.convolutions(images)))


def _flat_width(convolutions: nn.Module, channels: int, height: int, width: int) -> int:
    with torch.no_grad():
        return int(convolutions(torch.zeros(1, channels, height, width)).shape[1])
