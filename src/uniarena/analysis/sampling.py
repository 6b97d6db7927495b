"""Which way of stepping environments is the fastest here: a table that is measured, and what to write for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from uniarena.analysis.rates import Clock, Rate, environment_rate
from uniarena.analysis.spread import spread_rate
from uniarena.config import ConfigError, WorkersConfig
from uniarena.envs import WorkerError
from uniarena.envs.protocol import Env

Make = Callable[[int, str | WorkersConfig], Env]
"""(number of environments, vectorization) → environment."""

MODES = ("serial", "sync", "async", "native", "envpool", "tensor")
PRODUCERS = "producers"
"""Not a form of the environment: `sampling: {type: pipelined, producers: n}`, each with its part in its plain form."""
WORTH_IT = 1.25
"""What is this much faster than the plain way is worth a key in the config; less is lost in a machine's noise."""
WORKERS_PAY_S = 1e-3
"""Seconds of one environment step from about which worker processes pay for their switches."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Row:
    """One way of stepping so many environments.

    Attributes:
        num_envs, mode: as in the config; `producers` for several of `sampling: pipelined`.
        processes: of `async` and `producers`; None: without.
        rate: environment steps and seconds; None: there is no such form of the environment.
        why: then, what it said.
        cores: that producers had in the middle.
    """

    num_envs: int
    mode: str
    processes: int | None = None
    rate: Rate | None = None
    why: str = ""
    cores: float = 0.0

    @property
    def name(self) -> str:
        if self.mode == PRODUCERS:
            return f"{self.processes} producers"
        return self.mode if self.processes is None else f"{self.mode}, {self.processes} processes"

    @property
    def per_second(self) -> float:
        return 0.0 if self.rate is None else self.rate.per_second


@dataclass(frozen=True)
class Advice:
    """What to write, and why.

    Attributes:
        environment: keys of the section `environment`.
        sampling: keys of the section `sampling`.
        training: keys of the section `training`.
        reasons: a sentence each.
    """

    environment: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    sampling: dict[str, Any] = field(default_factory=dict)

    def yaml(self) -> str:
        """The lines for the config."""
        lines = []
        for section in ("environment", "sampling", "training"):
            keys = getattr(self, section)
            lines += [f"{section}:"] if keys else []
            for key, value in keys.items():
                inner = ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else ""
                lines.append(f"  {key}: {{{inner}}}" if inner else f"  {key}: {value}")
        return "\n".join(lines)


def measure(
    make: Make, counts: Sequence[int], seconds: float, clock: Clock = time.perf_counter
) -> Iterator[Row]:
    """Every mode with every number of environments, for about `seconds` each; what does not exist says why."""
    absent: dict[str, str] = {}
    for count in counts:
        for mode in MODES:
            for processes in _processes(count) if mode == "async" else [None]:
                if mode in absent:
                    yield Row(count, mode, processes, None, absent[mode])
                    continue
                how: str | WorkersConfig = mode if processes is None else WorkersConfig(processes=processes)
                try:
                    env = make(count, how)
                except (ConfigError, WorkerError) as error:
                    absent[mode] = str(error.args[0]).strip().splitlines()[0]
                    yield Row(count, mode, processes, None, absent[mode])
                    continue
                try:
                    yield Row(count, mode, processes, environment_rate(env, seconds, clock))
                finally:
                    env.close()
        for producers in _spread(count):
            try:
                rate, used = spread_rate(partial(make, count // producers, "auto"), producers, seconds, clock)
            except ConfigError as error:
                yield Row(count, PRODUCERS, producers, None, str(error.args[0]).strip().splitlines()[0])
                continue
            yield Row(count, PRODUCERS, producers, rate, cores=used)


def _spread(count: int) -> list[int]:
    """Numbers of producers to try: two, and one for each core, where the environments can be spread over them."""
    return [n for n in sorted({2, cores()}) if 1 < n <= count and count % n == 0 and cores() > 1]


def _processes(count: int) -> list[int]:
    """Worker processes to try: one for each core, and one for each environment where those are few."""
    found = {min(count, cores())} | ({count} if count <= 4 * cores() else set())
    return sorted(found) if count > 1 else []


def advise(rows: Sequence[Row], num_envs: int | None = None) -> Advice:
    """The rule, from what was measured.

    Args:
        num_envs: how many the config has; None: the number that gave most.

    Raises:
        ValueError: nothing was measured.
    """
    known = [row for row in rows if row.rate is not None and not (row.mode == PRODUCERS and _crowds(row))]
    if not known:
        raise ValueError("no way of stepping this environment could be measured")
    if num_envs is None:
        num_envs = _settled(known).num_envs
    at = [row for row in known if row.num_envs == num_envs] or known
    chosen = _settled(at)
    keys: dict[str, Any] = {"num_envs": chosen.num_envs}
    if chosen.mode == PRODUCERS:
        beside = {"type": "pipelined", "producers": chosen.processes}
        keys["vectorization"] = "auto"
        return Advice(keys, {}, tuple(_reasons(known, at, chosen)), beside)
    keys["vectorization"] = chosen.mode
    if chosen.processes is not None:
        keys["workers"] = {"processes": chosen.processes}
    return Advice(keys, {}, tuple(_reasons(known, at, chosen)))


def _crowds(row: Row) -> bool:
    """Whether producers leave no core to the learner."""
    return row.cores + 1.0 > cores() + 0.25


def _settled(rows: Sequence[Row]) -> Row:
    """The plainest way, with the fewest environments, where it comes near the fastest; else the fastest."""
    best = max(rows, key=lambda row: row.per_second)
    count = min(row.num_envs for row in rows if _near(row, best))
    best = max((row for row in rows if row.num_envs == count), key=lambda row: row.per_second)
    near = [row for row in rows if row.num_envs == count and _near(row, best)]
    plain = [row for row in near if row.mode == MODES[0]]
    inside = [row for row in near if row.mode != PRODUCERS]
    return plain[0] if plain else max(inside or near, key=lambda row: row.per_second)


def _near(row: Row, best: Row) -> bool:
    return row.per_second * WORTH_IT >= best.per_second


def _reasons(known: Sequence[Row], at: Sequence[Row], chosen: Row) -> Iterator[str]:
    others = [row for row in at if row.mode == "serial" and row is not chosen]
    if others:
        times = chosen.per_second / others[0].per_second
        give = "give" if chosen.mode == PRODUCERS else "gives"
        yield f"{chosen.name} {give} {chosen.per_second:,.0f} steps/s, {times:.1f} times as many as serial."
    else:
        yield f"{chosen.name} gives {chosen.per_second:,.0f} steps/s."
    if chosen.mode == PRODUCERS:
        yield f"They use {chosen.cores:.1f} of {cores()} cores, so one is left to the learner."
    serial = [row for row in known if row.mode == "serial"]
    workers = [row for row in at if row.mode == "async"]
    if serial and workers:
        step = 1.0 / max(row.per_second for row in serial)
        pays = max(row.per_second for row in workers) > max(r.per_second for r in [*serial, *others])
        side = "above" if step >= WORKERS_PAY_S else "below"
        yield (
            f"One environment step takes {_duration(step)}, {side} the {_duration(WORKERS_PAY_S)} from about which "
            f"worker processes pay; measured here, they {'do' if pays else 'do not'}."
        )


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


@dataclass(frozen=True)
class ThreadRow:
    """Torch with so many threads.

    Attributes:
        threads: how many.
        act: policy steps of all environments.
        update: updates.
    """

    threads: int
    act: Rate
    update: Rate


def advise_threads(rows: Sequence[ThreadRow]) -> tuple[int, str]:
    """How many threads, and why: the fewest whose updates come near the fastest."""
    best = max(row.update.per_second for row in rows)
    near = min((r for r in rows if r.update.per_second * WORTH_IT >= best), key=lambda row: row.threads)
    shown = ", ".join(f"{_duration(1 / row.update.per_second)} with {row.threads}" for row in rows)
    return (
        near.threads,
        f"An update takes {shown} torch threads; more that gain less than 25 % are not worth a core.",
    )


@dataclass(frozen=True)
class Tuning:
    """What `uniarena tune-sampling` found."""

    env_id: str
    rows: tuple[Row, ...]
    threads: tuple[ThreadRow, ...]
    advice: Advice

    def to_json(self) -> dict[str, Any]:
        """Rows by number of environments, then in the order of `MODES`."""
        rows = [
            {
                "num_envs": row.num_envs,
                "vectorization": row.mode,
                "processes": row.processes,
                "steps_per_s": None if row.rate is None else round(row.per_second, 1),
                "why_not": row.why or None,
            }
            for row in self.rows
        ]
        threads = [
            {
                "threads": row.threads,
                "acts_per_s": round(row.act.per_second, 2),
                "updates_per_s": round(row.update.per_second, 3),
            }
            for row in self.threads
        ]
        return {"env": self.env_id, "rows": rows, "threads": threads, "advice": asdict(self.advice)}
