"""Doing something every so many environment steps, whatever the size of a chunk."""

from __future__ import annotations

from typing import Any


class Every:
    """Due whenever a multiple of `steps` was reached or passed since the last time it was asked.

    Args:
        steps: environment steps; None: never due.
    """

    def __init__(self, steps: int | None) -> None:
        self.steps = steps
        self._last = 0

    def would_be_due(self, env_steps: int) -> bool:
        """Whether `due(env_steps)` would say yes; asking changes nothing."""
        return self.steps is not None and env_steps // self.steps > self._last // self.steps

    def due(self, env_steps: int) -> bool:
        """Whether it is due at `env_steps`; it is then not due again before the next multiple."""
        answer = self.would_be_due(env_steps)
        self._last = max(self._last, env_steps)
        return answer

    def state_dict(self) -> dict[str, Any]:
        return {"last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._last = state["last"]
