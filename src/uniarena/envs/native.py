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

import inspect
import random
import sys
from collections import OrderedDict, deque
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from uniarena.config.dump import environment_secrets, is_secret
from uniarena.envs import native_mujoco
from uniarena.envs.column import WRAPPERS, layers

TAG = "$"
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
_ABSENT = object()


class NativeStateError(ValueError):
    """A state that does not fit the environment it is loaded into."""


class _OpaqueError(Exception):
    """An attribute that is not plain data."""


def native_state(env: Any) -> dict[str, Any] | None:
    """The state of an environment with its wrappers; None where it has parts that cannot be read."""
    writer = _Writer()
    try:
        return {"layers": [writer.layer(layer) for layer in layers(env)]}
    except _OpaqueError:
        return None


def load_native(env: Any, state: dict[str, Any]) -> None:
    """Put a state of `native_state` into an environment of the same kind.

    Raises:
        NativeStateError: another kind of environment or wrapper chain.
    """
    chain = layers(env)
    if len(chain) != len(state["layers"]):
        raise NativeStateError(
            f"state of {len(state['layers'])} wrapper layers given; {env} has {len(chain)}"
        )
    for layer, saved in zip(chain, state["layers"], strict=True):
        if saved["class"] != _name(layer):
            raise NativeStateError(
                f"state of {saved['class']} given for {_name(layer)}; make the same environment and wrappers"
            )
        if "own" in saved:
            layer.load_state_dict(saved["own"])
        else:
            _load_attributes(layer, saved["attributes"])


def _name(value: Any) -> str:
    return f"{_module(value)}.{type(value).__qualname__}"


def _module(value: Any) -> str:
    return str(getattr(type(value), "__module__", ""))  # classes of some C extensions have none


def _speaks_for_itself(layer: Any) -> bool:
    """Whether it offers `state_dict` and `load_state_dict` (those of nn.Module are about its parameters)."""
    module = isinstance(layer, torch.nn.Module) and type(layer).state_dict is torch.nn.Module.state_dict
    return not module and all(
        callable(getattr(layer, name, None)) for name in ("state_dict", "load_state_dict")
    )


