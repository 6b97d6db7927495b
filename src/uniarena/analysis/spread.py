"""How fast several processes step an environment, each a part of it, as producers do."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from uniarena.analysis.rates import Clock, Rate, environment_rate
from uniarena.config import ConfigError
from uniarena.envs.faults import WorkerFault
from uniarena.envs.protocol import Env
from uniarena.envs.worker_link import OURS, Link, deadline, shut
from uniarena.sampling.producer import serve_calls

_PATIENCE_S = 60.0


@dataclass(frozen=True)
class _Part:
    """What each process steps."""

    make: Callable[[], Env]
    clock: Clock
    env_id: str = "the environment"


class Stepper:
    """An environment that is stepped by random actions in this process."""

    def __init__(self, part: _Part) -> None:
        self.env, self.clock = part.make(), part.clock
        if self.env.device.type != "cpu":
            raise ConfigError(f"it lives on {self.env.device}, and producers share main memory alone")

    def begin(self) -> None:
        """There is nothing to tell."""

    def behind(self, connection: Connection) -> None:
        """Nothing follows."""

    def rate(self, seconds: float, seed: int) -> tuple[Rate, float]:
        """Steps for about so long → and the processor's seconds."""
        before = time.process_time()
        found = environment_rate(self.env, seconds, self.clock, seed)
        return found, time.process_time() - before

    def close(self) -> None:
        self.env.close()


def spread_rate(make: Callable[[], Env], processes: int, seconds: float, clock: Clock) -> tuple[Rate, float]:
    """Steps of all processes together, at the same time → and how many cores they had.

    Args:
        make: gives each its environment.

    Raises:
        ConfigError: it cannot be made or stepped there; the message is one line.
    """
    context = multiprocessing.get_context()
    links = [
        Link(f"{OURS}producer-{k}", _step, _Part(make, clock), None, context, True) for k in range(processes)
    ]
    try:
        for link in links:
            link.start()
        for link in links:
            link.started(_PATIENCE_S)
        for number, link in enumerate(links):
            link.ask("rate", seconds, number)
        found: list[tuple[Rate, float]] = [link.answer(deadline(seconds + _PATIENCE_S)) for link in links]
    except WorkerFault as fault:
        raise ConfigError(f"a process of its own {fault.what.splitlines()[0]}") from fault
    finally:
        shut(links)
    longest = max(rate.seconds for rate, _ in found)
    return Rate(sum(rate.count for rate, _ in found), longest), sum(cpu for _, cpu in found) / longest


def _step(connection: Connection, trace: Connection, part: Any, block: Any, guarded: bool) -> None:
    """The life of such a process."""
    serve_calls(
        connection,
        trace,
        guarded,
        lambda: Stepper(cloudpickle.loads(part) if isinstance(part, bytes) else part),
    )
