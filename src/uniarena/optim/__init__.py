"""Optimisers, schedules, and `Minimize`, the one way to take a gradient step."""

from uniarena.optim.minimize import Derived, LearnStep, LossFn, Minimize, NonFiniteError, React, global_norm
from uniarena.optim.optimizer import Optimizer, OptimizerConfig, build_optimizer
from uniarena.optim.schedules import LearningRate, Schedule, ScheduleConfig, make_schedule

__all__ = [
    "Derived",
    "LearnStep",
    "LearningRate",
    "LossFn",
    "Minimize",
    "NonFiniteError",
    "Optimizer",
    "OptimizerConfig",
    "React",
    "Schedule",
    "ScheduleConfig",
    "build_optimizer",
    "global_norm",
    "make_schedule",
]
