"""Configuration of learners that learn from data alone, and never in an environment."""

from __future__ import annotations

from typing import Annotated

from uniarena.config import Between, config
from uniarena.optim import GradNorm, LearningRate, OptimizerConfig


@config
class OfflineConfig:
    """What they have in common."""

    learning_rate: LearningRate = 3e-4
    gamma: Annotated[float, Between(0, 1)] = 0.99  # discount per environment step
    batch_size: Annotated[int, Between(1)] = 256  # rows of an update
    max_grad_norm: GradNorm = None  # longest global gradient; null: no clipping
    optimizer: OptimizerConfig = OptimizerConfig()

    @property
    def updates_per_env_step(self) -> float:
        """0: they take samples of a buffer, and the environment has no part in it."""
        return 0.0
