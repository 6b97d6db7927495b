"""An event file of TensorBoard, written where the figures are: no queue, no thread, a checksum in few calls.

A record is its length (8 bytes), the checksum of that (4), the event, and the checksum of the event (4), little-endian;
checksums are CRC-32C, masked as TFRecord files have them (https://www.tensorflow.org/tutorials/load_data/tfrecord).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import time
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_BLOCK = 512  # bytes that are looked up at once


class EventFile:
    """Appends events to a file of its own; what was written outlives a crash.

    Args:
        folder: made where it is not there.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        place = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self.folder = folder
        self._file = _new(Path(folder) / f"events.out.tfevents.{place}")
        self._shut = weakref.finalize(self, os.close, self._file)
        self._end = 0  # of the last whole record

    def get_logdir(self) -> str:
        """The folder, as torch's writer asks for it."""
        return self.folder

    def add_event(self, event: Any) -> None:
        """Append an `Event`.

        Raises:
            OSError: the disk refuses; of the event nothing stays.
        """
        data = event.SerializeToString()
        head = struct.pack("<Q", len(data))
        record = head + struct.pack("<I", masked(head)) + data + struct.pack("<I", masked(data))
        try:
            left = memoryview(record)
            while left:
                left = left[os.write(self._file, left) :]
        except BaseException:  # of a signal, too: what follows half a record is not read
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
                os.lseek(self._file, self._end, os.SEEK_SET)
            raise
        self._end += len(record)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Close the file; again is harmless."""
        self._file = -1  # its number may soon be that of another file
        self._shut()


def _new(stem: Path) -> int:
    """A file of that name and the first number that is free: a process with this one's number may have been here."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    for number in itertools.count():
        with contextlib.suppress(FileExistsError):
            return os.open(f"{stem}.{number}", flags, 0o666)
    raise AssertionError


def masked(data: bytes) -> int:
    """The checksum as a record holds it: rotated by 15 bits, plus a constant."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C of bytes (RFC 3720, B.4).

    The checksum is linear: that of a block is the exclusive or of what each byte contributes from its place, looked up
    for all at once. What came before is mixed into the first four bytes.
    """
    table, last = _tables()
    state, whole = 0xFFFFFFFF, np.frombuffer(data, np.uint8)
    for start in range(0, len(data), _BLOCK):
        block = whole[start : start + _BLOCK].astype(np.intp)
        if len(block) < 4:
            for byte in block.tolist():
                state = (state >> 8) ^ int(last[(state ^ byte) & 255])
            continue
        block[:4] ^= (state & 255, state >> 8 & 255, state >> 16 & 255, state >> 24)
        block += _offsets()[_BLOCK - len(block) :]
        state = int(np.bitwise_xor.reduce(table.take(block)))
    return state ^ 0xFFFFFFFF


@cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """What byte b contributes from place p of a block, at `256·p + b`; and from the last place, `[256]`."""
    last = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        last = np.where(last & 1, last >> 1 ^ np.uint32(_POLYNOMIAL), last >> 1).astype(np.uint32)
    rows = [last]
    for _ in range(_BLOCK - 1):
        rows.append(rows[-1] >> 8 ^ last[rows[-1] & 255])
    return np.concatenate(rows[::-1]), last


@cache
def _offsets() -> np.ndarray:
    return np.arange(_BLOCK, dtype=np.intp) * 256
