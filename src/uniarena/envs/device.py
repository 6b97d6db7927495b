"""Where a simulator of tensors may live."""

from __future__ import annotations

from typing import Any

import torch

from uniarena.config import ConfigError


def devices_here() -> list[str]:
    """Names of the devices of this machine that torch can use."""
    found = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    return found + (["mps"] if torch.backends.mps.is_available() else [])


def usable(device: Any) -> torch.device:
    """The device of that name, after a tensor and a generator of random numbers were made there.

    Raises:
        ConfigError: there is none, with those that there are.
    """
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
        torch.Generator(found)
    except (RuntimeError, AssertionError, TypeError) as error:
        here = devices_here()
        raise ConfigError(
            f"there is no device {str(device)!r} here, for the simulator's tensors; there is {', '.join(here)}",
            path="environment.kwargs.device",
            hint=f"set it to {here[-1]}, or leave it out: tensors then lie beside the networks",
        ) from error
    return found
