"""What the doctor says: an illness, its evidence, likely causes, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """An override of the configuration, as it can be pasted behind `uniarena train`.

    Attributes:
        override: `key.path=value`; empty where no key helps.
        why: what it does, or what to do where there is no key.
    """

    override: str
    why: str

    def __str__(self) -> str:
        return f"'{self.override}'  # {self.why}" if self.override else f"# {self.why}"


@dataclass(frozen=True)
class Finding:
    """One illness of a run.

    Attributes:
        illness: its name, one of `ILLNESSES`.
        symptom: one sentence in plain words.
        evidence: figures and where in the run.
        causes: likely ones, the likeliest first.
        changes: in the order in which to try them.
        env_steps: where it shows, from and to; None: nowhere in particular.
        unit: what that is counted in: updates where a run learns from data.
    """

    illness: str
    symptom: str
    evidence: tuple[str, ...]
    causes: tuple[str, ...]
    changes: tuple[Change, ...]
    env_steps: tuple[int, int] | None = None
    unit: str = "env steps"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "illness": self.illness,
            "symptom": self.symptom,
            "env_steps": None if self.env_steps is None else list(self.env_steps),
            "evidence": list(self.evidence),
            "causes": list(self.causes),
            "changes": [{"override": each.override or None, "why": each.why} for each in self.changes],
        }

    def __str__(self) -> str:
        span = self.env_steps
        where = "" if span is None else f" ({span[0]:,} to {span[1]:,} {self.unit})"
        lines = [f"{self.illness.replace('_', ' ')}: {self.symptom}{where}"]
        lines += [f"  evidence: {text}" for text in self.evidence]
        lines += [f"  cause {number}: {text}" for number, text in enumerate(self.causes, 1)]
        lines += [f"  try: {change}" for change in self.changes]
        return "\n".join(lines)
