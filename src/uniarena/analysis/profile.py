"""Where a run's time goes: the parts of its loop in fractions, each side's use of its core, and two floors.

The trainer's own objects are watched while a window of the run goes by (`Watch`, a callback); nothing in the loop knows
of it, nothing is left behind, and what the run computes is the same.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
import torch

from uniarena.analysis.rates import Rate
from uniarena.analysis.stopwatch import OTHER, Stopwatch
from uniarena.sampling import LocalSampler
from uniarena.trainer.callbacks.checkpoint import Checkpoint
from uniarena.trainer.callbacks.evaluate import Evaluate
from uniarena.trainer.callbacks.log import Log
from uniarena.trainer.callbacks.monitor import Monitor
from uniarena.trainer.callbacks.progress import Progress

ENVIRONMENT, ACT, ANNOTATE, SAMPLER, WAITING = "env step", "act", "annotate", "sampler", "waiting"
STORE, TARGETS, UPDATE, BACKWARD, OPTIMIZER = "store", "targets", "update", "backward", "optimizer"
BOOKS, LOGGING, CALLBACKS, EVALUATION, CHECKPOINT = (
    "books",
    "logging",
    "callbacks",
    "evaluation",
    "checkpoint",
)
PHASES = {
    ENVIRONMENT: "stepping the environments, wrappers and worker processes included",
    ACT: "the policy's actions and their noise",
    ANNOTATE: "log-probs of what was done, once a chunk",
    SAMPLER: "writing rows, gathering ends, publishing the policy",
    WAITING: "for the process that gathers experience",
    STORE: "statistics, bonuses, buffer: adding and sampling",
    TARGETS: "values, advantages",
    UPDATE: "forward, loss, minibatches, clipping; gradients by hand",
    BACKWARD: "gradients by autograd",
    OPTIMIZER: "the optimiser's steps",
    BOOKS: "guard, episodes, counters",
    LOGGING: "figures, health, loggers, progress",
    CALLBACKS: "your own callbacks",
    EVALUATION: "as often as the config says",
    CHECKPOINT: "as often as the config says",
    OTHER: "the loop itself",
}
"""Phase → what is in it, in the order in which they are shown."""
COLLECTING = (ENVIRONMENT, ACT, ANNOTATE, SAMPLER)
LEARNING = (STORE, TARGETS, UPDATE, BACKWARD, OPTIMIZER)
_KINDS = {Evaluate: EVALUATION, Checkpoint: CHECKPOINT, Log: LOGGING, Monitor: LOGGING, Progress: LOGGING}
BUSY = 0.95
"""What the busier side should be busy for, of the time."""


@dataclass(frozen=True)
class Side:
    """A thread or process, and the share of the time in which it had a core."""

    name: str
    busy: float


@dataclass(frozen=True)
class Profile:
    """What was found.

    Attributes:
        steps: of the window, in `unit`.
        seconds: by phase, for these; evaluations and checkpoints in the share that the config gives them.
        sides: busiest first; load of other programs takes from them.
        threads: of torch.
        floors: steps/s of environments alone and of updates alone, as they are due for so many steps.
        overhead: share of the window that the stopwatch itself took.
        producer: what the process that gathers experience, where there is one, did of the time: `collecting`, `idle`.
        advice: one sentence.
        unit: of the run's clock: `env_steps`, or `updates` where it learns from data.
    """

    steps: int
    seconds: dict[str, float]
    sides: tuple[Side, ...]
    threads: int
    floors: dict[str, float]
    overhead: float
    producer: dict[str, float] = field(default_factory=dict)
    advice: str = ""
    unit: str = "env_steps"

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.total if self.total > 0 else float("inf")

    def share(self, *phases: str) -> float:
        """Of the time, in [0, 1]."""
        return sum(self.seconds.get(phase, 0.0) for phase in phases) / self.total if self.total > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """The object of `profile.json`."""
        return {
            self.unit: self.steps,
            "steps_per_s": round(self.steps_per_second, 1),
            "shares": {phase: round(self.share(phase), 4) for phase in PHASES if phase in self.seconds},
            "seconds": {phase: round(self.seconds[phase], 4) for phase in PHASES if phase in self.seconds},
            "sides": [asdict(side) for side in self.sides],
            "torch_threads": self.threads,
            "floors_steps_per_s": {name: round(rate, 1) for name, rate in self.floors.items()},
            "overhead": round(self.overhead, 4),
            "producer": {name: round(share, 4) for name, share in self.producer.items()},
            "advice": self.advice,
        }


class Watch:
    """A callback that profiles a window of its run, and then asks it to stop.

    Args:
        steps: length of the window, in the unit of the run's clock.
        clock: of the stopwatch.

    Attributes:
        stopwatch: what it found.
        steps: how many the window had.
        used: side → seconds of a core in the window.
        told: what a sampler that keeps `seconds` of its own said of the window: `waited`, `collecting`, `idle`.
    """

    def __init__(self, steps: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.wanted, self.stopwatch = steps, Stopwatch(clock)
        self.steps = 0
        self.used: dict[str, float] = {}
        self.told: dict[str, float] = {}
        self._begun: int | None = None
        self._warm = 0
        self._before: dict[str, float] = {}
        self._said: dict[str, float] = {}
        self._listeners: dict[type, list[Any]] = {}

    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        """Begin after the second iteration with an update; end when the window is over, whatever else asks to stop."""
        if trainer.should_stop:  # such as early_stop, which is there to be timed
            trainer.should_stop, trainer.stop_reason = False, "finished"
        if self._begun is None:
            self._warm += trainer.counters.updates > 0
            if self._warm >= 2:
                self._begun, self._before = trainer.counters.clock, usage(trainer.sampler)
                self._said = dict(getattr(trainer.sampler, "seconds", {}))
                self.attach(trainer)
                self.stopwatch.start()
            return
        self.steps = trainer.counters.clock - self._begun
        if self.steps >= self.wanted:
            self.stopwatch.stop()
            self.used = _since(self._before, usage(trainer.sampler))
            self.told = _since(self._said, getattr(trainer.sampler, "seconds", {}))
            trainer.request_stop("interrupted")  # for which nobody evaluates

    def on_training_end(self, trainer: Any, event: Any) -> None:
        self.detach(trainer)

    def on_exception(self, trainer: Any, event: Any) -> None:
        self.detach(trainer)

    def attach(self, trainer: Any) -> None:
        """Stand around the trainer's parts."""
        agent, sampler, watch = trainer.agent, trainer.sampler, self.stopwatch.watch
        here = isinstance(sampler, LocalSampler)  # else it is gathered elsewhere, and waited for here
        watch(sampler, "collect", SAMPLER if here else WAITING, whole=not here)
        watch(sampler, "publish", SAMPLER)
        if here:
            watch(sampler.env, "step", ENVIRONMENT)
            watch(sampler.env, "reset", ENVIRONMENT)
            for name, phase in (("act", ACT), ("noise", ACT), ("log_prob", ANNOTATE)):
                watch(agent.actor, name, phase)
        for owner, names in ((agent, ("observe", "refresh")), (agent.buffer, ("sample", "reprioritise"))):
            for name in names:
                watch(owner, name, STORE)
        watch(agent, "update", UPDATE)
        watch(agent.learner, "targets", TARGETS)
        for optimizer in agent.learner.optimizers.values():
            watch(optimizer, "step", OPTIMIZER)
        watch(torch.Tensor, "backward", BACKWARD)
        for name in ("admit", "begin", "end"):
            watch(trainer.guard, name, BOOKS)
        watch(trainer, "_account", BOOKS)
        self._listeners = {kind: list(methods) for kind, methods in trainer._listeners.items()}
        for methods in trainer._listeners.values():
            methods[:] = [self._listener(method) for method in methods]

    def _listener(self, method: Any) -> Any:
        owner = getattr(method, "__self__", None)
        if owner is self:
            return method
        return self.stopwatch.timed(method, _KINDS.get(type(owner), CALLBACKS), whole=True)

    def detach(self, trainer: Any) -> None:
        """Leave nothing behind."""
        self.stopwatch.remove()
        for kind, methods in self._listeners.items():
            trainer._listeners[kind][:] = methods
        self._listeners = {}


