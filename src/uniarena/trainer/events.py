"""What happens in a run: frozen values, handed to `on_<event>(trainer, event)` of callbacks with that method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from uniarena.batch import Rollout
from uniarena.config import ConfigError
from uniarena.optim import LearnStep, NonFiniteError
from uniarena.sampling import Episode

__all__ = [
    "BatchCollected",
    "CheckpointSaved",
    "EnvStep",
    "EpisodeEnd",
    "EpisodeStart",
    "ExceptionRaised",
    "FaultFound",
    "IterationEnd",
    "LearnStep",
    "TrainingEnd",
    "TrainingStart",
    "UpdateEnd",
    "ValidationEpoch",
]


@dataclass(frozen=True)
class TrainingStart:
    """Before the first chunk, also after a resume."""

    method: ClassVar[str] = "on_training_start"
    resumed: bool = False


@dataclass(frozen=True)
class EpisodeStart:
    """An episode began in column `env`. Replayed from the chunk, in order of time."""

    method: ClassVar[str] = "on_episode_start"
    env: int
    env_step: int


@dataclass(frozen=True)
class EnvStep:
    """One vector step (row `t` of the chunk), replayed from the chunk; fields are `[B, …]` tensors."""

    method: ClassVar[str] = "on_env_step"
    t: int
    obs: Any
    action: Any
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


@dataclass(frozen=True)
class EpisodeEnd:
    """An episode ended: raw return, length in valid steps, sums of further reward streams."""

    method: ClassVar[str] = "on_episode_end"
    env: int
    env_step: int
    episode_return: float
    length: int
    info: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchCollected:
    """A chunk was collected and observed; `rollout` is valid until the next one."""

    method: ClassVar[str] = "on_batch_collected"
    rollout: Rollout
    episodes: list[Episode]


@dataclass(frozen=True)
class UpdateEnd:
    """A whole learner update is done; `metrics` are its means as floats."""

    method: ClassVar[str] = "on_update_end"
    metrics: dict[str, float]


@dataclass(frozen=True)
class FaultFound:
    """A number is NaN, infinite or huge. `rule` is about to be applied, or what `trainer.guard.rule` is set to."""

    method: ClassVar[str] = "on_fault"
    error: NonFiniteError
    rule: str


@dataclass(frozen=True)
class IterationEnd:
    """Collect, observe, update, publish are done: the only place where state is saved."""

    method: ClassVar[str] = "on_iteration_end"


@dataclass(frozen=True)
class ValidationEpoch:
    """An evaluation is done; `result` is an EvalResult."""

    method: ClassVar[str] = "on_validation_epoch"
    result: Any


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint was written to `path`; `kind` says why (`step`, `best`, `final`, `interrupt`,
    `safety`, `fault`)."""

    method: ClassVar[str] = "on_checkpoint"
    path: Path
    kind: str


@dataclass(frozen=True)
class TrainingEnd:
    """The run is over: `reason` is `finished`, `interrupted` or what a callback said."""

    method: ClassVar[str] = "on_training_end"
    reason: str


@dataclass(frozen=True)
class ExceptionRaised:
    """Training fails with `error`, which is raised again afterwards."""

    method: ClassVar[str] = "on_exception"
    error: BaseException


def listeners(callbacks: Iterable[Any]) -> dict[type, list[Callable[..., None]]]:
    """Event → the methods of callbacks that are called at it, in their order."""
    kinds = [globals()[name] for name in __all__]
    found = {kind: [getattr(callback, kind.method, None) for callback in callbacks] for kind in kinds}
    return {kind: [method for method in methods if method is not None] for kind, methods in found.items()}


def listening(callbacks: Iterable[Any]) -> list[Any]:
    """Callbacks as a list.

    Raises:
        ConfigError: one of them is a class, or has none of the methods of a callback, and would never be called.
    """
    found = list(callbacks)
    methods = {globals()[name].method for name in __all__} | {"state_dict"}
    for index, callback in enumerate(found):
        if isinstance(callback, type) or not any(hasattr(callback, name) for name in methods):
            name = callback.__name__ if isinstance(callback, type) else repr(callback)
            said = (
                "is a class"
                if isinstance(callback, type)
                else "has no method of a callback, such as on_update_end"
            )
            raise ConfigError(
                f"the callback {name} {said}",
                path=f"callbacks.{index}",
                hint="give objects that were made from your class; those that the config knows are named in it",
            )
    return found


WITHIN = (
    EpisodeStart,
    EnvStep,
    EpisodeEnd,
    BatchCollected,
    LearnStep,
    UpdateEnd,
)
"""Events that come while an iteration goes on, whose listeners may look at its metrics so far."""
