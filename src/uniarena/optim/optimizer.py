"""Optimisers: a torch optimiser, the schedule of its learning rate, and a factor that callbacks move."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from uniarena.config import ConfigError, config
from uniarena.optim.schedules import LearningRate, ScheduleConfig, make_schedule
from uniarena.registry import lookup

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


@config
class OptimizerConfig:
    """How gradients become steps. Fields left empty take the type's own default."""

    type: str = "adam"  # adam, adamw, rmsprop, sgd, or module:Class of a torch optimiser
    lr: LearningRate | None = None  # None: learner.learning_rate
    eps: float | None = (
        None  # added to the denominator; None: 1e-5 where the type has one, as PPO's authors set it
    )
    weight_decay: float | None = None
    betas: tuple[float, float] | None = None  # adam, adamw
    alpha: float | None = None  # rmsprop: smoothing of the squared gradient
    momentum: float | None = None  # rmsprop, sgd


class Optimizer:
    """Steps a fixed list of named parameters.

    The learning rate is `schedule(progress) × factor`. The factor is what callbacks change (`scale`); it
    persists over `set_progress` and is saved.

    Args:
        named_parameters: (name, parameter) pairs; those without `requires_grad` are left out, a shared one is
            taken once.
        cfg: type and hyper-parameters.
        learning_rate: used where `cfg.lr` is None.
        path: where `cfg` stands in the configuration, for errors.

    Raises:
        ConfigError: unknown type, or a hyper-parameter that the type lacks.
        ValueError: there is no parameter to train.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        cfg: OptimizerConfig,
        learning_rate: float | ScheduleConfig,
        path: str = "learner.optimizer",
    ) -> None:
        unique = {id(p): (name, p) for name, p in reversed(list(named_parameters)) if p.requires_grad}
        pairs = list(reversed(unique.values()))
        if not pairs:
            raise ValueError("the optimiser was given no trainable parameter.")
        self.names = [name for name, _ in pairs]
        self.parameters = [parameter for _, parameter in pairs]
        self._schedule = make_schedule(learning_rate if cfg.lr is None else cfg.lr)
        self.progress, self.factor = 0.0, 1.0
        self._rate: tuple[float, Tensor] | None = None
        self.torch = _build(self.parameters, cfg, self.lr, path)

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self._schedule(self.progress) * self.factor

    @property
    def rate(self) -> Tensor:
        """`lr` as a float64 0-d tensor, for metrics; the same one while it stays."""
        lr = self.lr
        if self._rate is None or self._rate[0] != lr:
            self._rate = (lr, torch.tensor(lr, dtype=torch.float64))
        return self._rate[1]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Groups of the torch optimiser. `set_progress` and `scale` rewrite `lr`; other keys are yours."""
        groups: list[dict[str, Any]] = self.torch.param_groups
        return groups

    def set_progress(self, fraction: float) -> None:
        """Move the learning rate to its place at this fraction of the run."""
        self.progress = fraction
        self._apply()

    def scale(self, factor: float) -> None:
        """Multiply the learning rate by `factor`, from the next step on and for the rest of the run."""
        self.factor *= factor
        self._apply()

    def _apply(self) -> None:
        lr = self._schedule(self.progress) * self.factor
        for group in self.torch.param_groups:
            group["lr"] = lr

    def zero_grad(self) -> None:
        """Drop the gradients; backward then hands its own buffers over instead of adding to old ones."""
        for parameter in self.parameters:
            parameter.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """Parameter name → its gradient, for those that have one. Writing into them changes the step."""
        pairs = zip(self.names, self.parameters, strict=True)
        return {name: parameter.grad for name, parameter in pairs if parameter.grad is not None}

    def step(self) -> None:
        self.torch.step()

    def state_dict(self) -> dict[str, Any]:
        return {"torch": self.torch.state_dict(), "progress": self.progress, "factor": self.factor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state` was taken; its tensors are copied."""
        self.torch.load_state_dict(copy.deepcopy(state["torch"]))
        self.progress, self.factor = float(state["progress"]), float(state["factor"])


def build_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    cfg: OptimizerConfig,
    learning_rate: float | ScheduleConfig,
    path: str = "learner.optimizer",
) -> Optimizer:
    """See `Optimizer`."""
    return Optimizer(named_parameters, cfg, learning_rate, path)


def _build(
    parameters: list[nn.Parameter], cfg: OptimizerConfig, lr: float, path: str
) -> torch.optim.Optimizer:
    kind: Any = lookup("optimizer", cfg.type)
    accepted = inspect.signature(kind).parameters
    names = ("eps", "weight_decay", "betas", "alpha", "momentum")
    given = {name: getattr(cfg, name) for name in names if getattr(cfg, name) is not None}
    odd = [name for name in given if name not in accepted]
    if odd:
        has = ", ".join(name for name in names if name in accepted) or "none of these"
        raise ConfigError(
            f"{path}.{odd[0]} = {given[odd[0]]!r}, but {cfg.type} has no {odd[0]}; it has: {has}.",
            path=f"{path}.{odd[0]}",
            hint=f"remove {odd[0]}, or choose another optimizer type.",
        )
    if "eps" in accepted:
        given.setdefault("eps", 1e-5)
    # One call for all tensors: fused where torch has it, foreach elsewhere (2 to 5 times faster than its
    # loop).
    if kind.__name__ in FUSED and kind.__module__.startswith("torch."):
        given["fused"] = True
    elif "foreach" in accepted:
        given["foreach"] = True
    try:
        optimizer: torch.optim.Optimizer = kind(parameters, lr=lr, **given)
    except ValueError as error:  # torch refuses a value: negative rates, betas beyond 1, …
        raise ConfigError(
            f"{cfg.type} refuses its settings: {error}.", path=path, hint="give usual values."
        ) from None
    return optimizer
