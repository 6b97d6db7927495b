"""Optimisers, schedules, and `Minimize`, the one way to take a gradient step."""

from uniarena.optim.minimize import Derived, LearnStep, LossFn, Minimize, NonFiniteError, React, global_norm
from uniarena.optim.optimizer import Optimizer, OptimizerConfig, build_optimizer
from uniarena.optim.schedules import Schedule, ScheduleConfig, make_schedule

__all__ = [
    "Derived",
    "LearnStep",
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
