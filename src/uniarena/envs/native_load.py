"""Putting native state, plain data that `envs.native` wrote, into an environment of the same kind."""

from __future__ import annotations

import inspect
import random
import sys
from collections import OrderedDict, deque
from enum import Enum
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from uniarena.envs import native_mujoco
from uniarena.envs.column import WRAPPERS, layers

TAG = "$"
_ABSENT = object()


class NativeStateError(ValueError):
    """A state that does not fit the environment it is loaded into."""


def load_native(env: Any, state: dict[str, Any]) -> None:
    """Put a state of `native_state` into an environment of the same kind.

    Raises:
        NativeStateError: another kind of environment or wrapper chain.
    """
    chain, reader = layers(env), _Reader()
    if len(chain) != len(state["layers"]):
        raise NativeStateError(
            f"state of {len(state['layers'])} wrapper layers given; {env} has {len(chain)}"
        )
    for layer, saved in zip(chain, state["layers"], strict=True):
        if saved["class"] != name_of(layer):
            raise NativeStateError(
                f"state of {saved['class']} given for {name_of(layer)}; make the same environment and wrappers"
            )
        if "own" in saved:
            layer.load_state_dict(saved["own"])
        else:
            reader.keep(saved, layer)
            reader.attributes(layer, saved["attributes"])


def name_of(value: Any) -> str:
    """The dotted name of a value's class."""
    return f"{module_of(value)}.{type(value).__qualname__}"


def module_of(value: Any) -> str:
    """The module of a value's class; classes of some C extensions have none."""
    return str(getattr(type(value), "__module__", ""))


def enum_of(path: str) -> Any:
    """The enum class of a dotted name, if its module is loaded and it can be found there."""
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and issubclass(found, Enum) else None


def all_spaces(space: Space[Any]) -> list[Space[Any]]:
    """A space and all those inside it."""
    inner: Any = getattr(space, "spaces", ())
    inner = list(inner.values()) if isinstance(space, spaces.Dict) else list(inner)
    return [space, *(leaf for child in inner for leaf in all_spaces(child))]


class _Reader:
    """Decodes values; remembers what it restored, so that what was one object is one again.

    Attributes:
        known: number that the state gives to an object → that object, restored. (States of earlier versions have no
            numbers; what two attributes shared then stays what each of them has now.)
    """

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}

    def keep(self, data: dict[str, Any], value: Any) -> None:
        """Remember what the object of this entry is here."""
        if "id" in data:
            self.known[data["id"]] = value

    def attributes(self, holder: Any, saved: dict[str, Any]) -> None:
        """Give an object the attributes that were saved, and no others."""
        for key, data in saved.items():
            here = vars(holder)
            current = here[key] if key in here else inspect.getattr_static(holder, key, _ABSENT)
            value = self.decode(current, data, f"{name_of(holder)}.{key}")
            if value is not current:
                here[key] = value
        wrapped = "env" if isinstance(holder, WRAPPERS) else None
        for key in [key for key in vars(holder) if key not in saved and key != wrapped]:
            del vars(holder)[key]  # set since: it was not there when the state was taken

    def decode(self, current: Any, data: Any, where: str) -> Any:
        """The value an attribute shall have; objects, generators and spaces are changed in place."""
        if isinstance(data, (list, tuple)):
            return type(data)(self.decode(_item(current, i), item, where) for i, item in enumerate(data))
        if isinstance(data, np.ndarray):
            return data.copy()
        if isinstance(data, torch.Tensor):
            return data.to(current.device, copy=True) if isinstance(current, torch.Tensor) else data.clone()
        if not isinstance(data, dict):
            return data
        match data[TAG]:
            case "constant" | "seen":
                current = self.known.get(data.get("id", -1), current)
                if current is _ABSENT:
                    raise NativeStateError(f"{where} held a function, class or spec that is not there now")
                return current
            case "enum":
                return enum_of(data["class"])[data["name"]]
            case "dict" | "OrderedDict" | "deque":
                return self._container(current, data, where)
            case "text":
                raw = np.frombuffer(bytes.fromhex(data["data"]), np.dtype(data["dtype"]))
                return raw.reshape(data["shape"]).copy()
            case "rng":
                rng = _load_rng(_ABSENT if self._is_another(current, data) else current, data)
                self.keep(data, rng)
                return rng
            case "space":
                for space, state in zip(all_spaces(current), data["rng"], strict=True):
                    holder: Any = space
                    holder._np_random = None if state is None else _load_rng(holder._np_random, state)
                return current
            case "mujoco":
                native_mujoco.load(current, data)
                return current
        return self._object(current, data, where)

    def _container(self, current: Any, data: dict[str, Any], where: str) -> Any:
        items = data["items"] or ()
        if data[TAG] == "deque":
            decoded = (self.decode(_item(current, i), item, where) for i, item in enumerate(items))
            return deque(decoded, data["maxlen"])
        keys = [self.decode(_ABSENT, key, where) for key, _ in items]
        pairs = [
            (key, self.decode(_item(current, key), v, where)) for key, (_, v) in zip(keys, items, strict=True)
        ]
        return dict(pairs) if data[TAG] == "dict" else OrderedDict(pairs)

    def _object(self, current: Any, data: dict[str, Any], where: str) -> Any:
        if current is _ABSENT or data["class"] != name_of(current):
            found = "nothing" if current is _ABSENT else name_of(current)
            raise NativeStateError(
                f"{where} is {found} here and was {data['class']} when the state was taken"
            )
        if self._is_another(current, data):
            raise NativeStateError(
                f"{where} is an object that another attribute holds too; it was one of its own when the state was taken"
            )
        self.keep(data, current)
        self.attributes(current, data["attributes"])
        return current

    def _is_another(self, current: Any, data: dict[str, Any]) -> bool:
        """Whether this object is the restored one of another number: to change it would spoil that one."""
        return "id" in data and any(value is current for value in self.known.values())


def _item(current: Any, key: Any) -> Any:
    """The entry that a container has now, where it has one."""
    try:
        return current[key]
    except (TypeError, IndexError, KeyError):
        return _ABSENT


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
