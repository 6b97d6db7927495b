"""What surrounds a training loop: signals that stop it, the wall-time limit, messages, the account of a failure."""

from __future__ import annotations

import _thread
import contextlib
import logging
import shlex
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from uniarena import provenance
from uniarena.checkpoint.find import whole_of
from uniarena.envs import UniArenaNotice, WorkerError
from uniarena.trainer.trainer import Trainer

log = logging.getLogger("uniarena")

INTERRUPTED, OUT_OF_TIME = "interrupted", "training.max_wall_time is over"
"""Reasons to stop a run that is not at its end, and can be resumed."""

STOPPING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""Signals that finish the iteration, save and end the run, where the system has them."""

PATIENCE_S = 2.0
"""Seconds that closing may take once a second Ctrl-C was given."""


def note_failure(error: BaseException, trainer: Trainer, folder: Path) -> None:
    """Say where the run stopped and how to go on; keep the whole traceback in the run's log."""
    with contextlib.suppress(OSError), (folder / provenance.LOG).open("a", encoding="utf-8") as file:
        file.write(provenance.redact("".join(traceback.format_exception(error)), code=True))
    steps = f"{trainer.counters.clock:,} {trainer.counters.units}"
    if isinstance(error, Exception) and _from_environment(error):
        error.add_note(f"To look at the environment alone: uniarena check-env {trainer.sampler.env.env_id}")
    whole = whole_of(folder)
    saved = {path.parent.name for path in (folder / "checkpoints").glob("*/manifest.json")}
    if saved == {"0"}:
        error.add_note(
            f"The run stopped at {steps}, and nothing was learned yet: its only checkpoint is of the start. Once the "
            f"fault is mended, begin again; uniarena resume {shlex.quote(str(whole))} does so with the same config"
        )
    elif saved:
        error.add_note(
            f"The run stopped at {steps}. To continue from its last checkpoint: "
            f"uniarena resume {shlex.quote(str(whole))}"
        )
    else:
        error.add_note(
            f"The run stopped at {steps}, before its first checkpoint. Its log: {folder / provenance.LOG}"
        )


def _from_environment(error: Exception) -> bool:
    """Whether the error came up while an environment was stepped or reset, here or in a process that is lost."""
    if isinstance(error, WorkerError):
        return True
    rooms = {Path(frame.filename).parent.name for frame in traceback.extract_tb(error.__traceback__)}
    return "envs" in rooms


@contextlib.contextmanager
def interrupts(trainer: Trainer) -> Iterator[list[int]]:
    """Ctrl-C finishes the iteration and saves; a second one leaves at once with the last checkpoint, also where
    environments hang when they are closed.

    SIGTERM, SIGHUP and SIGUSR1, by which schedulers announce the end, finish and save as well. A signal that comes
    when all is collected, or the run was ended otherwise, interrupts nothing: what is left is to evaluate and save.

    Yields:
        the signals that came, in their order.
    """
    told: list[int] = []
    over_now = threading.Event()

    def handle(number: int, frame: Any) -> None:
        if told and number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            threading.Thread(target=_hurry, args=(over_now,), daemon=True).start()
            raise KeyboardInterrupt
        told.append(number)
        if len(told) > 1:
            return
        over = trainer.should_stop or 0 < trainer.total_env_steps <= trainer.counters.clock
        what = (
            "at the end: evaluating and saving"
            if over
            else "interrupted: finishing the iteration, then saving"
        )
        with contextlib.suppress(OSError, ValueError):  # a terminal that has gone is why SIGHUP comes
            print(f"\n{what} (Ctrl-C again leaves at once)", file=sys.stderr)
        if not over:
            trainer.request_stop(INTERRUPTED)

    with _handled(handle, STOPPING):
        try:
            yield told
        finally:
            over_now.set()


def _hurry(done: threading.Event) -> None:
    """Whoever leaves at once waits for no environment that hangs when it is closed: each is interrupted again."""
    main = threading.main_thread().ident
    while not done.wait(PATIENCE_S):
        if main is not None and hasattr(signal, "pthread_kill"):
            signal.pthread_kill(
                main, signal.SIGINT
            )  # wakes it where it waits, as a signal to the process may not
        else:
            _thread.interrupt_main()


@contextlib.contextmanager
def ended_early() -> Iterator[None]:
    """Until the loop begins there is nothing to save: every signal that ends a run leaves as Ctrl-C does, so that
    environments are closed and an empty folder goes.
    """

    def handle(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    with _handled(handle, STOPPING[1:]):
        yield


@contextlib.contextmanager
def _handled(handle: Callable[[int, Any], None], names: Sequence[str]) -> Iterator[None]:
    """Handle signals by name, where the system has them; those that are ignored, as under `nohup`, stay so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {n: signal.signal(n, handle) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deadline(trainer: Trainer, seconds: float | None) -> Iterator[None]:
    """Ask for a clean stop when the wall time is over."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, trainer.request_stop, args=(OUT_OF_TIME,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def messages(folder: Path, quiet: bool) -> Iterator[None]:
    """Messages go to the run's log and the terminal; notices given as warnings too, each once."""
    close = provenance.setup_logging(folder, quiet=quiet)
    said: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", UniArenaNotice)
        usual = warnings.showwarning

        def show(message: Any, category: type[Warning], *place: Any, **rest: Any) -> None:
            if not issubclass(category, UniArenaNotice):
                usual(message, category, *place, **rest)
            elif str(message) not in said:
                said.add(str(message))
                log.warning(str(message))

        warnings.showwarning = show
        try:
            yield
        finally:
            close()
