"""What the checker finds, and how it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from uniarena.envs.checker.source import raised_line

Level = Literal["error", "warning", "note"]
_ORDER: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Problem:
    """One finding.

    Attributes:
        kind: what it is, in two or three words: `wrong shape`, `missing key`.
        key: the value concerned: `step() obs['sensors.cam']`, `reset() info`, `action_space`.
        expected, got: what was due and what came.
        fix: what to change.
        line: `file:number: source` to change, empty where it is unknown.
        level: error (training would fail or learn from wrong data), warning (it would work badly), note
            (good to know).
    """

    kind: str
    key: str
    expected: str
    got: str
    fix: str
    line: str = ""
    level: Level = "error"

    @property
    def is_error(self) -> bool:
        """Whether it must be mended before training."""
        return self.level == "error"

    def to_json(self) -> dict[str, str]:
        """The fields as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [("expected", self.expected), ("got", self.got), ("fix", self.fix), ("line", self.line)]
        body = "".join(f"\n  {name:9}{text}" for name, text in rows if text)
        return f"{self.level}: {self.kind} in {self.key}{body}"


def report(name: str, problems: Sequence[Problem]) -> str:
    """All problems of the environment `name` as text, the worst first, under one line that sums them up."""
    if not problems:
        return f"{name}: no problems found."
    counts = [(level, sum(problem.level == level for problem in problems)) for level in _ORDER]
    head = ", ".join(f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts if count)
    ordered = sorted(problems, key=lambda problem: _ORDER.index(problem.level))
    return "\n\n".join([f"{name}: {head}.", *map(str, ordered)])


def raised(key: str, error: Exception, expected: str = "no exception") -> Problem:
    """What is said of an exception, with the line of the user's code that it came from."""
    line = raised_line(error)
    hint = getattr(error, "hint", "")  # our own errors bring their fix
    text = " ".join(str(error.args[0] if hint else error).split())[:300]
    fix = hint or ("mend the line below" if line else "see the message")
    return Problem(f"{type(error).__name__} raised", key, expected, text, fix, line)


class Findings:
    """Collects problems; the same kind at the same key is told once, at its first sight."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._seen: set[tuple[str, str]] = set()

    def add(self, problem: Problem, line: Callable[[], str] = str) -> None:
        """Keep a problem unless it is known; `line` finds its line, which is worth the search only once."""
        if (problem.kind, problem.key) not in self._seen:
            self._seen.add((problem.kind, problem.key))
            self.problems.append(problem if problem.line else replace(problem, line=line()))
