"""Tensors in memory that two processes share. It has no name, so it is gone with the last process that maps it."""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
import weakref
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ALIGNMENT = 64  # a cache line


class Place(NamedTuple):
    """Where a tensor lies.

    Attributes:
        block: number of the block of memory.
        offset: bytes from its beginning.
        shape, dtype: of the tensor, which is contiguous.
    """

    block: int
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class SharedMemory:
    """The side that allocates. The other one is given the new blocks by file descriptor, and maps them."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[int, int]] = {}  # address → number, bytes
        self._unsent: list[tuple[int, int, int]] = []  # number, bytes, descriptor
        self._count = 0

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: Any = None) -> Tensor:
        """A zeroed tensor on a block of its own.

        Args:
            device: the CPU, whatever is said: nothing else can be shared.
        """
        size = max(1, torch.Size(shape).numel() * dtype.itemsize)
        descriptor = _new_file(size)
        memory = mmap.mmap(descriptor, size)
        tensor = torch.frombuffer(memory, dtype=torch.uint8)
        address = tensor.data_ptr()
        self._blocks[address] = (self._count, size)
        weakref.finalize(
            memory, self._blocks.pop, address, None
        ).atexit = False  # the next one there is another's
        self._unsent.append((self._count, size, descriptor))
        self._count += 1
        return _view(tensor, Place(0, 0, tuple(shape), dtype))

    def place(self, tensor: Tensor) -> Place | None:
        """Where a tensor lies, or a part of one; None where that is not in this memory as one piece."""
        if not tensor.is_contiguous():
            return None
        start = tensor.untyped_storage().data_ptr()
        found = self._blocks.get(start)
        if found is None:
            return None
        return Place(found[0], tensor.data_ptr() - start, tuple(tensor.shape), tensor.dtype)

    def unsent(self) -> list[tuple[int, int]]:
        """Number and bytes of the blocks that the other side does not know; `send` must follow."""
        return [(number, size) for number, size, _ in self._unsent]

    def send(self, *connections: Connection) -> None:
        """Send the descriptors of what `unsent` listed, behind the message that tells of it, to everyone who maps it.

        Raises:
            ConnectionError: one of them is gone; the others have them.
        """
        waiting, self._unsent = self._unsent, []
        gone: OSError | None = None
        for connection in connections if waiting else ():
            with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as line:
                try:
                    for _, _, descriptor in waiting:
                        reduction.sendfds(line, [descriptor])
                except OSError as error:
                    gone = error
        for _, _, descriptor in waiting:
            os.close(descriptor)
        if gone is not None:
            raise gone


class MappedMemory:
    """The side that was given the memory."""

    def __init__(self) -> None:
        self._blocks: dict[int, Tensor] = {}

    def receive(self, blocks: list[tuple[int, int]], connection: Connection) -> None:
        """Map the blocks that a message told of; their descriptors come behind it.

        Raises:
            EOFError: the other end is gone.
        """
        if not blocks:
            return
        with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as line:
            for number, size in blocks:
                (descriptor,) = reduction.recvfds(line, 1)
                try:
                    self._blocks[number] = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
                finally:
                    os.close(descriptor)

    def tensor(self, place: Place) -> Tensor:
        """What lies there."""
        return _view(self._blocks[place.block], place)

    def keep(self, numbers: set[int]) -> None:
        """Forget every other block."""
        self._blocks = {number: block for number, block in self._blocks.items() if number in numbers}


def lay_out(likes: list[Tensor], copies: int) -> tuple[int, list[list[tuple[int, int]]]]:
    """How `copies` of a list of tensors lie in one block → its bytes, and per copy (start, bytes) of each tensor."""
    offset, plan = 0, []
    for _ in range(copies):
        spans = []
        for like in likes:
            size = like.numel() * like.element_size()
            spans.append((offset, size))
            offset += -(-size // _ALIGNMENT) * _ALIGNMENT
        plan.append(spans)
    return max(1, offset), plan


def views(block: Tensor, likes: list[Tensor], spans: list[tuple[int, int]]) -> list[Tensor]:
    """Tensors like these in a block of bytes."""
    return [
        block[start : start + size].view(like.dtype).view(like.shape)
        for like, (start, size) in zip(likes, spans, strict=True)
    ]


def _view(block: Tensor, place: Place) -> Tensor:
    size = torch.Size(place.shape).numel() * place.dtype.itemsize
    return block[place.offset : place.offset + size].view(place.dtype).view(place.shape)


def _new_file(size: int) -> int:
    """A file descriptor of so many zeros without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("uniarena", os.MFD_CLOEXEC)
    else:
        folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
        with tempfile.TemporaryFile(dir=folder) as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
