"""What an evaluation on data says: a value by each method, its interval, and why not to trust it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Estimate:
    """One method's answer.

    Attributes:
        method: `fqe` or `wis`.
        value: expected discounted return; None: there is no estimate, and `reasons` say why.
        interval: of 95 %.
        reasons: why it is not to be trusted, one sentence each; empty: nothing speaks against it.
        figures: what the reasons were judged by.
    """

    method: str
    value: float | None
    interval: tuple[float, float] | None
    reasons: tuple[str, ...]
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def trusted(self) -> bool:
        """Whether nothing speaks against it."""
        return self.value is not None and not self.reasons

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        found = {"value": self.value, "interval_95": self.interval and list(self.interval)}
        return {**found, "trusted": self.trusted, "reasons": list(self.reasons), **self.figures}

    def __str__(self) -> str:
        if self.value is None or self.interval is None:
            return f"{self.method}: no estimate: {'; '.join(self.reasons)}"
        said = (
            "nothing speaks against it" if self.trusted else "not to be trusted: " + "; ".join(self.reasons)
        )
        return f"{self.method}: {self.value:.4g} ({self.interval[0]:.4g} to {self.interval[1]:.4g}), {said}"


@dataclass(frozen=True)
class OnData:
    """Estimates of an agent on data.

    Attributes:
        data: path, episodes and transitions.
        mode: `deterministic` or `stochastic`.
        gamma: discount of a step.
        behaviour: mean discounted return of the data's episodes, as far as they go, and its interval.
        outside: share of places where the policy does what the data hardly ever does.
        estimates: by method.
    """

    data: dict[str, Any]
    mode: str
    gamma: float
    behaviour: tuple[float, tuple[float, float]]
    outside: float
    estimates: dict[str, Estimate]

    def to_json(self) -> dict[str, Any]:
        """The object that `uniarena eval --data --json` prints."""
        value, bounds = self.behaviour
        return {
            "data": self.data,
            "mode": self.mode,
            "gamma": self.gamma,
            "behaviour": {"value": value, "interval_95": list(bounds)},
            "outside": self.outside,
            "estimates": {name: each.to_json() for name, each in self.estimates.items()},
        }

    def __str__(self) -> str:
        value, (low, high) = self.behaviour
        return "\n".join(
            [
                f"{self.mode}, on {self.data['episodes']:,} episodes of {self.data['path']}: discounted returns "
                f"(γ {self.gamma:g}) from the start of an episode, with 95 % intervals",
                f"behaviour: {value:.4g} ({low:.4g} to {high:.4g}), as far as the episodes go",
                *map(str, self.estimates.values()),
            ]
        )
