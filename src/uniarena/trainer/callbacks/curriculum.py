"""Making the task harder as the agent gets better, and easier where it fails."""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from uniarena.config import Between, ConfigError, config
from uniarena.trainer.events import BatchCollected, TrainingStart, UpdateEnd

__all__ = ["CurriculumConfig", "CurriculumScheduler", "Standing"]

_log = logging.getLogger(__name__)

Rule = Literal["consecutive_successes", "success_rate", "return_threshold", "entropy_floor"]
Share = Annotated[float, Between(0, 1)]
Positive = Annotated[int, Between(1)]


@config
class CurriculumConfig:
    """A difficulty, and when it moves."""

    parameter: str = (
        "difficulty"  # attribute of the environment, or what follows in its method set_<parameter>
    )
    start: float = 0.0  # the first difficulty
    end: float = 1.0  # the last one; below `start` where small values are hard
    step: Annotated[float, Between(0)] = 0.1  # how far it moves at a time
    rules: tuple[Rule, ...] = ("success_rate",)  # what moves it; one that says easier outvotes the others
    window: Positive = 20  # episodes that success_rate and return_threshold look at
    raise_at: Share = 0.8  # success_rate: harder from this share of successes on
    lower_at: Share = 0.2  # success_rate: easier at this share or less
    successes: Positive = 5  # consecutive_successes: harder after so many in a row
    failures: Positive = 10  # consecutive_successes: easier after so many failures in a row
    success_return: float | None = (
        None  # an episode with at least this return is a success; unset: info["is_success"] says it
    )
    raise_return: float | None = None  # return_threshold: harder from this mean return on
    lower_return: float | None = None  # return_threshold: easier at this mean return or less
    min_entropy: float | None = None  # entropy_floor: easier below this entropy of the policy
    easier_env_steps: Annotated[int, Between(0)] = 10_000  # entropy_floor: no harder task for so long

    def __post_init__(self) -> None:
        if self.start == self.end or self.step == 0:
            raise ConfigError(
                f"the difficulty cannot move: start {self.start:g}, end {self.end:g}, step {self.step:g}.",
                path="end" if self.step else "step",
            )
        if not self.rules:
            raise ConfigError("no rule is given, so the difficulty would never move.", path="rules")
        pairs = [("success_rate", self.lower_at, self.raise_at, "raise_at")]
        if self.raise_return is not None and self.lower_return is not None:
            pairs.append(("return_threshold", self.lower_return, self.raise_return, "raise_return"))
        for rule, low, high, path in pairs:
            if rule in self.rules and low >= high:
                raise ConfigError(
                    f"got {high:g}, which is not above {low:g}, where the task gets easier: it would move to and fro.",
                    path=path,
                )
        for rule, name in (("return_threshold", "raise_return"), ("entropy_floor", "min_entropy")):
            if rule in self.rules and getattr(self, name) is None:
                raise ConfigError(
                    f"the rule {rule} needs it.", path=name, hint=f"set {name}, or leave {rule} out"
                )


@dataclass(frozen=True)
class Standing:
    """What is known of the present difficulty: of episodes that began after it was set.

    Attributes:
        difficulty: as it is.
        returns, successes: of the newest episodes, the latest last; success NaN where nothing says it.
        streak: successes in a row (positive) or failures in a row (negative).
        entropy: of the policy in the newest update; None before one.
        env_steps: of the run.
        easy_until: env steps before which `entropy_floor` wants no harder task.
    """

    difficulty: float
    returns: tuple[float, ...]
    successes: tuple[float, ...]
    streak: int
    entropy: float | None
    env_steps: int
    easy_until: int


