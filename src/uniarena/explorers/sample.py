"""The policy's own distribution as behaviour: what on-policy methods do."""

from __future__ import annotations

import torch
from torch import Tensor

from uniarena.batch import Batch, Tree
from uniarena.config import config
from uniarena.explorers.base import Explorer
from uniarena.policies.frozen import FrozenPolicy


@config
class SampleExplorerConfig:
    """Nothing to set."""


class SampleExplorer(Explorer):
    """Sample from the policy."""

    Config = SampleExplorerConfig

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

    def behaviour_log_prob(self, policy: FrozenPolicy, rows: Batch) -> Tensor:
        """Each row is a step of its own from its recorded `state`, so one pass serves policies with memory
        too.
        """
        flat = rows.flatten()
        log_prob = policy.log_prob(flat.obs, flat.action, flat.get("state"), flat.get("is_first"))
        return log_prob.reshape(rows.shape)