def _since(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in now.items()}


def usage(sampler: Any = None) -> dict[str, float]:
    """Seconds of a core so far: of this process's main thread, its other threads, and each of its children.

    Args:
        sampler: those among them that are its `pids` are called producers.
    """
    pids = getattr(sampler, "pids", [])
    producers = dict(
        zip(
            pids, [f"producer {k}" for k in range(len(pids))] if len(pids) > 1 else ["producer"], strict=False
        )
    )
    process, main = psutil.Process(), threading.main_thread().native_id
    found = {"main thread": 0.0}
    for thread in process.threads():
        name = "main thread" if thread.id == main else "other threads"
        found[name] = found.get(name, 0.0) + thread.user_time + thread.system_time
    for child in process.children(recursive=True):
        try:
            times = child.cpu_times()
            name = producers.get(child.pid, f"process {child.pid}")
            found[name] = times.user + times.system
        except psutil.Error:  # it ended meanwhile
            continue
    return found


def sides(used: Mapping[str, float], seconds: float) -> tuple[Side, ...]:
    """Who was how busy, busiest first; children that did nothing are left out."""
    found = [Side(name, spent / seconds) for name, spent in used.items() if seconds > 0]
    kept = [side for side in found if side.busy >= 0.01 or side.name == "main thread"]
    return tuple(sorted(kept, key=lambda side: -side.busy))


