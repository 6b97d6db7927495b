"""Native state: what an environment needs to go on exactly where it was, as plain data, in whatever process.

An environment that offers `state_dict` and `load_state_dict` is asked. Otherwise the wrapper chain is
walked: every attribute must be plain data (numbers, text, arrays, tensors, random generators, lists, tuples,
dicts, deques, Python objects made of those) or a constant (spaces, specs, functions, classes). One attribute
that is neither, or memory that two attributes share, and there is no native state: None rather than a state
that may be wrong.

Secrets (texts under names such as `api_key`, values of such environment variables) are constants as well: they are
never written down, and whoever makes the environment again gives them again.

Not seen, and so not to be used by an environment that relies on this: state kept on classes or in modules.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Collection
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from uniarena.config.dump import environment_secrets, is_secret
from uniarena.envs import native_mujoco
from uniarena.envs.column import WRAPPERS, layers
from uniarena.envs.native_load import (
    TAG,
    NativeStateError,
    all_spaces,
    enum_of,
    load_native,
    module_of,
    name_of,
)

__all__ = ["NativeStateError", "load_native", "native_state"]

_CONSTANTS = (
    type,
    ModuleType,
    BuiltinFunctionType,
    EnvSpec,
    WrapperSpec,
    np.dtype,
    range,
    torch.device,
    torch.dtype,
)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by Python code, without hidden C state


class _OpaqueError(Exception):
    """An attribute that is not plain data."""


def native_state(env: Any) -> dict[str, Any] | None:
    """The state of an environment with its wrappers; None where it has parts that cannot be read."""
    writer = _Writer()
    try:
        return {"layers": [writer.layer(layer) for layer in layers(env)]}
    except _OpaqueError:
        return None


def _speaks_for_itself(layer: Any) -> bool:
    """Whether it offers `state_dict` and `load_state_dict` (those of nn.Module are about its parameters)."""
    module = isinstance(layer, torch.nn.Module) and type(layer).state_dict is torch.nn.Module.state_dict
    return not module and all(
        callable(getattr(layer, name, None)) for name in ("state_dict", "load_state_dict")
    )


class _Writer:
    """Encodes values; remembers objects and memory it has met, so that sharing is noticed."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}  # id → number in the state
        self.memory: set[int] = set()
        self.secrets = environment_secrets()
        self.kept: list[Any] = []  # keeps what is in `seen` alive: an id is only unique among the living

    def layer(self, layer: Any) -> dict[str, Any]:
        """One wrapper or the base environment."""
        if _speaks_for_itself(layer):
            own = layer.state_dict()
            if own is None:
                raise _OpaqueError(name_of(layer))
            return {"class": name_of(layer), "own": own}
        self._first_time(layer)
        return {
            "class": name_of(layer),
            "id": self.seen[id(layer)],
            "attributes": self._attributes(layer, skip="env" if isinstance(layer, WRAPPERS) else None),
        }

    def _attributes(self, holder: Any, skip: str | None = None) -> dict[str, Any]:
        classes = type(holder).__mro__[:-1]
        if not all(cls.__flags__ & _HEAP_TYPE for cls in classes) or any(
            cls.__dict__.get("__slots__") for cls in classes
        ):
            raise _OpaqueError(name_of(holder))
        rendering = module_of(holder).startswith("gymnasium.")
        return {
            key: {TAG: "constant"}
            if (rendering and _is_drawing(value)) or self._is_secret(key, value)
            else self.encode(value)
            for key, value in vars(holder).items()
            if key != skip
        }

    def encode(self, value: Any, inside: bool = False) -> Any:
        """Plain data for one value.

        Args:
            inside: it lies in a container, where nothing can be restored in place.

        Raises:
            _OpaqueError: it is none.
        """
        if isinstance(value, np.str_):
            return str(value)
        if value is None or (
            isinstance(value, (bool, int, float, str, np.generic)) and not isinstance(value, Enum)
        ):
            if isinstance(value, np.generic) and value.dtype.kind not in "biuf":
                raise _OpaqueError(name_of(value))
            return value
        if isinstance(value, (np.ndarray, torch.Tensor)):
            return self._array(value)
        if isinstance(value, Enum):
            if enum_of(name_of(value)) is not type(value):
                raise _OpaqueError(name_of(value))
            return {TAG: "enum", "class": name_of(value), "name": value.name}
        if type(value) in (list, tuple, dict, OrderedDict, deque):
            return self._container(value)
        if isinstance(value, _CONSTANTS) or _constant_function(value, self.seen):
            return {TAG: "constant"}
        if inside:
            raise _OpaqueError(name_of(value))
        return self._in_place(value)

    def _in_place(self, value: Any) -> Any:
        """What is restored in place: generators, spaces, simulations, Python objects."""
        if isinstance(value, Space):
            return {TAG: "space", "rng": [_space_rng(space) for space in all_spaces(value)]}
        if native_mujoco.handles(value):
            return {TAG: "mujoco", **native_mujoco.encode(value)}
        rng = isinstance(value, (np.random.Generator, np.random.RandomState, random.Random, torch.Generator))
        if not rng and not hasattr(value, "__dict__"):
            raise _OpaqueError(name_of(value))
        if not self._first_time(value):
            return {TAG: "seen", "id": self.seen[id(value)]}
        number = {"id": self.seen[id(value)]}
        if rng:
            return _encode_rng(value) | number
        return {TAG: "object", "class": name_of(value), "attributes": self._attributes(value)} | number

    def _container(self, value: Any) -> Any:
        if not isinstance(value, tuple) and not self._first_time(value):
            raise _OpaqueError("a container that two attributes share")
        if isinstance(value, list):
            return [self.encode(item, True) for item in value]
        if isinstance(value, tuple):
            return tuple(self.encode(item, True) for item in value)
        if isinstance(value, deque):
            return {
                TAG: "deque",
                "maxlen": value.maxlen,
                "items": [self.encode(item, True) for item in value],
            }
        return {
            TAG: type(value).__name__,
            "items": [
                (self.encode(k, True), {TAG: "constant"} if self._is_secret(k, v) else self.encode(v, True))
                for k, v in value.items()
            ],
        }

    def _is_secret(self, key: Any, value: Any) -> bool:
        return isinstance(value, str) and is_secret(str(key), value, self.secrets)

    def _array(self, value: np.ndarray | torch.Tensor) -> Any:
        if isinstance(value, torch.Tensor):
            if type(value) is not torch.Tensor or value.requires_grad:
                raise _OpaqueError(name_of(value))
            self._own_memory(value.untyped_storage().data_ptr() if value.numel() else id(value))
            return value.clone()
        root = value
        while isinstance(root.base, np.ndarray):
            root = root.base
        if root.base is not None or type(value) is not np.ndarray or value.dtype.kind not in "biufSU":
            raise _OpaqueError(name_of(value))
        self._own_memory(id(root))
        self.kept.append(root)
        if value.dtype.kind in "SU":
            return {
                TAG: "text",
                "dtype": value.dtype.str,
                "shape": list(value.shape),
                "data": value.tobytes().hex(),
            }
        return value.copy()

    def _own_memory(self, key: int) -> None:
        if key in self.memory:
            raise _OpaqueError("memory that two attributes share")
        self.memory.add(key)

    def _first_time(self, value: Any) -> bool:
        if id(value) in self.seen:
            return False
        self.seen[id(value)] = len(self.seen)
        self.kept.append(value)
        return True


