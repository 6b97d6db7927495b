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
        own = type(self).act is SampleExplorer.act and type(self).chunk_act is Explorer.chunk_act
        return policy.on_arrays(rows) if own and isinstance(noise, Tensor) else None

    def record(self, policy: FrozenPolicy) -> None:
        own = type(self).act is SampleExplorer.act and type(policy) is FrozenPolicy
        policy.record = [] if own and not self.warming_up else None

    def behaviour_log_prob(
        self, policy: FrozenPolicy, rows: Batch, state: Tree | None = None
    ) -> Tensor | None:
        """From what was recorded of these rows; else one pass over them, or with memory over sequences from `state`.
        None during the warm-up.
        """
        if self.warming_up:
            return None
        record, policy.record = policy.record, None
        if record and len(record) == rows.shape[0]:
            flat = rows.flatten()
            return policy.recorded_log_prob(record, flat.obs, flat.action).reshape(rows.shape)
        if state is not None:
            return policy.log_prob(rows.obs, rows.action, state, rows.is_first)
        flat = rows.flatten()
        return policy.log_prob(flat.obs, flat.action).reshape(rows.shape)
