"""Nested plain data ⇄ JSON, with tensors and arrays set aside by name. Every value comes back as it was, bit
for bit.
"""

from __future__ import annotations

import copy
import enum
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

TAG = "$"
_EXACT_INT = 2**53  # what every JSON reader keeps exact
_TORCH_DTYPES = frozenset(
    getattr(torch, name)
    for name in "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()  # noqa: SIM905
)
_NUMPY_DTYPES = frozenset(np.dtype(code) for code in ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8"))
_DTYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)}
_PLAIN_KINDS = "biufcSUmM"  # NumPy kinds whose bytes are their value


class Segment(dict[str, Any]):
    """Part of a large state that is written into a file of its own, by name of what it holds.

    Checkpoints side by side share that file as long as the stamp is the same. Whoever changes the content changes the
    stamp. A copy made by something that only knows dicts loses the stamp, and is written like any dict.

    Args:
        content: tensors and arrays by name.
        stamp: at least 16 hexadecimal digits that no other content ever has.
    """

    def __init__(self, content: Mapping[str, Any], stamp: str | None) -> None:
        super().__init__(content)
        self.stamp = stamp

    def __reduce__(self) -> Any:  # what copies it keeps the stamp
        return type(self), (dict(self), self.stamp)

    def __deepcopy__(self, memo: dict[int, Any]) -> Segment:
        return type(self)(copy.deepcopy(dict(self), memo), self.stamp)


