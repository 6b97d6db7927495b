"""Memory: what a network knows of the rows before, between its encoder and its towers.

Every kind has one contract, so that any of them stands in the same place of every policy, value and Q-network. A state
is a tree of `[B, …]` tensors; a row that begins an episode never sees the state before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from uniarena.batch import Tree, tree_map
from uniarena.config import ConfigError, parse
from uniarena.registry import RegistryError, lookup

WHERE = "agent.memory"


class Memory(nn.Module, ABC):
    """Features and what came before them → features.

    A subclass is built as `(cfg, in_dim)`, sets `out_dim`, and gives `initial_state` and `step`. It may give a faster
    `sequence`, which must do what single steps do.

    Attributes:
        out_dim: width of the features that it gives.
    """

    Config: ClassVar[type]
    stored: ClassVar[bool] = True
    """Whether replay keeps the state of every row. False: sequences begin empty, and burn-in rows fill the memory."""

    out_dim: int

    @abstractmethod
    def initial_state(self, count: int) -> Tree:
        """The state of `count` columns whose episode begins, `[count, …]`."""

    @abstractmethod
    def step(self, features: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """One row: `[B, F]` and the state before it → `[B, out_dim]` and the state after it."""

    def sequence(self, features: Tensor, state: Tree, is_first: Tensor) -> tuple[Tensor, Tree]:
        """T rows: `[T, B, F]`, the state before the first one `[B, …]`, `is_first [T, B]` → `[T, B, out_dim]` and the
        state after the last one. Gradients end where the sequence begins.
        """
        found = []
        for row, first in zip(features, is_first, strict=True):
            out, state = self.step(row, self.reset(state, first))
            found.append(out)
        return torch.stack(found), state

    def forward(
        self, features: Tensor, state: Tree | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, Tree]:
        """A row `[B, F]`, or a sequence `[T, B, F]`.

        Args:
            state: before the (first) row; None: the initial one.
            is_first: `[B]` or `[T, B]` bool, where the state is reset before the row; None: nowhere.
        """
        if state is None:
            state = self.initial_state(features.shape[-2])
        if features.dim() == 2:
            return self.step(features, state if is_first is None else self.reset(state, is_first))
        if is_first is None:
            is_first = torch.zeros(features.shape[:2], dtype=torch.bool, device=features.device)
        return self.sequence(features, state, is_first)

    def reset(self, state: Tree, is_first: Tensor) -> Tree:
        """The state with the initial one in its place where `is_first [B]`: also where it was NaN."""
        fresh = self.initial_state(len(is_first))
        return tree_map(lambda now, new: torch.where(_like(is_first, now), new, now), state, fresh)

    def _zeros(self, *shape: int) -> Tensor:
        """Zeros beside the parameters."""
        parameter = next(self.parameters())
        return torch.zeros(*shape, dtype=parameter.dtype, device=parameter.device)


def build_memory(section: Mapping[str, Any], in_dim: int) -> Memory:
    """The memory that the section `agent.memory` names; draws from the global generator.

    Args:
        section: `type` and the keys of its `Config`.
        in_dim: width of the features that it is given.

    Raises:
        ConfigError: an unknown type or key, or a class that is no `Memory`.
    """
    name = section.get("type")
    if name is None:
        raise ConfigError("no memory is named.", path=f"{WHERE}.type", hint="add type: lstm")
    try:
        kind = lookup("memory", name)
    except RegistryError as error:
        raise ConfigError(str(error.args[0]), path=f"{WHERE}.type", hint=error.hint) from error
    if not (isinstance(kind, type) and issubclass(kind, Memory)):
        raise ConfigError(
            f"{name} is not a subclass of uniarena.nets.memory.Memory.",
            path=f"{WHERE}.type",
            hint="derive it from Memory, and give it a Config, initial_state and step.",
        )
    fields = {key: value for key, value in section.items() if key != "type"}
    memory: Memory = kind(parse(kind.Config, fields, WHERE), in_dim)
    return memory


def _like(is_first: Tensor, state: Tensor) -> Tensor:
    """`[B]` with as many trailing dimensions as a leaf `[B, …]` has."""
    return is_first.reshape(-1, *(1,) * (state.dim() - 1))
