"""Configuration of learners that learn from data alone, and never in an environment."""

from __future__ import annotations

from typing import Annotated

from torch import nn

from uniarena.config import Between, config
from uniarena.optim import GradNorm, LearningRate, Optimizer, OptimizerConfig, PrecisionName, build_optimizer


@config
class OfflineConfig:
    """What they have in common."""

    learning_rate: LearningRate = 3e-4
    gamma: Annotated[float, Between(0, 1)] = 0.99  # discount per environment step
    batch_size: Annotated[int, Between(1)] = 256  # rows of an update
    max_grad_norm: GradNorm = None  # longest global gradient; null: no clipping
    precision: PrecisionName = "fp32"  # of losses and their gradients: fp32, bf16, fp16
    optimizer: OptimizerConfig = OptimizerConfig()

    @property
    def updates_per_env_step(self) -> float:
        """0: they take samples of a buffer, and the environment has no part in it."""
        return 0.0

    def optimizer_of(self, prefix: str, part: nn.Module) -> Optimizer:
        """The optimiser of one part of a model."""
        named = ((f"{prefix}.{name}", parameter) for name, parameter in part.named_parameters())
        return build_optimizer(named, self.optimizer.with_eps(1e-8), self.learning_rate)