def in_proportion(watch: Watch, once: Mapping[str, tuple[float, int | None]]) -> dict[str, float]:
    """Seconds by phase for the window's steps.

    Args:
        once: of evaluation and checkpoint, which are rare: seconds of one, and steps between two (None: never).
    """
    seconds = dict(watch.stopwatch.seconds)
    if "waited" in watch.told and WAITING in seconds:  # the rest of it is taking over what came
        waited = min(watch.told["waited"], seconds[WAITING])
        seconds[SAMPLER] = seconds.get(SAMPLER, 0.0) + seconds[WAITING] - waited
        seconds[WAITING] = waited
    for phase, (each, every) in once.items():
        seconds.pop(phase, None)  # how often it came due in a short window says nothing
        if every:
            seconds[phase] = each * watch.steps / every
    return {phase: seconds[phase] for phase in PHASES if phase in seconds}


def floors(environments: Rate, updates: Rate, steps_per_update: float) -> dict[str, float]:
    """Steps/s of environments alone, and those for which the updates alone would be made."""
    return {"environments": environments.per_second, "updates": updates.per_second * steps_per_update}


def advise(found: Profile, num_envs: int, can_overlap: bool = False) -> str:
    """One sentence: what takes the time, and what to try.

    Args:
        can_overlap: experience is gathered in this process, and could be in another one while this one learns.
    """
    environment, act = found.share(ENVIRONMENT), found.share(ACT, ANNOTATE)
    learning, around = found.share(*LEARNING), found.share(EVALUATION, CHECKPOINT, LOGGING, CALLBACKS)
    step = found.seconds.get(ENVIRONMENT, 0.0) / max(1, found.steps)
    if found.share(WAITING) >= 0.25:
        return (
            f"{found.share(WAITING):.0%} of the time is waiting for experience: environments or acting are the slower "
            "side; `uniarena tune-sampling` shows faster ways of stepping them."
        )
    hidden = min(found.share(*COLLECTING), learning)
    if can_overlap and hidden >= 0.15:
        return (
            f"Gathering is {found.share(*COLLECTING):.0%} of the time and learning {learning:.0%}, one after the "
            f"other: sampling.type=pipelined overlaps them on two cores, which hides up to {hidden:.0%}."
        )
    parts = {"environment": environment, "act": act, "learning": learning, "around": around}
    largest = max(parts, key=lambda name: parts[name])
    if parts[largest] < 0.4:
        return "No part takes most of the time."
    if largest == "environment":
        how = (
            f"a step takes {step * 1e3:.2g} ms, so worker processes may pay: try environment.vectorization=async"
            if step >= 1e-3
            else "a step is too light for worker processes: try a native or tensor form"
        )
        return f"Environments are {environment:.0%} of the time; {how}, and see `uniarena tune-sampling`."
    if largest == "act":
        return (
            f"Acting is {act:.0%} of the time, on {num_envs} row{'s' if num_envs > 1 else ''} at once: more "
            "environments (environment.num_envs) cost it little."
        )
    if largest == "around":
        every = "every_env_steps" if found.unit == "env_steps" else "interval"
        return (
            f"Evaluations, checkpoints, logs and callbacks are {around:.0%} of the time: let them come due less often "
            f"(training.eval_{every}, training.save_{every})."
        )
    return (
        f"Updates are {learning:.0%} of the time: larger minibatches or fewer of them, or a smaller network; nothing "
        "else here can gain much."
    )


def load() -> float:
    """Processes that wanted a core in the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
