"""Modules that users bring: found by import path, constructed by parameter name, called on plain [N, …]
batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from uniarena.batch import Tree, tree_map
from uniarena.config import ConfigError
from uniarena.envs.spaces import MASK
from uniarena.nets.encoders import Encoder, EncoderConfig, build_encoder
from uniarena.nets.leaves import leaf_at, leaves
from uniarena.registry import RegistryError, lookup


def find_class(network: Any, where: str) -> Callable[..., Any]:
    """The class (or factory) that a config names: a class itself, a registered name, or
    `package.module:Name`.

    Raises:
        ConfigError: nothing of that name can be imported.
    """
    if not isinstance(network, str):
        if callable(network):
            return network
        raise ConfigError(
            f"got {network!r}; expected the name of a network or package.module:Class.", path=where
        )
    try:
        found: Callable[..., Any] = lookup("network", network)
    except RegistryError as error:
        raise ConfigError(str(error.args[0]), path=where, hint=error.hint) from error
    if not callable(found):
        raise ConfigError(
            f"{network} is no class, it is {found!r}.", path=where, hint="name a torch.nn.Module."
        )
    return found


def construct(
    cls: Callable[..., Any], offered: Mapping[str, Any], extra: Mapping[str, Any], where: str
) -> nn.Module:
    """Call a class with those of the offered values that its constructor names, and with all of the extra
    ones.

    Args:
        offered: values by parameter name; a constructor takes what it wants.
        extra: fields that the user wrote; every one must be a parameter.
        where: config path of the section, for messages.

    Raises:
        ConfigError: an extra field that is no parameter, a parameter that nobody gives, or a result that is
            no module.
    """
    name = getattr(cls, "__qualname__", repr(cls))
    parameters = inspect.signature(cls).parameters
    names = [p.name for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    listed = ", ".join(names) or "nothing"
    for key in extra:
        if key not in names and not takes_any:
            raise ConfigError(
                f"{name} has no constructor parameter {key!r}; it takes {listed}.",
                path=f"{where}.{key}",
                hint=f"remove {where}.{key}, or add the parameter to {name}.",
            )
    given = {key: offered[key] for key in names if key in offered} | dict(extra)
    for parameter in parameters.values():
        required = parameter.default is parameter.empty and parameter.name in names
        if required and parameter.name not in given:
            raise ConfigError(
                f"{name} needs {parameter.name!r}, which nobody gives; it can have {', '.join(offered)}.",
                path=f"{where}.{parameter.name}",
                hint=f"set {where}.{parameter.name}, or give the parameter a default.",
            )
    module = cls(**given)
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"{name} gave a {type(module).__name__}; expected a torch.nn.Module.", path=f"{where}.network"
        )
    return module.float()


class UserModule(nn.Module):
    """A user's module seen from inside: takes observation trees `[..., *leaf shape]`, calls the module on
    `[N, …]`.

    A module whose constructor asks for `obs_dim` (and not for `observation_space`) receives one flat float32
    vector per observation, discrete parts one-hot; any other receives the observation itself, without its
    action mask, float64 leaves as float32. A wrapped non-dict observation is unwrapped again.

    Attributes:
        module: the user's.
        flat_dim: width of the flat vector.
    """

    def __init__(
        self,
        cls: Callable[..., Any],
        observation_space: Space[Any],
        offered: Mapping[str, Any],
        extra: Mapping[str, Any],
        where: str,
    ) -> None:
        super().__init__()
        encoder = build_encoder(observation_space, EncoderConfig(layout="flat"), where=where)
        self.flat_dim = encoder.out_dim
        names = inspect.signature(cls).parameters
        self.encoder: Encoder | None = (
            encoder if "obs_dim" in names and "observation_space" not in names else None
        )
        self.only_key = only_key(observation_space)
        self._keys, first = next(leaves(observation_space))
        self._dims = len(first.shape or ())
        inner: Any = observation_space
        bare = inner if self.only_key is None else inner[self.only_key]
        offered = {"obs_dim": self.flat_dim, "observation_space": bare, **offered}
        self.module = construct(cls, offered, extra, where)

    def forward(self, obs: Tree, *rest: Any) -> Any:
        """The module's own output on `obs`, leading dimensions folded into one and unfolded again."""
        leaf = leaf_at(obs, self._keys)
        lead = leaf.shape[: leaf.dim() - self._dims]
        if len(lead) == 1:
            return self.module(self.inputs(obs), *rest)
        flat = tree_map(lambda x: x.reshape(-1, *x.shape[len(lead) :]), obs)
        out = self.module(self.inputs(flat), *rest)
        return tree_map(
            lambda x: x.reshape(*lead, *x.shape[1:]), tuple(out) if isinstance(out, list) else out
        )

    def inputs(self, obs: Tree) -> Tree:
        """What the module is called with."""
        if self.encoder is not None:
            return self.encoder(obs)
        if self.only_key is not None:
            obs = obs[self.only_key]
        elif isinstance(obs, dict) and MASK in obs:
            obs = {key: child for key, child in obs.items() if key != MASK}
        return tree_map(lambda x: x.float() if x.dtype == torch.float64 else x, obs)


def only_key(space: Space[Any]) -> str | None:
    """`obs` for the space that a non-dict observation became when its action mask was put beside it; else
    None.
    """
    inner = getattr(space, "spaces", None)
    return "obs" if isinstance(inner, dict) and set(inner) == {"obs", MASK} else None


def column(value: Tensor, rows: tuple[int, ...], who: str, where: str) -> Tensor:
    """A value output `[*rows, 1]` or `[*rows]` as `[*rows]`: squeezed, never broadcast.

    Raises:
        ConfigError: another shape.
    """
    if tuple(value.shape) == (*rows, 1):
        return value.squeeze(-1)
    if tuple(value.shape) == rows:
        return value
    raise ConfigError(
        f"{who} gave values of shape {tuple(value.shape)} for {rows} observations; expected {(*rows, 1)}.",
        path=where,
        hint="a module that gives both returns (value, action_parameters), in this order.",
    )