def _constant_function(value: Any, known: Collection[int]) -> bool:
    """Functions are constants unless they enclose something that may change."""
    if isinstance(value, MethodType):
        return id(value.__self__) in known or isinstance(value.__self__, type)
    if not isinstance(value, FunctionType):
        return False
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    return all(
        cell is None or isinstance(cell, (int, float, str, bool, type, FunctionType, Space)) for cell in cells
    )


def _is_drawing(value: Any) -> bool:
    """Windows and clocks of Gymnasium's own environments; they show the state and hold none of it."""
    return module_of(value).partition(".")[0] == "pygame" or type(value).__name__ == "MujocoRenderer"


def _encode_rng(value: Any) -> dict[str, Any]:
    if isinstance(value, np.random.Generator):
        return {TAG: "rng", "class": type(value.bit_generator).__name__, "state": value.bit_generator.state}
    if isinstance(value, np.random.RandomState):
        return {TAG: "rng", "class": "RandomState", "state": value.get_state(legacy=False)}
    if isinstance(value, torch.Generator):
        return {TAG: "rng", "class": "torch", "state": value.get_state()}
    if type(value) is not random.Random:  # SystemRandom and kin have no state to give
        raise _OpaqueError(name_of(value))
    return {TAG: "rng", "class": "Random", "state": value.getstate()}


def _space_rng(space: Space[Any]) -> Any:
    return None if space._np_random is None else _encode_rng(space._np_random)
