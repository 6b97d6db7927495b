"""The standard convolutional encoders while acting: their operations on views of the live parameters, nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from uniarena.nets.cnn import MinAtarCNN, NatureCNN
from uniarena.nets.encoders import Encoder, Image
from uniarena.nets.inference import hooks_of
from uniarena.nets.leaves import Keys


class FlatImage:
    """Images `[B, H, W, C]` or `[B, C, H, W]` → features `[B, out]` without gradients. Made by `flatten_image`.

    As `FlatMLP`, it sees the steps of an optimiser, and parameters that were given other memory.
    """

    def __init__(self, image: Image, keys: Keys) -> None:
        self.keys = keys
        self._image = image
        self._hooks = hooks_of(image)
        network: Any = image.network
        self._convolutions: list[nn.Conv2d] = [x for x in network.convolutions if isinstance(x, nn.Conv2d)]
        self._linear: nn.Linear = network.linear
        self._take_views()

    def __call__(self, x: Tensor) -> Tensor:
        if any(self._hooks):
            features: Tensor = self._image(x)
            return features
        if [layer.weight.data_ptr() for layer in self._layers] != self._places:
            self._take_views()
        image = self._image
        own = x.dtype is not torch.float32  # then the cast is a copy, which may be written into
        x = (x.permute(0, 3, 1, 2) if image.channels_last else x).float()
        if image.scale is not None:
            x = x.mul_(image.scale) if own else x * image.scale
        for weight, bias, stride in self._plan:
            x = F.conv2d(x, weight, bias, stride).relu_()
        return torch.addmm(self._bias, x.flatten(1), self._turned).relu_()

    def __getstate__(self) -> dict[str, Any]:
        return {"image": self._image, "keys": self.keys}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["image"], state["keys"])  # type: ignore[misc]

    @property
    def _layers(self) -> list[nn.Conv2d | nn.Linear]:
        return [*self._convolutions, self._linear]

    def _take_views(self) -> None:
        self._places = [layer.weight.data_ptr() for layer in self._layers]
        self._plan = [
            (layer.weight.detach(), None if layer.bias is None else layer.bias.detach(), layer.stride)
            for layer in self._convolutions
        ]
        self._turned, self._bias = self._linear.weight.detach().t(), self._linear.bias.detach()


def flatten_image(encoder: nn.Module) -> FlatImage | None:
    """The flat form of an encoder; None where it is more than one image through NatureCNN or MinAtarCNN."""
    if type(encoder) is not Encoder or len(encoder.parts) != 1:
        return None
    image = encoder.parts[0]
    standard = type(image) is Image and type(image.network) in (NatureCNN, MinAtarCNN)
    return FlatImage(image, encoder.keys[0]) if standard else None  # type: ignore[arg-type]
