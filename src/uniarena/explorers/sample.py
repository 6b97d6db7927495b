"""The policy's own distribution as behaviour: what on-policy methods do, and SAC."""

from __future__ import annotations

from typing import ClassVar

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

    def behaviour_log_prob(self, policy: FrozenPolicy, rows: Batch) -> Tensor | None:
        """Each row is a step of its own from its recorded `state`, so one pass serves policies with memory
        too. None during the warm-up.
        """
        if self.warming_up:
            return None
        flat = rows.flatten()
        log_prob = policy.log_prob(flat.obs, flat.action, flat.get("state"), flat.get("is_first"))
        return log_prob.reshape(rows.shape)
