"""The pipe between our processes: a byte, or a byte and a message in one piece."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from uniarena.envs import channel


@pytest.mark.parametrize("size", [0, 1, 2**14 - 100, 2**14 - 5, 2**14, 2**14 + 1, 1_000_000])
def test_a_message_of_any_size_arrives_behind_its_byte(size: int) -> None:
    here, there = (channel.Channel(end) for end in multiprocessing.Pipe())
    value = ("x" * size, size)
    sender = threading.Thread(target=here.tell, args=(channel.ASK, channel.pack(value)))
    sender.start()  # the pipe does not hold a large one
    assert there.wait(5.0)
    assert there.hear() == channel.ASK and there.receive() == value
    sender.join()
    there.say(channel.DONE)
    assert here.hear() == channel.DONE
    for end in (here, there):
        end.connection.close()
    assert here.connection.closed