class Aside:
    """Tensors taken out of a state, by name: contiguous, on the CPU, none sharing storage with another.

    Attributes:
        segments: stamp and tensors of each segment, in order.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.segments: list[tuple[str, dict[str, Tensor]]] = []
        self._storages: set[int] = set()

    def add(self, data: Tensor, path: str) -> str:
        """Keep `data`; returns the name it got, which is its path unless that is taken."""
        base = path.encode("utf-8", "backslashreplace").decode() or "value"
        name, count = base, 1
        while name in self.tensors or name == "__metadata__":  # reserved by the file format
            count += 1
            name = f"{base}#{count}"
        storage = data.untyped_storage()
        whole = storage.nbytes() == data.numel() * data.element_size()
        kept = data if whole and storage.data_ptr() not in self._storages else data.clone()
        self._storages.add(kept.untyped_storage().data_ptr())
        self.tensors[name] = kept
        return name


def encode(value: Any, path: str, aside: Aside) -> Any:
    """`value` as JSON data; its tensors and arrays are set aside under their dotted path.

    Args:
        value: nested dicts, lists and tuples of tensors, arrays, NumPy scalars, int, float, str, bool and
            None.
        path: where `value` stands, for names and errors.
        aside: takes the tensors.

    Raises:
        TypeError: a value of another kind, with its place.
    """
    if isinstance(value, enum.Enum):
        raise _unsavable(value, path, "save its value or name instead")
    if isinstance(value, Tensor):
        return _encode_tensor(value, path, aside)
    if isinstance(value, np.ndarray):
        return _encode_array(value, path, aside)
    if isinstance(value, np.generic):
        if value.dtype.kind not in _PLAIN_KINDS:
            raise _unsavable(value, path, "save its fields")
        return {TAG: "scalar", "dtype": value.dtype.str, "hex": value.tobytes()[: value.dtype.itemsize].hex()}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if -_EXACT_INT <= value <= _EXACT_INT else {TAG: "int", "hex": hex(value)}
    if isinstance(value, float):
        finite = value - value == 0.0
        return float(value) if finite else {TAG: "float", "hex": struct.pack(">d", value).hex()}
    if isinstance(value, Segment) and value.stamp is not None:
        return _encode_segment(value, path, aside)
    if isinstance(value, Mapping):
        return _encode_mapping(value, path, aside)
    if isinstance(value, list):
        return [encode(item, _join(path, index), aside) for index, item in enumerate(value)]
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return {TAG: "tuple", "items": [encode(item, _join(path, i), aside) for i, item in enumerate(value)]}
    raise _unsavable(value, path, "turn it into dicts, lists, tuples, numbers, strings, arrays or tensors")


def refuse_unsavable(value: Any, path: str) -> None:
    """Raise the TypeError of `encode`, if there is one, and nothing else."""
    encode(value, path, Aside())


def _encode_segment(value: Segment, path: str, aside: Aside) -> dict[str, Any]:
    inside = Aside()
    items = {name: encode(item, name, inside) for name, item in value.items()}
    if inside.segments:
        raise _unsavable(value, path, "a segment cannot hold another")
    aside.segments.append((str(value.stamp), inside.tensors))
    return {TAG: "segment", "in": len(aside.segments) - 1, "items": items}


def _encode_mapping(value: Mapping[Any, Any], path: str, aside: Aside) -> dict[str, Any]:
    if all(type(key) is str for key in value) and TAG not in value:
        return {key: encode(item, _join(path, key), aside) for key, item in value.items()}
    pairs = []
    for key, item in value.items():
        inside = Aside()
        pairs.append([encode(key, _join(path, key), inside), encode(item, _join(path, key), aside)])
        if inside.tensors or inside.segments:
            raise _unsavable(key, path, "a tensor cannot be the key of a dict")
    return {TAG: "dict", "items": pairs}


def _encode_tensor(value: Tensor, path: str, aside: Aside) -> dict[str, Any]:
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise _unsavable(value, path, "save a dense tensor")
    data = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if data.dtype in _TORCH_DTYPES:
        return {TAG: "tensor", "in": aside.add(data, path)}
    name = aside.add(data.reshape(-1).view(torch.uint8), path)
    return {
        TAG: "tensor",
        "in": name,
        "dtype": str(data.dtype).removeprefix("torch."),
        "shape": list(data.shape),
    }


def _encode_array(value: np.ndarray, path: str, aside: Aside) -> dict[str, Any]:
    if value.dtype.kind not in _PLAIN_KINDS or isinstance(value, np.ma.MaskedArray):
        raise _unsavable(value, path, f"arrays of {value.dtype} are not plain numbers or text")
    data = np.asarray(value, order="C")
    if data.dtype in _NUMPY_DTYPES and data.dtype.isnative:
        return {TAG: "array", "in": aside.add(torch.from_numpy(data.copy()), path)}
    raw = torch.from_numpy(np.frombuffer(bytearray(data.tobytes()), dtype=np.uint8))
    name = aside.add(raw, path)
    return {TAG: "array", "in": name, "dtype": data.dtype.str, "shape": list(data.shape)}


OpenSegment = Callable[[int], tuple[Mapping[str, Tensor], str | None]]
"""Number of a segment → its tensors and its stamp."""


def decode(value: Any, tensors: Mapping[str, Tensor], open_segment: OpenSegment | None = None) -> Any:
    """What `encode` was given.

    Raises:
        ValueError, LookupError, TypeError, RuntimeError: `value` was not made by `encode`.
    """
    return _Decoder(tensors, open_segment)(value)


class _Decoder:
    """Every tensor is given out once, as it was put in: a forged state cannot multiply what it holds."""

    def __init__(self, tensors: Mapping[str, Tensor], open_segment: OpenSegment | None = None) -> None:
        self._tensors, self._open = dict(tensors), open_segment
        self._opened: set[int] = set()

    def __call__(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self(item) for item in value]
        if not isinstance(value, dict):
            return value
        if TAG not in value:
            return {key: self(item) for key, item in value.items()}
        return _DECODERS[value[TAG]](self, value)

    def take(self, name: str) -> Tensor:
        return self._tensors.pop(name)

    def tensor(self, value: Mapping[str, Any]) -> Tensor:
        data = self.take(value["in"])
        return data if "dtype" not in value else data.view(_DTYPES[value["dtype"]]).reshape(value["shape"])

    def array(self, value: Mapping[str, Any]) -> np.ndarray:
        data = self.take(value["in"]).numpy()
        if "dtype" not in value:
            return data
        dtype, shape = _plain_dtype(value["dtype"]), value["shape"]
        if dtype.itemsize * math.prod(shape) != data.nbytes:
            raise ValueError(f"{data.nbytes} bytes for an array {shape} of {dtype}")
        return np.ndarray(shape, dtype=dtype, buffer=bytearray(data.tobytes()))

    def scalar(self, value: Mapping[str, Any]) -> Any:
        data, dtype = bytes.fromhex(value["hex"]), _plain_dtype(value["dtype"])
        if dtype.itemsize != len(data):
            raise ValueError(f"{len(data)} bytes for a scalar of {dtype}")
        return np.frombuffer(data, dtype=dtype)[0] if data else dtype.type()

    def segment(self, value: Mapping[str, Any]) -> Segment:
        if self._open is None or value["in"] in self._opened:
            raise ValueError(f"segment {value['in']!r} is not to be had here")
        self._opened.add(value["in"])
        tensors, stamp = self._open(value["in"])
        return Segment(_Decoder(tensors)(value["items"]), stamp)

    def pairs(self, value: Mapping[str, Any]) -> dict[Any, Any]:
        return {decode(key, {}): self(item) for key, item in value["items"]}


def _plain_dtype(text: Any) -> np.dtype[Any]:
    dtype = np.dtype(text) if isinstance(text, str) else None
    if dtype is None or dtype.kind not in _PLAIN_KINDS:
        raise ValueError(f"{text!r} is no dtype of plain numbers or text")
    return dtype


_DECODERS: dict[str, Callable[[_Decoder, Mapping[str, Any]], Any]] = {
    "tensor": _Decoder.tensor,
    "array": _Decoder.array,
    "scalar": _Decoder.scalar,
    "segment": _Decoder.segment,
    "dict": _Decoder.pairs,
    "tuple": lambda decoder, value: tuple(decoder(item) for item in value["items"]),
    "int": lambda decoder, value: int(value["hex"], 16),
    "float": lambda decoder, value: struct.unpack(">d", bytes.fromhex(value["hex"]))[0],
}


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _unsavable(value: Any, path: str, advice: str) -> TypeError:
    kind = type(value)
    return TypeError(
        f"{path or 'the value'} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved; {advice}."
    )
