"""Files of records without TensorFlow: TFRecord, ArrayRecord, and the tf.train.Example inside of a record.

TFRecord: length (uint64), masked CRC-32C of it, the bytes, masked CRC-32C of them (tensorflow/core/lib/io).
The only file that imports array_record and crc32c.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from uniarena.data.errors import EXTRA, DataError, refuse_void

LONGEST = 2**32
"""Bytes of a record; a longer one means that what was read is no length."""
_AT_ONCE = 16
"""Array records read together."""


@cache
def _crc32c() -> Any:
    try:
        from crc32c import crc32c
    except ImportError as error:
        raise DataError(
            "TFRecord files need the package crc32c, which is not installed", hint=EXTRA
        ) from error
    return crc32c


def _masked(data: bytes) -> int:
    crc = int(_crc32c()(data))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def tf_records(path: Path) -> Iterator[bytes]:
    """The records of a TFRecord file, plain or gzipped, with both checksums compared.

    Raises:
        DataError: cut short or damaged, with the record.
    """
    _crc32c()
    with path.open("rb") as plain:
        zipped = plain.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            yield from _framed(file, path)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"is cut short or damaged ({error})", path, "fetch or copy it again") from error


def _framed(file: Any, path: Path) -> Iterator[bytes]:
    number = 0
    while head := file.read(12):
        where = f"{path}, record {number}"
        if len(head) < 12:
            raise DataError(
                "the file is cut short within the length of a record", where, "fetch or copy it again"
            )
        length, crc = struct.unpack("<QI", head)
        if _masked(head[:8]) != crc or length > LONGEST:
            raise DataError(
                "the length of a record is damaged, or this is no TFRecord file",
                where,
                "fetch or copy it again",
            )
        data, tail = file.read(length), file.read(4)
        if len(data) < length or len(tail) < 4:
            raise DataError("the file is cut short within a record", where, "fetch or copy it again")
        if _masked(data) != struct.unpack("<I", tail)[0]:
            raise DataError("the record is damaged: its checksum differs", where, "fetch or copy it again")
        yield data
        number += 1


def array_records(path: Path) -> Iterator[bytes]:
    """The records of an ArrayRecord file.

    Raises:
        DataError: cut short or damaged, or the package is missing.
    """
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        raise DataError(
            "ArrayRecord files need the package array-record, which is not installed", hint=EXTRA
        ) from error
    refuse_void(path)
    try:
        reader = ArrayRecordReader(str(path))
        count = reader.num_records()
        for start in range(0, count, _AT_ONCE):
            yield from reader.read(start, min(count, start + _AT_ONCE))
        reader.close()
    except (RuntimeError, ValueError, IndexError) as error:
        raise DataError(
            f"cannot be read as an ArrayRecord file: {error}", path, "fetch or copy it again"
        ) from error


def write_tf_records(path: Path, records: Iterable[bytes]) -> None:
    """Write a TFRecord file."""
    with path.open("wb") as file:
        for data in records:
            length = struct.pack("<Q", len(data))
            file.write(length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data)))


@cache
def _example() -> Any:
    """The message class tf.train.Example, described here so that no package has to bring it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="uniarena/example.proto", package="uniarena", syntax="proto3"
    )

    def message(parent: Any, name: str, *fields: tuple[str, int, Any, Any, str]) -> Any:
        made = (
            parent.message_type.add(name=name)
            if hasattr(parent, "message_type")
            else parent.nested_type.add(name=name)
        )
        for title, number, kind, label, of in fields:
            made.field.add(name=title, number=number, type=kind, label=label, type_name=of or None)
        return made

    one, many, inner = field.LABEL_OPTIONAL, field.LABEL_REPEATED, field.TYPE_MESSAGE
    message(file, "BytesList", ("value", 1, field.TYPE_BYTES, many, ""))
    message(file, "FloatList", ("value", 1, field.TYPE_FLOAT, many, ""))
    message(file, "Int64List", ("value", 1, field.TYPE_INT64, many, ""))
    lists = [("bytes_list", 1, "BytesList"), ("float_list", 2, "FloatList"), ("int64_list", 3, "Int64List")]
    feature = message(file, "Feature", *((n, k, inner, one, f".uniarena.{of}") for n, k, of in lists))
    feature.oneof_decl.add(name="kind")
    for each in feature.field:
        each.oneof_index = 0
    features = message(file, "Features", ("feature", 1, inner, many, ".uniarena.Features.FeatureEntry"))
    entry = message(
        features,
        "FeatureEntry",
        ("key", 1, field.TYPE_STRING, one, ""),
        ("value", 2, inner, one, ".uniarena.Feature"),
    )
    entry.options.map_entry = True
    message(file, "Example", ("features", 1, inner, one, ".uniarena.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("uniarena.Example"))


def decode(data: bytes, where: str) -> dict[str, np.ndarray | list[bytes]]:
    """Name → values of an Example: float32 `[N]`, int64 `[N]`, or a list of bytes.

    Raises:
        DataError: the bytes are no Example.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        example = _example().FromString(data)
    except DecodeError as error:
        raise DataError(
            "a record is no tf.train.Example", where, "write the data as TFDS writes RLDS"
        ) from error
    found: dict[str, np.ndarray | list[bytes]] = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind == "float_list":
            found[name] = np.array(feature.float_list.value, np.float32)
        elif kind == "int64_list":
            found[name] = np.array(feature.int64_list.value, np.int64)
        else:
            found[name] = list(feature.bytes_list.value)
    return found


def encode(features: Mapping[str, np.ndarray | list[bytes]]) -> bytes:
    """The Example of name → values; floats are written as float32, other numbers and flags as int64."""
    example = _example()()
    for name, values in features.items():
        feature = example.features.feature[name]
        if isinstance(values, list):
            feature.bytes_list.value.extend(values)
        elif values.dtype.kind == "f":
            feature.float_list.value.extend(values.ravel().tolist())
        else:
            feature.int64_list.value.extend(values.astype(np.int64).ravel().tolist())
    return bytes(example.SerializeToString(deterministic=True))
