"""Optimisers: a torch optimiser, the schedule of its learning rate, and a factor that callbacks move."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from uniarena.config import Between, ConfigError, config
from uniarena.optim.clipping import Bound, Clipping
from uniarena.optim.flat import Flat
from uniarena.optim.fused_adam import FusedAdam
from uniarena.optim.schedules import (
    LEARNING_RATE,
    KLAdaptive,
    LearningRate,
    Plateau,
    ScheduleConfig,
    make_schedule,
)
from uniarena.optim.sharpness import SharpnessAware
from uniarena.registry import lookup

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


@config
class OptimizerConfig:
    """How gradients become steps. Fields left empty take the type's own default."""

    type: str = "adam"  # adam, adamw, rmsprop, sgd, sam, or module:Class of a torch optimiser
    lr: LearningRate | None = None  # None: learner.learning_rate
    eps: float | None = (
        None  # added to the denominator; None: 1e-5 where the type has one, as PPO's authors set it
    )
    weight_decay: float | None = None
    betas: tuple[float, float] | None = None  # adam, adamw
    alpha: float | None = None  # rmsprop: smoothing of the squared gradient
    momentum: float | None = None  # rmsprop, sgd
    rho: Annotated[float, Between(0, above=True)] | None = None  # sam: how far it looks around; null: 0.05
    base: str | None = None  # sam: the optimiser that it wraps; null: adam
    accumulate: Annotated[int, Between(1)] = 1  # parts that the gradient of each batch is summed from
    normalize: bool = False  # divide each gradient by its norm
    agc: Annotated[float, Between(0, above=True)] | None = (
        None  # longest gradient of a unit, as a share of its weights' norm; null: off
    )
    clip_quantile: Annotated[float, Between(0, 1, above=True)] | None = (
        None  # longest gradient, as a quantile of past norms; null: off
    )
    clip_window: Annotated[int, Between(10)] = 200  # norms that clip_quantile looks back on
    clip_by: Literal["all", "layer"] = (
        "all"  # whether max_grad_norm is for all gradients together or each layer
    )

    @property
    def stepping(self) -> str:
        """The type that takes the step: with `sam` the one that it wraps."""
        return (self.base or "adam") if self.type == "sam" else self.type

    def with_eps(self, eps: float) -> OptimizerConfig:
        """The same, with this ε where none is set and Adam takes the step."""
        mine = self.eps is None and self.stepping in ("adam", "adamw")
        return replace(self, eps=eps) if mine else self


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
        part: what part of the agent all parameters belong to (`max_grad_norm` by part); None: by their names.
        gives_kl: whether the learner says how far its policy moved, which `kl_adaptive` needs.

    Attributes:
        names, parameters: as given.
        accumulate: parts that `Minimize` cuts each batch into.
        sharpness: where the gradient of a step is taken; None: where the parameters are.

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
        part: str | None = None,
        gives_kl: bool = False,
    ) -> None:
        unique = {id(p): (name, p) for name, p in reversed(list(named_parameters)) if p.requires_grad}
        pairs = list(reversed(unique.values()))
        if not pairs:
            raise ValueError("the optimiser was given no trainable parameter.")
        self.names = [name for name, _ in pairs]
        self.parameters = [parameter for _, parameter in pairs]
        rate = learning_rate if cfg.lr is None else cfg.lr
        self._measured = _measured(rate, gives_kl)
        self._schedule = (lambda _: 0.0) if self._measured is not None else make_schedule(rate)
        self.progress, self.factor = 0.0, 1.0
        self._rate: tuple[float, Tensor] | None = None
        self.accumulate, self.sharpness = cfg.accumulate, _sharpness(cfg, path)
        self._clipping = Clipping(
            normalize=cfg.normalize,
            agc=cfg.agc,
            quantile=cfg.clip_quantile,
            window=cfg.clip_window,
            by=cfg.clip_by,
            part=part,
        )
        self.torch = _build(self.parameters, cfg, self.lr, path)
        self._flat: Flat | None = None
        if isinstance(self.torch, FusedAdam) and Flat.fits(self.parameters):
            self._flat = self.torch.flat = Flat(self.names, self.parameters)

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        measured = self._measured
        return (self._schedule(self.progress) if measured is None else measured.value) * self.factor

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

    def follow(self, figures: Mapping[str, Any]) -> None:
        """Figures of an update or an iteration, by name, for learning rates that go by what is measured."""
        if self._measured is not None:
            self._measured.see(figures)
            self._apply()

    def _apply(self) -> None:
        lr = self.lr
        for group in self.torch.param_groups:
            group["lr"] = lr

    def backward(self, loss: Any) -> None:
        """The gradients of a loss in place of those that are there.

        Args:
            loss: a 0-d tensor; or what adds gradients to the parameters' own with its own `backward`.
        """
        flat = self._flat
        if flat is None or not flat.holds:
            drop_gradients(self.parameters)
            loss.backward()
            return
        if isinstance(loss, Tensor):
            drop_gradients(self.parameters)
        else:
            flat.clear()
        loss.backward()
        flat.gather()

    def gradients(self) -> dict[str, Tensor]:
        """Parameter name → its gradient, for those that have one. Writing into them changes the step."""
        if self._flat is not None and self._flat.full:
            return self._flat.named
        pairs = zip(self.names, self.parameters, strict=True)
        return {name: parameter.grad for name, parameter in pairs if parameter.grad is not None}

    def climbed(self, norm: Tensor) -> AbstractContextManager[None]:
        """See `SharpnessAware.climbed`; only where there is one."""
        assert self.sharpness is not None
        return self.sharpness.climbed(self.parameters, norm)

    def clip(self, gradients: dict[str, Tensor], size: float, bound: Bound) -> None:
        """Shape the gradients in place, as configured; see `Clipping`."""
        weights = (
            dict(zip(self.names, self.parameters, strict=True)) if self._clipping.needs_weights else None
        )
        self._clipping(gradients, size, bound, weights)

    def step(self) -> None:
        self.torch.step()

    @property
    def memory(self) -> dict[str, Any]:
        """What it keeps beside torch's state and the progress: plain data, to be set again."""
        measured = None if self._measured is None else self._measured.state_dict()
        return {"factor": self.factor, "measured": measured, "clipping": self._clipping.state_dict()}

    @memory.setter
    def memory(self, kept: Mapping[str, Any]) -> None:
        self.factor = float(kept["factor"])
        if self._measured is not None and kept.get("measured") is not None:
            self._measured.load_state_dict(kept["measured"])
        if kept.get("clipping") is not None:
            self._clipping.load_state_dict(kept["clipping"])
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        return {"torch": self.torch.state_dict(), "progress": self.progress, **self.memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state` was taken; its tensors are copied."""
        self.torch.load_state_dict(copy.deepcopy(state["torch"]))
        self.progress, self.memory = float(state["progress"]), state


build_optimizer = Optimizer
"""The name by which learners make one."""


def _measured(rate: float | ScheduleConfig, gives_kl: bool) -> KLAdaptive | Plateau | None:
    """The learning rate, where it goes by what is measured."""
    kind = lookup("schedule", rate.type) if isinstance(rate, ScheduleConfig) else None
    if kind is KLAdaptive:
        if not gives_kl:
            raise ConfigError(
                "kl_adaptive follows how far a policy moves from the one that gathered the data, which this learner "
                "does not measure.",
                path="learner.learning_rate.type",
                hint="use it with ppo or a2c, or take plateau, linear or cosine here.",
            )
        return KLAdaptive(rate, LEARNING_RATE, None, "learner.learning_rate")  # type: ignore[arg-type]
    return Plateau(rate) if kind is Plateau else None  # type: ignore[arg-type]


def _sharpness(cfg: OptimizerConfig, path: str) -> SharpnessAware | None:
    if cfg.type == "sam":
        if cfg.base == "sam":
            raise ConfigError("sam cannot wrap itself.", path=f"{path}.base", hint="adam is the usual base.")
        return SharpnessAware(0.05 if cfg.rho is None else cfg.rho)
    for name in ("rho", "base"):
        if getattr(cfg, name) is not None:
            raise ConfigError(
                f"{path}.{name} = {getattr(cfg, name)!r}, but {cfg.type} has no {name}; it belongs to sam.",
                path=f"{path}.{name}",
                hint=f"write type: sam (base: {cfg.type}), or remove {name}.",
            )
    return None


def _build(
    parameters: list[nn.Parameter], cfg: OptimizerConfig, lr: float, path: str
) -> torch.optim.Optimizer:
    kind: Any = lookup("optimizer", cfg.stepping)
    accepted = inspect.signature(kind).parameters
    names = ("eps", "weight_decay", "betas", "alpha", "momentum")
    given = {name: getattr(cfg, name) for name in names if getattr(cfg, name) is not None}
    odd = [name for name in given if name not in accepted]
    if odd:
        has = ", ".join(name for name in names if name in accepted) or "none of these"
        raise ConfigError(
            f"{path}.{odd[0]} = {given[odd[0]]!r}, but {cfg.stepping} has no {odd[0]}; it has: {has}.",
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
            f"{cfg.stepping} refuses its settings: {error}.", path=path, hint="give usual values."
        ) from None
    return optimizer


def drop_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Backward then hands its own memory over instead of adding to old gradients."""
    for parameter in parameters:
        parameter.grad = None
