"""What every learner is: networks, a frozen config, and `update`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from uniarena.optim import Minimize, Optimizer

if TYPE_CHECKING:
    from uniarena.values.model import Model


@dataclass(frozen=True)
class Update:
    """What one learning step gives back.

    Attributes:
        metrics: name → detached 0-d tensor.
        priority: `[N]` new priorities of the rows learned from, for buffers that keep some.
    """

    metrics: dict[str, Tensor]
    priority: Tensor | None = None


class Learner(nn.Module, ABC):
    """Improves a policy from batches. Holds networks and optimisers; knows no environments, buffers or logs.

    Optimisers are plain attributes of type `Optimizer`: their learning rates follow `set_progress` and they
    are part of `state_dict`, like the progress itself and the generator of minibatches. Loading continues bit
    for bit.

    Args:
        model: policy and value networks.
        cfg: an instance of `Config`.
        minimize: takes the gradient steps.
        rng: where minibatches and other random choices of the learner come from.
    """

    Config: ClassVar[type]
    records: ClassVar[
        tuple[str, ...]
    ] = ()  # what must be known of the behaviour policy beside each transition

    def __init__(self, model: Model, cfg: Any, minimize: Minimize, rng: torch.Generator) -> None:
        super().__init__()
        self.model, self.cfg, self.minimize, self.rng = model, cfg, minimize, rng
        self.progress = 0.0

    @abstractmethod
    def update(self, batch: Any) -> Update:
        """One learning step on what the buffer gives: a `Rollout` or a `Batch`."""

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """Attribute name → optimiser."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Optimizer)}

    def set_progress(self, fraction: float) -> None:
        """Move every schedule to its place at this fraction of the run, in [0, 1]."""
        self.progress = fraction
        for optimizer in self.optimizers.values():
            optimizer.set_progress(fraction)

    def get_extra_state(self) -> dict[str, Any]:
        """What `state_dict` holds beside the tensors of the networks."""
        optimizers = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        return {"optimizers": optimizers, "progress": self.progress, "rng": self.rng.get_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Called by `load_state_dict`."""
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.progress = float(state["progress"])
        self.rng.set_state(state["rng"])


@dataclass(frozen=True)
class Preset:
    """A named learner: a learner class with defaults of its own. Called like the learner class itself.

    Attributes:
        learner: the class that does the work.
        Config: its config with the defaults of this preset.
        source: the paper that these defaults come from.
    """

    learner: Callable[..., Learner]
    Config: type
    source: str

    def __call__(self, model: Model, cfg: Any, minimize: Minimize, rng: torch.Generator) -> Learner:
        return self.learner(model, cfg, minimize, rng)
