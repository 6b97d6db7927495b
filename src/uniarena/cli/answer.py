"""What a command says: its answer, or what went wrong on one screen, each with an exit code."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DONE, FAILED, BAD_INPUT, NOTHING_TO_DO, INTERRUPTED = 0, 1, 2, 3, 130

# By name: importing the classes would cost what `--help` must not.
_CODES = {
    "BadInput": BAD_INPUT,
    "ConfigError": BAD_INPUT,
    "DataError": BAD_INPUT,
    "RegistryError": BAD_INPUT,
    "CheckpointError": BAD_INPUT,
    "NothingToDo": NOTHING_TO_DO,
    "NonFiniteError": FAILED,
    "WorkerError": FAILED,
    "StepError": FAILED,
    "ObservationError": FAILED,
    "ActionMaskError": FAILED,
    "ExportError": FAILED,
    "PlotError": FAILED,
}
_PACKAGE = Path(__file__).resolve().parent.parent
_MACHINERY = ("typer", "click", "runpy.py", "contextlib.py", "functools.py")


class BadInput(Exception):
    """The command line asks for something that cannot be."""


@dataclass(frozen=True)
class Answer:
    """What a command has to say.

    Attributes:
        document: the answer as plain data, for `--json`.
        text: the same for people; empty where stderr has said everything.
        code: exit code of the process.
    """

    document: dict[str, Any]
    text: str
    code: int = DONE

    def show(self, as_json: bool) -> None:
        """Print it on stdout."""
        try:
            if as_json:
                print(json.dumps(_finite(self.document), allow_nan=False))
            elif self.text:
                print(self.text)
            sys.stdout.flush()
        except BrokenPipeError:  # whoever read it has seen enough, as `| head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def failure(error: BaseException) -> Answer:
    """Say on stderr what went wrong: a known error on one screen, any other with the user's part of its traceback.

    An error that carries notes comes from a run that had begun: whatever it is, the run failed.
    """
    from uniarena.config.errors import text_of  # not for `--help`

    notes, said = list(getattr(error, "__notes__", ())), text_of(error)
    names = [kind.__name__ for kind in type(error).__mro__]
    code = next((_CODES[name] for name in names if name in _CODES), None)
    if isinstance(error, KeyboardInterrupt):
        code, text = INTERRUPTED, "\n".join(["interrupted", *notes])
    elif code is None:
        code, text = FAILED, _traceback(error)
    else:
        code, text = (FAILED if notes else code), "\n".join([said, *notes])
    text = _redacted(text)
    print(text.replace("load it with trust=True", "repeat the command with --trust"), file=sys.stderr)
    answer = failed(names[0], _redacted(said), code)
    if faults := getattr(error, "faults", ()):
        answer.document["error"]["faults"] = [_fault(fault) for fault in faults]
    return answer


def failed(kind: str, message: str, code: int) -> Answer:
    """The answer of a command that failed."""
    return Answer({"error": {"type": kind, "message": message}, "exit_code": code}, "", code)


def _fault(fault: Any) -> dict[str, Any]:
    place = fault.location
    return {
        "path": fault.path,
        "file": _redacted(place.source) if place else None,
        "line": (place.line or None) if place else None,
        "message": _redacted(fault.message),
        "fix": _redacted(fault.hint),
    }


def _redacted(text: str) -> str:
    """Without the secrets that this process knows of."""
    from uniarena import provenance  # not for `--help`

    return provenance.redact(text, code=True)


def _traceback(error: BaseException) -> str:
    """The traceback without the frames of this package, if others are left: the user's code is what can be mended."""
    report = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = report
    while part is not None:
        theirs = [frame for frame in part.stack if not _is_machinery(frame.filename)]
        if theirs:
            part.stack = traceback.StackSummary.from_list(theirs)
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    return "".join(report.format()).rstrip()


def _is_machinery(file: str) -> bool:
    path = Path(file)
    return path.is_relative_to(_PACKAGE) or any(word in path.parts for word in _MACHINERY)


@contextlib.contextmanager
def stdout_kept() -> Iterator[None]:
    """Send whatever is printed meanwhile, by C code and worker processes too, to stderr."""
    sys.stdout.flush()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # no such descriptors, as under some servers
            kept = os.dup(1)
            stack.callback(os.close, kept)
            os.dup2(2, 1)
            stack.callback(os.dup2, kept, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield


def _finite(value: Any) -> Any:
    """Plain data with null for NaN and infinities, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
