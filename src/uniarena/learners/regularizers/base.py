"""What a regulariser is: a weighted term of a policy's loss, on rows of its own or on the learner's."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from gymnasium import Space
from torch import Tensor

from uniarena.config import Between, ConfigError
from uniarena.learners.base import Learner
from uniarena.nets.precision import widened
from uniarena.ops.statistics import Metrics
from uniarena.optim import ScheduleConfig, make_schedule
from uniarena.policies.distributions import Distribution
from uniarena.values.q_model import GreedyHead, QPolicy

Weight = Annotated[float | ScheduleConfig, Between(0)]
"""A number or a schedule over the run."""


@dataclass(frozen=True)
class Setting:
    """What a regulariser is built for.

    Attributes:
        where: its section in the configuration, for errors.
        observation_space, policy_space, action_space: of one row; the last is the environment's own.
        device: where the networks are.
        generator: its own stream of random numbers, part of every checkpoint.
        load: folder of a run or a checkpoint → the agent.
    """

    where: str
    observation_space: Space[Any]
    policy_space: Space[Any]
    action_space: Space[Any]
    device: torch.device
    generator: torch.Generator
    load: Callable[[str], Any]


class Regularizer(ABC):
    """One term: `weight × loss` is added to the loss of the step that moves the policy.

    Args:
        cfg: an instance of `Config`. It declares `weight`, a `Weight`.
        learner: whose policy it is about.
        setting: see there.

    Attributes:
        weight: progress of the run in [0, 1] → the factor. Where it is 0, the term is not computed.

    Raises:
        ConfigError: it cannot be had with this learner, or of these spaces.
    """

    Config: ClassVar[type]

    def __init__(self, cfg: Any, learner: Learner, setting: Setting) -> None:
        self.cfg, self.learner, self.setting = cfg, learner, setting
        self.weight = make_schedule(cfg.weight, f"{setting.where}.weight")
        self.policy: Any = learner.model.policy
        self.by_value = isinstance(self.policy, QPolicy)
        if isinstance(self.policy.head, GreedyHead) and not self.by_value:
            raise self.refusal("its policy is greedy among what a model of the data allows, and has no loss.")

    @abstractmethod
    def loss(self, batch: Any) -> tuple[Tensor, Metrics]:
        """The term, 0-d, and detached figures to log. Gradients reach only what the policy is made of.

        Args:
            batch: what `draw` gave; where it gave None, the learner's own batch.
        """

    @abstractmethod
    def probe(self) -> Any:
        """A batch to compute the loss of once, when the run is put together. Nothing is drawn for it."""

    @abstractmethod
    def describe(self) -> str:
        """What it goes by, in a few words."""

    def draw(self) -> Any:
        """Rows for one step; None: those that the learner takes it on."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What tells a resumed run that it goes by the same."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027  (most have nothing to take back)
        """Go on from what `state_dict` gave."""

    def dist(self, obs: Any, *memory: Any) -> Distribution:
        """The policy's distributions of raw observations, with gradient; `memory`: state before them, `is_first`."""
        params = self.policy.params(obs, *memory)[0]
        found: Distribution = self.policy.head.dist(widened(params), self.policy.mask(obs))
        return found

    def refusal(self, why: str, key: str = "type", hint: str = "remove it.") -> ConfigError:
        """The error of a term that cannot be had here."""
        name = type(self.learner).__name__
        return ConfigError(f"{name} cannot take it: {why}", path=f"{self.setting.where}.{key}", hint=hint)


def digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of named tensors."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def reached(loss: Tensor) -> set[int]:
    """Ids of the parameters that a loss has gradients for."""
    waiting, seen, found = [loss.grad_fn], set[Any](), set[int]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        waiting += [following for following, _ in node.next_functions]
    return found
