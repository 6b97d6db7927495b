"""Decision transformer: actions as a sequence model foretells them, given the return that is still to come.

Chen et al. 2021 (arXiv:2106.01345), algorithm 1. Deviations: one token for every step, of its return-to-go, observation
and the action before it, where the authors have three; the layers are those of the memory `gtrxl`, so that acting looks
back over more than one window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from uniarena.batch import Batch, Tree, tree_map
from uniarena.config import Between, config
from uniarena.learners.base import Learner, Update
from uniarena.learners.offline.config import OfflineConfig
from uniarena.ops.offline import action_distance
from uniarena.ops.statistics import Metrics
from uniarena.optim import GradNorm, LearningRate, Minimize, OptimizerConfig
from uniarena.policies.deterministic import Deterministic
from uniarena.values.decision import build_decision_model


@config
class DecisionTransformerConfig(OfflineConfig):
    """Tables 8 and 9 of the paper."""

    learning_rate: LearningRate = 1e-4
    gamma: Annotated[float, Between(0, 1)] = 1.0  # discount of the return-to-go; 1: what evaluation sums
    batch_size: Annotated[int, Between(1)] = 64  # sequences of an update
    target_return: float | None = (
        None  # asked for when acting; null: the largest return-to-go seen in the data
    )
    max_grad_norm: GradNorm = 0.25  # longest global gradient; null: no clipping
    optimizer: OptimizerConfig = OptimizerConfig(type="adamw", weight_decay=1e-4)


class DecisionTransformer(Learner):
    """A policy fitted to the actions of sequences.

    Batches are `[T, N]` of `obs`, `action`, `is_first`, `weight` (0: padding) and `return_to_go`.
    """

    Config: ClassVar[type] = DecisionTransformerConfig
    records: ClassVar[tuple[str, ...]] = ("return_to_go",)
    build_model: ClassVar[Callable[..., Any]] = staticmethod(build_decision_model)
    default_parts: ClassVar[dict[str, dict[str, Any]]] = {
        "explorer": {"type": "sample"},
        "buffer": {"type": "sequence", "length": 20, "burn_in": 0},
    }
    model: Any  # a Model whose policy is a DecisionPolicy

    def __init__(
        self, model: Any, cfg: DecisionTransformerConfig, minimize: Minimize, rng: torch.Generator
    ) -> None:
        super().__init__(model, cfg, minimize, rng)
        self.optimizer = cfg.optimizer_of("policy", model.policy)

    def update(self, batch: Batch) -> Update:
        real = batch.require("return_to_go").weight > 0
        network = self.model.policy.network
        network.look(batch.return_to_go[real])
        metrics = self.minimize(self.loss, batch, self.optimizer)
        metrics["target_return"] = network.target
        return Update({**metrics, "learning_rate": self.optimizer.rate})

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """−log π of the actions of real rows, or their squared distance in half widths of the bounds."""
        policy, (steps, count) = self.model.policy, batch.shape
        flat = _flat(batch.action)
        code = policy.network.code(flat).unflatten(0, (steps, count))
        before = torch.cat([torch.zeros_like(code[:1]), code[:-1]])
        before = torch.where(batch.is_first.unsqueeze(-1), 0.0, before)
        inputs = policy.inputs(batch.obs)
        params = policy.network.sequence(inputs, batch.return_to_go, before, batch.is_first)
        mask = policy.mask(batch.obs)
        dist = policy.head.dist(params.flatten(0, 1), None if mask is None else mask.flatten(0, 1))
        real = (batch.weight > 0).flatten()
        if isinstance(dist, Deterministic):
            scale = dist.scale
            return action_distance(scale(dist.mode()), scale(flat))[real].mean(), {}
        right = (dist.mode() == flat)[real].float().mean()
        return -dist.log_prob(flat)[real].mean(), {"accuracy": right}


def _flat(tree: Tree) -> Tree:
    """`[T, N, …]` → `[T·N, …]`."""
    return tree_map(lambda leaf: leaf.flatten(0, 1), tree)