class CurriculumScheduler:
    """Moves one difficulty up and down and tells the environment.

    The environment has the attribute `difficulty` (or another `parameter`) or a method `set_difficulty(value)`, on its
    base or on a wrapper, and heeds it at its next reset or at once, as it likes; this works in every vector mode, in
    processes and on tensors. Evaluation keeps the environment's own difficulty, the task that is meant.

    For rules of your own, derive a class that has `evaluate_difficulty`, `adjust`, or both, and name it in `callbacks`
    by its import path. Every level is judged by episodes that began on it.

    Attributes:
        difficulty: the present one.
    """

    Config = CurriculumConfig

    def __init__(self, cfg: CurriculumConfig | None = None, **fields: Any) -> None:
        self.cfg = replace(cfg, **fields) if cfg is not None else CurriculumConfig(**fields)
        self.difficulty = self.cfg.start
        self._returns: deque[float] = deque(maxlen=self.cfg.window)
        self._successes: deque[float] = deque(maxlen=self.cfg.window)
        self._streak, self._rows, self._easy_until = 0, 0, 0
        self._entropy: float | None = None
        self._silent = 0
        if "entropy_floor" in self.cfg.rules:  # who listens to every update pays for its figures
            self.on_update_end = self._note_entropy

    # -- rules -----------------------------------------------------------------------------------------------------
    def evaluate_difficulty(self, standing: Standing) -> int:
        """+1: harder; −1: easier; 0: as it is."""
        votes = [getattr(self, f"_{rule}")(standing) for rule in self.cfg.rules]
        return -1 if -1 in votes else int(1 in votes and standing.env_steps >= standing.easy_until)

    def adjust(self, difficulty: float, vote: int) -> float:
        """The difficulty after a vote, between `start` and `end`."""
        cfg = self.cfg
        towards = math.copysign(cfg.step, cfg.end - cfg.start) * vote
        low, high = min(cfg.start, cfg.end), max(cfg.start, cfg.end)
        return min(high, max(low, round(difficulty + towards, 12)))

    def _consecutive_successes(self, standing: Standing) -> int:
        return int(standing.streak >= self.cfg.successes) - int(standing.streak <= -self.cfg.failures)

    def _success_rate(self, standing: Standing) -> int:
        known = [success for success in standing.successes if success == success]
        if len(known) < self.cfg.window:
            return 0
        return _between(sum(known) / len(known), self.cfg.lower_at, self.cfg.raise_at)

    def _return_threshold(self, standing: Standing) -> int:
        if len(standing.returns) < self.cfg.window:
            return 0
        mean = sum(standing.returns) / len(standing.returns)
        return _between(mean, self.cfg.lower_return, self.cfg.raise_return)

    def _entropy_floor(self, standing: Standing) -> int:
        floor = self.cfg.min_entropy
        low = standing.entropy is not None and floor is not None and standing.entropy < floor
        if low and standing.env_steps >= standing.easy_until:
            return -1
        # alone it also leads back, once the entropy has recovered
        return int(not low and standing.entropy is not None and len(self.cfg.rules) == 1)

    # -- events ----------------------------------------------------------------------------------------------------
    def on_training_start(self, trainer: Any, event: TrainingStart) -> None:
        self._tell(trainer)

    def _note_entropy(self, trainer: Any, event: UpdateEnd) -> None:
        self._entropy = event.metrics.get("entropy", self._entropy)

    def on_batch_collected(self, trainer: Any, event: BatchCollected) -> None:
        for episode in event.episodes:
            if episode.length <= self._rows + episode.t + 1:
                self._take(episode.episode_return, episode.success)
        self._rows += event.rollout.T
        now = trainer.counters.env_steps
        vote = self.evaluate_difficulty(
            Standing(
                self.difficulty,
                tuple(self._returns),
                tuple(self._successes),
                self._streak,
                self._entropy,
                now,
                self._easy_until,
            )
        )
        if vote:
            self._move(trainer, vote, now, event.rollout.T * trainer.sampler.ahead)
        trainer.log("curriculum/difficulty", self.difficulty)

    def _take(self, episode_return: float, success: float) -> None:
        bound = self.cfg.success_return
        if bound is not None:
            success = float(episode_return >= bound)
        self._returns.append(episode_return)
        self._successes.append(success)
        if success == success:
            self._streak = max(self._streak, 0) + 1 if success >= 0.5 else min(self._streak, 0) - 1
            self._silent = 0
        elif {"consecutive_successes", "success_rate"} & set(self.cfg.rules):
            self._silent += 1
            if self._silent == self.cfg.window:
                _log.warning(
                    "curriculum: the last %d episodes did not say whether they were a success, so %s cannot move the "
                    'difficulty; give info["is_success"] at the end of an episode, or set success_return',
                    self._silent,
                    " and ".join(self.cfg.rules),
                )

    def _move(self, trainer: Any, vote: int, now: int, under_way: int) -> None:
        """Change the difficulty; `under_way` rows are still collected at the one before."""
        cfg = self.cfg
        before, self.difficulty = self.difficulty, self.adjust(self.difficulty, vote)
        if vote < 0 and "entropy_floor" in cfg.rules:
            self._easy_until = now + cfg.easier_env_steps
        self._returns.clear()
        self._successes.clear()
        self._streak = 0
        if self.difficulty != before:
            self._rows = -under_way
            self._tell(trainer)
            _log.info(
                "curriculum: %s %g → %g at %s env steps", cfg.parameter, before, self.difficulty, f"{now:,}"
            )

    def _tell(self, trainer: Any) -> None:
        """A difficulty that has been a whole number all along is told as one."""
        whole = all(float(x).is_integer() for x in (self.cfg.start, self.cfg.end, self.cfg.step))
        value = int(self.difficulty) if whole and float(self.difficulty).is_integer() else self.difficulty
        trainer.sampler.set_attr(self.cfg.parameter, value)

    # -- state -----------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        return {
            "difficulty": self.difficulty,
            "returns": list(self._returns),
            "successes": [None if s != s else s for s in self._successes],
            "streak": self._streak,
            "rows": self._rows,
            "easy_until": self._easy_until,
            "entropy": self._entropy,
            "silent": self._silent,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.difficulty, self._entropy = state["difficulty"], state["entropy"]
        self._returns = deque(state["returns"], maxlen=self.cfg.window)
        told = (math.nan if s is None else s for s in state["successes"])
        self._successes = deque(told, maxlen=self.cfg.window)
        self._streak, self._rows = state["streak"], state["rows"]
        self._easy_until, self._silent = state["easy_until"], state["silent"]


def _between(value: float, low: float | None, high: float | None) -> int:
    if high is not None and value >= high:
        return 1
    return -1 if low is not None and value <= low else 0
