"""Optimisers, schedules, and `Minimize`, the one way to take a gradient step."""

from uniarena.optim.clipping import Bound, GradNorm, global_norm
from uniarena.optim.minimize import Derived, LearnStep, LossFn, Minimize, NonFiniteError, React
from uniarena.optim.optimizer import Optimizer, OptimizerConfig, build_optimizer
from uniarena.optim.precision import PrecisionName, build_precision
from uniarena.optim.schedules import LearningRate, Schedule, ScheduleConfig, make_schedule

__all__ = [
    "Bound",
    "Derived",
    "GradNorm",
    "LearnStep",
    "LearningRate",
    "LossFn",
    "Minimize",
    "NonFiniteError",
    "Optimizer",
    "OptimizerConfig",
    "PrecisionName",
    "React",
    "Schedule",
    "ScheduleConfig",
    "build_optimizer",
    "build_precision",
    "global_norm",
    "make_schedule",
]
