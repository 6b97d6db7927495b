"""The policy's own distribution as behaviour: what on-policy methods do, and SAC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from uniarena.batch import Batch, Tree
from uniarena.config import config
from uniarena.explorers.base import Explorer, ExplorerConfig
from uniarena.policies.frozen import FrozenPolicy


@config
class SampleExplorerConfig(ExplorerConfig):
    """Nothing to set but the warm-up."""


class SampleExplorer(Explorer):
    """Sample from the policy. A Q-policy has nothing to sample: it acts greedily, with the noise of its noisy
    layers.
    """

    Config: ClassVar[type] = SampleExplorerConfig
    has_log_prob: ClassVar[bool] = True

    def noise(
        self, policy: FrozenPolicy, steps: int, columns: int, generator: torch.Generator
    ) -> Tree | None:
        return policy.noise(steps, columns, generator)

    def act(
        self,
        policy: FrozenPolicy,
        obs: Tree,
        state: Tree | None,
        is_first: Tensor | None,
        noise: Tree | None,
        generator: torch.Generator | None,
    ) -> tuple[Tree, Tree | None]:
        return policy.sample(obs, state, is_first, noise, generator)

    def on_arrays(
        self, policy: FrozenPolicy, rows: int, noise: Tree | None
    ) -> Callable[[Any, Any], Any] | None:
        return (
            policy.on_arrays(rows) if self._plain("act", "chunk_act") and isinstance(noise, Tensor) else None
        )

    def samples(self, policy: FrozenPolicy) -> bool:
        plain = self._plain("act", "chunk_act", "behaviour_log_prob")
        return plain and not self.warming_up and type(policy) is FrozenPolicy and "sample" not in vars(policy)

    def _plain(self, *methods: str) -> bool:
        """Whether no subclass and nobody else changed how this one acts."""
        return all(
            name not in vars(self) and getattr(type(self), name) is getattr(SampleExplorer, name)
            for name in methods
        )

    def behaviour_log_prob(
        self, policy: FrozenPolicy, rows: Batch, state: Tree | None = None
    ) -> Tensor | None:
        """One pass over all rows, or with memory over sequences from `state`. None during the warm-up."""
        if self.warming_up:
            return None
        if state is not None:
            return policy.log_prob(rows.obs, rows.action, state, rows.is_first)
        flat = rows.flatten()
        return policy.log_prob(flat.obs, flat.action).reshape(rows.shape)
