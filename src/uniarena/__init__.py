"""UniArena: one mental model for every kind of reinforcement learning.

    result = uniarena.train("ppo/cartpole", ["training.total_timesteps=50000"])
    agent = uniarena.Agent.load(result.run)
    action = agent.act(obs)

Names are imported on first use: `import uniarena` itself loads neither torch nor Gymnasium.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uniarena import config
    from uniarena.agent import Agent
    from uniarena.batch import Batch, Rollout
    from uniarena.config import ConfigError
    from uniarena.envs import make_env
    from uniarena.learners.base import Learner
    from uniarena.registry import register
    from uniarena.run import evaluate, resume, train
    from uniarena.trainer import Trainer

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Batch",
    "ConfigError",
    "Learner",
    "Rollout",
    "Trainer",
    "__version__",
    "config",
    "evaluate",
    "make_env",
    "register",
    "resume",
    "train",
]

_HOMES = {
    "Agent": "uniarena.agent",
    "Batch": "uniarena.batch",
    "ConfigError": "uniarena.config",
    "Learner": "uniarena.learners.base",
    "Rollout": "uniarena.batch",
    "Trainer": "uniarena.trainer",
    "evaluate": "uniarena.run",
    "make_env": "uniarena.envs",
    "register": "uniarena.registry",
    "resume": "uniarena.run",
    "train": "uniarena.run",
}


def __getattr__(name: str) -> Any:
    if name == "config":  # the module: `from uniarena.config import config` is the decorator
        return importlib.import_module("uniarena.config")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'uniarena' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
