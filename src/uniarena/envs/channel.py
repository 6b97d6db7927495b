"""Channel: one end of the pipe between an adapter and a worker. A step costs one byte each way."""

from __future__ import annotations

import os
import select
import struct
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

STEP, ASK, CLOSE = b"s", b"a", b"x"
"""What a worker is told: take a step; do what follows in a message; end."""

DONE, TOLD, RAISED = b".", b"t", b"e"
"""What a worker answers: done; done, and a message follows; it raised, and the account of it follows."""

_RAW = os.name == "posix"
_PIECE = 2**14  # bytes of a message that is framed here


def pack(value: Any) -> bytes:
    """A value as a message."""
    packed: bytes = cloudpickle.dumps(value)
    return packed


class Channel:
    """Single bytes, and messages by cloudpickle, which only ever go between our own processes.

    Args:
        connection: an end of `multiprocessing.Pipe()`.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._poll: Any = None
        if _RAW:
            self._fd = connection.fileno()
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN)

    def say(self, word: bytes) -> None:
        """Send one byte.

        Raises:
            ConnectionError: nobody is there to read it.
        """
        if _RAW:
            os.write(self._fd, word)
        else:
            self.connection.send_bytes(word)

    def tell(self, word: bytes, message: bytes) -> None:
        """Send a byte and a message behind it, in one piece: whoever waits wakes up once.

        Raises:
            ConnectionError: nobody is there to read it.
        """
        if not _RAW or len(message) > _PIECE:
            self.say(word)
            self.send(message)
            return
        whole = word + struct.pack("!i", len(message)) + message  # as `Connection.send_bytes` frames it
        sent = os.write(self._fd, whole)
        while sent < len(whole):
            sent += os.write(self._fd, whole[sent:])

    def hear(self) -> bytes:
        """Wait for one byte; empty where the other end is gone."""
        try:
            return os.read(self._fd, 1) if _RAW else self.connection.recv_bytes()
        except (EOFError, ConnectionError):
            return b""

    def wait(self, seconds: float | None) -> bool:
        """Whether something can be heard within that time (None: for ever)."""
        if not _RAW:
            return self.connection.poll(seconds)
        return bool(self._poll.poll(None if seconds is None else max(0.0, 1000.0 * seconds)))

    def send(self, message: bytes) -> None:
        """Send what `pack` made."""
        self.connection.send_bytes(message)

    def receive(self) -> Any:
        """Wait for a message → what was packed into it.

        Raises:
            EOFError, ConnectionError: the other end is gone.
        """
        return cloudpickle.loads(self.connection.recv_bytes())
