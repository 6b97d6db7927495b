"""Runs that are killed at a moment drawn from a seed: at a call of any function, or by the clock from outside.

Every function that a process calls is an event, C functions too. A first, undisturbed process counts the events of
each phase of the run; a moment is one of them, or a time after a phase was entered. Nothing has to be prepared in the
code that is killed, and a kill by event can be repeated.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from gymnasium import spaces

from tests.fakes.envs import CounterEnv
from tests.resume.runs import SERVER, ended, run_command, start
from uniarena.checkpoint import files
from uniarena.sampling import evaluation
from uniarena.sampling.local import LocalSampler
from uniarena.trainer.callbacks.evaluate import Evaluate
from uniarena.trainer.guard.guard import Guard
from uniarena.trainer.trainer import Trainer

PHASES = ("setup", "collect", "update", "evaluation", "checkpoint", "end")
"""Set-up lasts until the loop begins; the end is all that comes after the last iteration. What lies between counts once
a process has written its first checkpoint: a kill before that leaves nothing to go on with.
"""

INSIDE = {
    LocalSampler.collect.__code__: "collect",
    Guard.update.__code__: "update",
    evaluation.evaluate_agent.__code__: "evaluation",
    files.save.__code__: "checkpoint",
}
BEGINS, ENDS = Trainer.fit.__code__, Evaluate.on_training_end.__code__


@dataclass(frozen=True)
class Moment:
    """When a process dies.

    Attributes:
        phase: one of PHASES.
        event: at this event of the phase, counted from 0; None: by the clock.
        entry: by the clock: when the phase was entered for the how many-th time, from 1 …
        delay: … and so many seconds later.
    """

    phase: str
    event: int | None = None
    entry: int = 1
    delay: float = 0.0

    def __str__(self) -> str:
        if self.event is not None:
            return f"killed in {self.phase} at event {self.event}"
        return f"killed {1000 * self.delay:.1f} ms after {self.phase} was entered ({self.entry})"


def draw(rng: random.Random, phase: str, by_clock: bool, counted: Mapping[str, Any]) -> Moment:
    """A moment of a phase; `counted` is what `job` wrote of a whole run."""
    found = counted[phase]
    if not by_clock:
        return Moment(phase, event=rng.randrange(found["events"]))
    mean = found["seconds"] / found["entries"] / 3.0  # it was counting then, which takes longer than the work
    return Moment(phase, entry=rng.randint(1, found["entries"]), delay=rng.uniform(0.0, mean))


def job(
    config: Mapping[str, Any], folder: Path, moment: Moment | None = None, counted: Path | None = None
) -> tuple[int, str]:
    """One job script, for every start: it begins the run, or goes on with it.

    Args:
        moment: when its process is killed; None: never.
        counted: a file to write what there was of each phase into.

    Returns:
        the exit code, and which function a killed process was calling.
    """
    file = folder.with_suffix(".json")
    file.write_text(json.dumps(config), encoding="utf-8")
    words = ("train", str(file), "--run-dir", str(folder), "--resume-if-exists", "--quiet")
    return watched(words, moment, counted)


def watched(
    arguments: tuple[str, ...], moment: Moment | None, counted: Path | None = None
) -> tuple[int, str]:
    """The same for any `uniarena` command."""
    ours, theirs = SERVER.Pipe()
    process = start(_work, arguments, theirs, moment, counted)
    theirs.close()
    try:
        if moment is not None and moment.event is None:
            ours.recv()  # it is in its phase
            process.join(timeout=moment.delay)
            os.kill(process.pid, signal.SIGKILL)
        code = ended(process, "a job")
        return code, _last(ours)
    finally:
        ours.close()


def _last(connection: Any) -> str:
    """What a process told that has ended."""
    try:
        return str(connection.recv())
    except EOFError:
        return ""


def _work(arguments: tuple[str, ...], told: Any, moment: Moment | None, counted: Path | None) -> None:
    watch = Watch(told, moment)
    if moment is not None or counted is not None:
        sys.setprofile(watch)
    try:
        run_command(arguments)
    finally:
        sys.setprofile(None)
        if counted is not None:
            counted.write_text(json.dumps(watch.counted()), encoding="utf-8")
        if moment is not None and moment.event is None:
            told.poll(None)  # it was to be killed, and will be: after its very last act


class Watch:
    """Follows the calls of a process, and ends it at its moment."""

    def __init__(self, told: Any, moment: Moment | None) -> None:
        self.told, self.moment = told, moment
        self.events, self.entries = Counter[str](), Counter[str]()
        self.seconds = Counter[str]()  # of each phase
        self.inside: list[tuple[str, float]] = []  # phases, the outermost first, and when they were entered
        self.saved = False
        self._enter("setup")

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code in INSIDE:
            self._enter(INSIDE[code])
        elif event == "call" and code is BEGINS:
            self._leave()
        elif event == "call" and code is ENDS:
            self._enter("end")
        elif event == "return" and code in INSIDE:
            self._leave()
            self.saved |= INSIDE[code] == "checkpoint"
        for phase, _ in self.inside if event in ("call", "c_call") else ():
            moment = self.moment
            if moment is not None and moment.phase == phase and moment.event == self.events[phase]:
                self.told.send(code.co_qualname if event == "call" else argument.__qualname__)
                os.kill(os.getpid(), signal.SIGKILL)
            self.events[phase] += 1

    def _enter(self, phase: str) -> None:
        if not self.saved and phase in INSIDE.values():
            phase = "before"
        self.inside.append((phase, time.perf_counter()))
        self.entries[phase] += 1
        moment = self.moment
        if (
            moment is not None
            and moment.event is None
            and (moment.phase, moment.entry) == (phase, self.entries[phase])
        ):
            sys.setprofile(None)  # from here on at full speed
            self.told.send("")

    def _leave(self) -> None:
        phase, since = self.inside.pop()
        self.seconds[phase] += time.perf_counter() - since

    def counted(self) -> dict[str, dict[str, float]]:
        """Of each phase: events, entries and seconds."""
        while self.inside:
            self._leave()
        return {
            phase: {
                "events": self.events[phase],
                "entries": self.entries[phase],
                "seconds": self.seconds[phase],
            }
            for phase in PHASES
        }


class Wide(CounterEnv):
    """A counter whose observations are so wide that a replay memory of some hundred of them is large."""

    WIDTH = 2**15

    def __init__(self, length: int = 20) -> None:
        super().__init__(length)
        self.observation_space = spaces.Box(-1.0, 1.0, (self.WIDTH,), np.float32)

    def reset(self, **options: Any) -> Any:
        _, info = super().reset(**options)
        return self._seen(), info

    def step(self, action: int) -> Any:
        _, *rest = super().step(action)
        return self._seen(), *rest

    def _seen(self) -> np.ndarray:
        return self.np_random.random(self.WIDTH, np.float32)