class _Writer:
    """Encodes values; remembers objects and memory it has met, so that sharing is noticed."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.memory: set[int] = set()
        self.secrets = environment_secrets()
        self.kept: list[Any] = []  # keeps what is in `seen` alive: an id is only unique among the living

    def layer(self, layer: Any) -> dict[str, Any]:
        """One wrapper or the base environment."""
        if _speaks_for_itself(layer):
            own = layer.state_dict()
            if own is None:
                raise _OpaqueError(_name(layer))
            return {"class": _name(layer), "own": own}
        self._first_time(layer)
        return {
            "class": _name(layer),
            "attributes": self._attributes(layer, skip="env" if isinstance(layer, WRAPPERS) else None),
        }

    def _attributes(self, holder: Any, skip: str | None = None) -> dict[str, Any]:
        classes = type(holder).__mro__[:-1]
        if not all(cls.__flags__ & _HEAP_TYPE for cls in classes) or any(
            cls.__dict__.get("__slots__") for cls in classes
        ):
            raise _OpaqueError(_name(holder))
        rendering = _module(holder).startswith("gymnasium.")
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
                raise _OpaqueError(_name(value))
            return value
        if isinstance(value, (np.ndarray, torch.Tensor)):
            return self._array(value)
        if isinstance(value, Enum):
            if _enum(_name(value)) is not type(value):
                raise _OpaqueError(_name(value))
            return {TAG: "enum", "class": _name(value), "name": value.name}
        if type(value) in (list, tuple, dict, OrderedDict, deque):
            return self._container(value)
        if isinstance(value, _CONSTANTS) or _constant_function(value, self.seen):
            return {TAG: "constant"}
        if inside:
            raise _OpaqueError(_name(value))
        return self._in_place(value)

    def _in_place(self, value: Any) -> Any:
        """What is restored in place: generators, spaces, simulations, Python objects."""
        if isinstance(value, Space):
            return {TAG: "space", "rng": [_space_rng(space) for space in _all_spaces(value)]}
        if native_mujoco.handles(value):
            return {TAG: "mujoco", **native_mujoco.encode(value)}
        rng = isinstance(value, (np.random.Generator, np.random.RandomState, random.Random, torch.Generator))
        if not rng and not hasattr(value, "__dict__"):
            raise _OpaqueError(_name(value))
        if not self._first_time(value):
            return {TAG: "seen"}
        return (
            _encode_rng(value)
            if rng
            else {TAG: "object", "class": _name(value), "attributes": self._attributes(value)}
        )

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
                raise _OpaqueError(_name(value))
            self._own_memory(value.untyped_storage().data_ptr() if value.numel() else id(value))
            return value.clone()
        root = value
        while isinstance(root.base, np.ndarray):
            root = root.base
        if root.base is not None or type(value) is not np.ndarray or value.dtype.kind not in "biufSU":
            raise _OpaqueError(_name(value))
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
        self.seen.add(id(value))
        self.kept.append(value)
        return True


def _constant_function(value: Any, known: set[int]) -> bool:
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
    return _module(value).partition(".")[0] == "pygame" or type(value).__name__ == "MujocoRenderer"


def _encode_rng(value: Any) -> dict[str, Any]:
    if isinstance(value, np.random.Generator):
        return {TAG: "rng", "class": type(value.bit_generator).__name__, "state": value.bit_generator.state}
    if isinstance(value, np.random.RandomState):
        return {TAG: "rng", "class": "RandomState", "state": value.get_state(legacy=False)}
    if isinstance(value, torch.Generator):
        return {TAG: "rng", "class": "torch", "state": value.get_state()}
    if type(value) is not random.Random:  # SystemRandom and kin have no state to give
        raise _OpaqueError(_name(value))
    return {TAG: "rng", "class": "Random", "state": value.getstate()}


def _all_spaces(space: Space[Any]) -> list[Space[Any]]:
    inner: Any = getattr(space, "spaces", ())
    inner = list(inner.values()) if isinstance(space, spaces.Dict) else list(inner)
    return [space, *(leaf for child in inner for leaf in _all_spaces(child))]


def _space_rng(space: Space[Any]) -> Any:
    return None if space._np_random is None else _encode_rng(space._np_random)


def _load_attributes(holder: Any, saved: dict[str, Any]) -> None:
    for key, data in saved.items():
        current = (
            inspect.getattr_static(holder, key, _ABSENT) if key not in vars(holder) else vars(holder)[key]
        )
        value = _decode(current, data, f"{_name(holder)}.{key}")
        if value is not current:
            vars(holder)[key] = value
    for key in [
        key
        for key in vars(holder)
        if key not in saved and not (key == "env" and isinstance(holder, WRAPPERS))
    ]:
        del vars(holder)[key]  # set since: it was not there when the state was taken


def _decode(current: Any, data: Any, where: str) -> Any:
    """The value an attribute shall have; objects, generators and spaces are changed in place."""
    if isinstance(data, (list, tuple)):
        return type(data)(_decode(_item(current, i), item, where) for i, item in enumerate(data))
    if isinstance(data, np.ndarray):
        return data.copy()
    if isinstance(data, torch.Tensor):
        return data.to(current.device, copy=True) if isinstance(current, torch.Tensor) else data.clone()
    if not isinstance(data, dict):
        return data
    items = data.get("items")
    match data[TAG]:
        case "constant" | "seen":
            if current is _ABSENT:
                raise NativeStateError(f"{where} held a function, class or spec that is not there now")
            return current
        case "enum":
            return _enum(data["class"])[data["name"]]
        case "dict" | "OrderedDict":
            keys = [_decode(_ABSENT, key, where) for key, _ in items or ()]
            pairs = [
                (key, _decode(_item(current, key), v, where))
                for key, (_, v) in zip(keys, items or (), strict=True)
            ]
            return dict(pairs) if data[TAG] == "dict" else OrderedDict(pairs)
        case "deque":
            return deque(
                (_decode(_item(current, i), item, where) for i, item in enumerate(items or ())),
                data["maxlen"],
            )
        case "text":
            raw = np.frombuffer(bytes.fromhex(data["data"]), np.dtype(data["dtype"]))
            return raw.reshape(data["shape"]).copy()
        case "rng":
            return _load_rng(current, data)
        case "space":
            for space, rng in zip(_all_spaces(current), data["rng"], strict=True):
                holder: Any = space
                holder._np_random = None if rng is None else _load_rng(holder._np_random, rng)
            return current
    return _decode_object(current, data, where)


def _item(current: Any, key: Any) -> Any:
    """The entry that a container has now, where it has one."""
    try:
        return current[key]
    except (TypeError, IndexError, KeyError):
        return _ABSENT


def _enum(path: str) -> Any:
    """The enum class of a dotted name, if its module is loaded and it can be found there."""
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and issubclass(found, Enum) else None


def _decode_object(current: Any, data: dict[str, Any], where: str) -> Any:
    if data[TAG] == "mujoco":
        native_mujoco.load(current, data)
        return current
    if current is _ABSENT or data["class"] != _name(current):
        found = "nothing" if current is _ABSENT else _name(current)
        raise NativeStateError(f"{where} is {found} here and was {data['class']} when the state was taken")
    _load_attributes(current, data["attributes"])
    return current


def _load_rng(current: Any, data: dict[str, Any]) -> Any:
    kind, state = data["class"], data["state"]
    if kind == "Random":
        current = current if type(current) is random.Random else random.Random()
        version, internal, gauss = state
        current.setstate((version, tuple(internal), gauss))
    elif kind == "RandomState":
        current = current if isinstance(current, np.random.RandomState) else np.random.RandomState()
        current.set_state(state)
    elif kind == "torch":
        current = current if isinstance(current, torch.Generator) else torch.Generator()
        current.set_state(state)
    else:
        if not (isinstance(current, np.random.Generator) and type(current.bit_generator).__name__ == kind):
            current = np.random.Generator(getattr(np.random, kind)())
        current.bit_generator.state = state
    return current
