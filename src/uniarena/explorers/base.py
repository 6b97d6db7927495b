"""Explorer: how an action is picked while learning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from uniarena.batch import Batch, Tree
from uniarena.policies.frozen import FrozenPolicy


class Explorer(ABC):
    """Turns a policy into behaviour. Stateless unless a subclass says otherwise.

    Args:
        cfg: an instance of the class's `Config`.
    """

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg

    @abstractmethod
    def noise(
        self, policy: FrozenPolicy, steps: int, columns: int, generator: torch.Generator
    ) -> Tree | None:
        """The randomness of a whole chunk in one draw, `[T, B, ...]`; None where its size is not fixed."""

    @abstractmethod
    def act(
        self,
        policy: FrozenPolicy,
        obs: Tree,
        state: Tree | None,
        is_first: Tensor | None,
        noise: Tree | None,
        generator: torch.Generator | None,
    ) -> tuple[Tree, Tree | None]:
        """The action `[B, ...]` of one step and the next state; `noise` is that step's part of what `noise`
        drew.
        """

    @abstractmethod
    def behaviour_log_prob(self, policy: FrozenPolicy, rows: Batch) -> Tensor | None:
        """Log-probs `[T, B]` of the actions of `rows [T, B]` under this behaviour; None where they have no
        density.
        """

    def state_dict(self) -> dict[str, Any]:
        """What must be saved beside the config."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave.

        Raises:
            ValueError: the state belongs to another kind of explorer.
        """
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but was given {', '.join(state)}.")
