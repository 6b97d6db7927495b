"""The loss of a policy gradient, forward and backward, as one compiled graph."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Batch, tree_leaves
from uniarena.config import ConfigError
from uniarena.learners.on_policy.loss import PolicyLoss
from uniarena.ops.statistics import Metrics
from uniarena.optim import Derived
from uniarena.optim.minimize import LossFn

log = logging.getLogger("uniarena")

COMPILERS = ("g++", "clang++", "cl")


@dataclass(frozen=True)
class Coefficients:
    """What a loss needs of its learner, with the numbers that move as tensors: floats would be compiled anew."""

    model: Any
    cfg: Any
    returns: Any
    clip_range: Tensor
    ent_coef: Tensor
    kl_coef: Tensor


class CompiledLoss:
    """What a `PolicyLoss` computes, compiled at the first minibatch.

    The number of rows is a variable of the graph from the beginning, so that smaller minibatches compile nothing and a
    resumed run computes with the same code. What cannot be compiled is computed as ever, and said once: sequences of
    policies with memory, and networks that torch does not take.

    Args:
        loss: see `PolicyLoss`; without gradients by hand.

    Attributes:
        seconds: what compiling took; None: nothing has been compiled.
    """

    def __init__(self, loss: PolicyLoss) -> None:
        self.loss = loss
        self.seconds: float | None = None
        self._graph: Any = torch.compile(self._total, fullgraph=True)
        self._numbers: tuple[tuple[float, ...], tuple[Tensor, ...]] | None = None

    def __call__(self, batch: Batch) -> tuple[Tensor | Derived, Metrics]:
        if self._graph is None or batch.shape[0] < 2:  # torch compiles one row as a case of its own
            return self.loss(batch)
        if self.seconds is None and not self._warm(batch):
            return self.loss(batch)
        total: tuple[Tensor, Metrics] = self._graph(batch, *self._coefficients())
        return total

    def _total(
        self, batch: Batch, clip_range: Tensor, ent_coef: Tensor, kl_coef: Tensor
    ) -> tuple[Tensor, Metrics]:
        own = self.loss.learner
        numbers = Coefficients(own.model, own.cfg, own.returns, clip_range, ent_coef, kl_coef)
        return PolicyLoss(numbers, by_hand=False)(batch)  # type: ignore[return-value]

    def _coefficients(self) -> tuple[Tensor, ...]:
        own = self.loss.learner
        numbers = (own.clip_range, own.ent_coef, own.kl_coef)
        if self._numbers is None or self._numbers[0] != numbers:
            device = next(own.model.parameters()).device
            self._numbers = numbers, tuple(torch.tensor(number, device=device) for number in numbers)
        return self._numbers[1]

    def _warm(self, batch: Batch) -> bool:
        """Compile forward and backward pass. False: it cannot be, or not of this minibatch."""
        if "state" in batch:
            return self._give_up("sequences of a policy with memory")
        started = time.perf_counter()
        for leaf in tree_leaves({name: batch[name] for name in batch}):
            torch._dynamo.maybe_mark_dynamic(leaf, 0)
        parameters = [p for p in self.loss.learner.model.parameters() if p.requires_grad]
        try:
            with torch.enable_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what torch says of its own parts
                total, _ = self._graph(batch, *self._coefficients())
                torch.autograd.grad(total, parameters, allow_unused=True)
        except torch._dynamo.exc.TorchDynamoException as error:
            return self._give_up(" ".join(str(error).split("\n\n")[0].split()))
        self.seconds = time.perf_counter() - started
        log.info("learner.compile: the loss was compiled in %.1f s", self.seconds)
        return True

    def _give_up(self, why: str) -> bool:
        self._graph = None
        log.warning("learner.compile: the loss is computed without compiling: %s", why)
        return False


def compiled(loss: PolicyLoss) -> LossFn:
    """A compiled loss; the given one where `policy_step: natural` takes it apart.

    Raises:
        ConfigError: this machine has nothing to compile with.
    """
    if loss.cfg.policy_step == "natural":
        log.warning("learner.compile: a natural step needs second derivatives, so nothing is compiled")
        return loss
    refuse_without_compiler(next(loss.learner.model.parameters()).device.type)
    return CompiledLoss(loss)


def refuse_without_compiler(device: str) -> None:
    """Whether there is what torch compiles with: a C++ compiler, on accelerators Triton.

    Raises:
        ConfigError: there is not.
    """
    wanted = os.environ.get("CXX")
    names = (wanted,) if wanted else COMPILERS
    if device == "cpu" and not any(shutil.which(name) for name in names):
        lacking = f"no C++ compiler was found ({', '.join(names)})"
    elif device != "cpu" and importlib.util.find_spec("triton") is None:
        lacking = f"Triton, which compiles for {device}, is not installed"
    else:
        return
    raise ConfigError(
        f"the loss cannot be compiled here: {lacking}.",
        path="learner.compile",
        hint="install one (a compiler is in the packages g++ or clang), or set learner.compile: off.",
    )
