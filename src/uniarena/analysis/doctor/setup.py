"""The configuration of a run, with defaults filled in, as far as the doctor asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uniarena.config import ConfigError, component
from uniarena.config.schema import UPDATES
from uniarena.registry import BUILT_IN, RegistryError

SHORT = 0.2
"""Of the usual number of updates from data: a run of fewer may well be too short to have learned anything."""


class Setup:
    """What a run was told.

    Args:
        config: the resolved configuration as plain data; None or {}: nothing is known of it.
    """

    def __init__(self, config: Mapping[str, Any] | None) -> None:
        self.config: Mapping[str, Any] = config or {}
        section = self.section("learner")
        kind = section.get("type")
        self.algorithm = kind if isinstance(kind, str) else ""
        self._learner: Any = section
        if self.algorithm in BUILT_IN["learner"]:  # a stranger's own class is not imported to read a file
            try:
                self._learner = component("learner", section, "learner")[1]
            except (ConfigError, RegistryError):
                self._learner = section

    def section(self, name: str) -> Mapping[str, Any]:
        """A section, `{}` where there is none."""
        found: Any = self.config.get(name)
        return found if isinstance(found, Mapping) else {}

    def learner(self, name: str, default: Any = None) -> Any:
        """A field of the learner, with its default; a schedule as it is."""
        if isinstance(self._learner, Mapping):
            return self._learner.get(name, default)
        return getattr(self._learner, name, default)

    def number(self, name: str, default: float) -> float:
        """A field of the learner as a number: the start of a schedule, `default` where it is none."""
        value = self.learner(name, default)
        value = value.get("start", default) if isinstance(value, Mapping) else getattr(value, "start", value)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

    def has(self, name: str) -> bool:
        """Whether the learner has such a field."""
        if isinstance(self._learner, Mapping):
            return name in self._learner
        return hasattr(self._learner, name)

    @property
    def on_policy(self) -> bool:
        """Whether it is one of the policy-gradient family."""
        replays = self.has("updates_per_env_step") or self.has("learning_starts")
        return not self.offline and not replays

    @property
    def offline(self) -> bool:
        """Whether it learns from data alone."""
        return bool(self.config.get("data"))

    @property
    def clones(self) -> bool:
        """Whether it predicts the actions of data, without any values."""
        return self.algorithm in ("bc", "decision_transformer")

    @property
    def callbacks(self) -> list[Any]:
        """Entries of the section `callbacks`, as they are written."""
        found = self.config.get("callbacks") or []
        return list(found) if isinstance(found, list | tuple) else [found]

    @property
    def unit(self) -> str:
        """What its length is counted in."""
        return "updates" if self.offline else "env steps"

    @property
    def wrappers(self) -> list[Any]:
        """Wrappers, as they are written: names, or maps with a `type`."""
        found = self.section("environment").get("wrappers") or []
        return list(found) if isinstance(found, list | tuple) else [found]

    def wrapped(self, name: str) -> bool:
        """Whether there is such a wrapper."""
        return any((w.get("type") if isinstance(w, Mapping) else w) == name for w in self.wrappers)

    @property
    def env_id(self) -> str:
        found = self.section("environment").get("id", "")
        return found if isinstance(found, str) else getattr(found, "__name__", "")

    @property
    def total(self) -> int:
        """Length of the whole run, in `unit`; 0 where it is not known."""
        training = self.section("training")
        if self.offline:
            return int(training.get("total_updates") or UPDATES)
        return int(training.get("total_timesteps") or 0)

    @property
    def short(self) -> bool:
        """Whether it learns from data, and makes far fewer updates than is usual."""
        return self.offline and self.total < SHORT * UPDATES

    def solved_at(self) -> float | None:
        """The return at which Gymnasium calls the environment solved; None where it says nothing."""
        import gymnasium

        try:
            threshold = gymnasium.spec(self.env_id).reward_threshold if self.env_id else None
        except Exception:  # an id of a plug-in that is not installed here, or a path
            return None
        return None if threshold is None else float(threshold)
