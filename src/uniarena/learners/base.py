"""What every learner is: networks, a frozen config, and `update`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from uniarena.config import ConfigError, WithDefaults
from uniarena.optim import Minimize, Optimizer
from uniarena.values.model import Model, build_model


@dataclass(frozen=True)
class Update:
    """What one learning step gives back.

    Attributes:
        metrics: name → detached 0-d tensor.
        priority: `[N]` new priorities of the rows learned from, for buffers that keep some.
    """

    metrics: dict[str, Tensor]
    priority: Tensor | None = None


OPTIONAL = {"n_epochs": 1, "train_batch_size": None, "max_grad_norm": None, "precision": "fp32"}
"""Fields of a learner's config that the loop goes by where they are declared, and what holds where not."""


def declared(cfg: Any, name: str) -> Any:
    """A field of a learner's config that others than the learner go by.

    Raises:
        ConfigError: it is missing, and there is no default that would be right for every learner.
    """
    value = getattr(cfg, name, OPTIONAL.get(name, cfg))
    if value is cfg:
        raise ConfigError(
            f"{type(cfg).__name__} declares no {name}, which the training loop goes by.",
            path=f"learner.{name}",
            hint=f"give it a field {name}, such as `gamma: float = 0.99` and `n_steps: int = 128`.",
        )
    return value


class Learner(nn.Module, ABC):
    """Improves a policy from batches. Holds networks and optimisers; knows no environments, buffers or logs.

    Optimisers are plain attributes of type `Optimizer`: their learning rates follow `set_progress` and they
    are part of `state_dict`, like the progress itself and the generator of minibatches. Loading continues bit
    for bit.

    Args:
        model: policy and value networks.
        cfg: an instance of `Config`. It declares `gamma`, the discount, and `n_steps`, the rows of every
            environment in one rollout; where they have a meaning also `n_epochs` (passes over a rollout),
            `train_batch_size` (environment steps gathered for one update), `max_grad_norm`.
        minimize: takes the gradient steps.
        rng: where minibatches and other random choices of the learner come from.
    """

    Config: ClassVar[type]
    records: ClassVar[
        tuple[str, ...]
    ] = ()  # what must be known of the behaviour policy beside each transition

    build_model: ClassVar[Callable[..., Any]] = staticmethod(build_model)
    """(observation space, policy space, `agent.policy`, `agent.value`, normaliser, streams, cfg=) → its model. Where it
    can build memory into it, it takes the section `agent.memory` as `memory=`."""
    default_parts: ClassVar[dict[str, dict[str, Any]]] = {
        "explorer": {"type": "sample"},
        "buffer": {"type": "rollout"},
    }
    """Sections of `agent` for what the config leaves out, by name."""

    def __init__(self, model: Model, cfg: Any, minimize: Minimize, rng: torch.Generator) -> None:
        super().__init__()
        self.model, self.cfg, self.minimize, self.rng = model, cfg, minimize, rng
        self.progress = 0.0
        minimize.rng = rng

    @abstractmethod
    def update(self, batch: Any) -> Update:
        """One learning step on what the buffer gives: a `Rollout` or a `Batch`."""

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """Attribute name → optimiser."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Optimizer)}

    def set_progress(self, fraction: float) -> None:
        """Move every schedule to its place at this fraction of the run, in [0, 1]."""
        self.__dict__["progress"] = (
            fraction  # a module's own way to set an attribute costs more than the rest
        )
        for value in self.__dict__.values():
            if isinstance(value, Optimizer):
                value.set_progress(fraction)

    def get_extra_state(self) -> dict[str, Any]:
        """What `state_dict` holds beside the tensors of the networks."""
        optimizers = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        own = {"optimizers": optimizers, "progress": self.progress, "rng": self.rng.get_state()}
        return own | self.minimize.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Called by `load_state_dict`."""
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.progress = float(state["progress"])
        self.rng.set_state(state["rng"])
        self.minimize.load_state_dict(state)


@dataclass(frozen=True)
class Preset:
    """A named learner: a learner class with defaults of its own. Called like the learner class itself.

    Attributes:
        learner: the class that does the work.
        Config: its config with the defaults of this preset.
        source: the paper that these defaults come from.
        parts: sections of `agent` that it brings where the config names none; None: the learner's own.
    """

    learner: Callable[..., Learner]
    Config: type | WithDefaults
    source: str
    parts: dict[str, dict[str, Any]] | None = None

    @property
    def build_model(self) -> Callable[..., Any]:
        """The learner's."""
        build: Callable[..., Any] = self.learner.build_model  # type: ignore[attr-defined]
        return build

    @property
    def default_parts(self) -> dict[str, dict[str, Any]]:
        """Sections of `agent` for what the config leaves out, by name."""
        own: dict[str, dict[str, Any]] = getattr(self.learner, "default_parts", {})
        return own if self.parts is None else self.parts

    def __call__(self, model: Model, cfg: Any, minimize: Minimize, rng: torch.Generator) -> Learner:
        return self.learner(model, cfg, minimize, rng)
